#!/bin/sh
# test_run_gpu.sh - can a failure hide in tests/run_gpu.sh?  The script runs without a GPU, on a carried folder of programs that only
# claim to have checked something, each time with one thing broken.  Every gpu_checks.json and gpu_bench.json must be JSON.  The last
# line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0; failed=0
export CARRY=$work/carry OUT=$work/out CUBLAS=$work PATH=$work/bin:$PATH SECONDS_EACH=60

# program FILE LINES: a shell script
program() { mkdir -p "$(dirname "$work/$1")"; printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"; chmod +x "$work/$1"; }
# sound: everything as on a card where all is well
sound() {
  rm -rf "${work:?}"/*
  program bin/nvidia-smi 'case $* in *compute_cap*) echo 9.0 ;; *) echo "A \"card\", 1.2, 3 MiB" ;; esac'
  program bin/compute-sanitizer 'tool=$2; shift 4; "$@"; code=$?
    [ $tool = memcheck ] && echo "= ERROR SUMMARY: 0 errors" || echo "= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    exit $code'
  program carry/dualkv 'case $* in *--json*) echo "{\"a\": 1}" ;; *junk*) exit 2 ;; *) echo "1 passed, 0 failed" ;; esac'
  for name in ladder_driver fwd_driver bwd_hopper hopper_plumbing ladder_plan bwd_plan work_lists refusals fuzz_driver; do
    program carry/tests/gpu/$name 'echo fine'
  done
  echo abc >"$work/carry/commit"
}
# run PARTS CODE WORD: the script must end with this exit code and say this word somewhere
run() {
  said=$(PARTS=$1 KERNELS=${KERNELS-mma} tests/run_gpu.sh 2>&1); code=$?
  case $code$said in
    "$2"*"$3"*) passed=$((passed + 1)) ;;
    *) failed=$((failed + 1)); echo "FAIL: $4: exit code $2 and \"$3\" are wanted, it was $code: $said" ;;
  esac
  for file in "$work"/out/gpu_*.json; do
    [ ! -e "$file" ] || python3 -m json.tool "$file" >/dev/null 2>"$work/why" || {
      failed=$((failed + 1)); echo "FAIL: $4: $(basename "$file") is not JSON: $(cat "$work/why")"; }
  done
}

sound
run "refusals laws cases drivers fuzz bits far sanitize bench" 0 " 0 failed" "all is well"
[ -s "$work/out/gpu_bench.json" ] || { failed=$((failed + 1)); echo "FAIL: no gpu_bench.json where all is well"; }
run "laws casse" 2 'no part "casse"' "a part with a slip of the pen"

sound; program bin/nvidia-smi 'echo "NVIDIA-SMI has failed because it could not talk to the driver"; exit 9'
run "laws" 2 "shows no GPU" "no driver"
sound
KERNELS="" run "bits" 0 "bits hopper D=128" "every rung of a Hopper card"
sound; program bin/nvidia-smi 'case $* in *compute_cap*) echo 8.0 ;; *) echo "An older card, 1.2, 3 MiB" ;; esac'
KERNELS="" run "drivers bits" 0 "rungs: naive warp shared mma pipeline
" "the rungs of an older card"
case $said in *plumbing* | *"hopper D="* | *wgmma*) failed=$((failed + 1)); echo "FAIL: a Hopper rung on an older card: $said" ;; esac
sound; program bin/nvidia-smi ':'
run "laws" 2 "shows no GPU" "no device"

sound; program carry/tests/gpu/refusals '[ $# = 0 ] || kill -SEGV $$'
run "refusals" 1 "1 passed, 1 failed" "a crash"
sound; program carry/tests/gpu/refusals '[ $# = 0 ] || kill -9 $(cut -d " " -f 4 /proc/$PPID/stat)'
run "refusals" 1 "1 passed, 1 failed" "a killed bookkeeper"
sound; program carry/tests/gpu/refusals '[ $# = 0 ] || sleep 20'
SECONDS_EACH=1 run "refusals" 1 "rc124" "a check that does not end"
sound; rm "$work/carry/tests/gpu/refusals"
run "refusals" 1 "0 passed, 2 failed" "a missing program"
sound; program carry/tests/gpu/refusals 'printf "say \"\\\\ \t\001 \xe2\x82 \xff end\n"'
run "refusals" 0 "2 passed" "odd characters in a last line"
sound; mkdir "$work/carry/cases"; echo junk >"$work/carry/cases/junk.safetensors"
run "cases" 1 "1 passed, 2 failed" "a case file that cannot be read"

sound; program bin/compute-sanitizer 'echo "= ERROR SUMMARY: 3 errors"'
run "sanitize" 1 "rc9" "errors told with exit code 0"
sound; program bin/compute-sanitizer ':'
run "sanitize" 1 "rc9" "a sanitizer that says nothing"
sound; program carry/tests/gpu/ladder_driver 'exit 3'
run "sanitize" 1 "rc3" "a program that fails under a content sanitizer"
sound; program bin/compute-sanitizer 'echo "= ERROR SUMMARY: 0 errors"; echo "= RACECHECK SUMMARY: 128 hazards displayed (0 errors, 128 warnings)"'
run "sanitize" 1 "rc9" "hazards beside a summary of no errors"

sound; program carry/dualkv 'case $* in *--json*) echo "{" ;; esac'
run "bench" 1 "1 passed, 1 failed" "a benchmark whose JSON is cut off"
sound; program carry/dualkv 'case $* in *--json*) echo "{}"; exit 1 ;; esac'
run "bench" 1 "1 passed, 1 failed" "a benchmark that says it is wrong"
[ ! -e "$work/out/gpu_bench.json" ] || { failed=$((failed + 1)); echo "FAIL: a wrong benchmark is in gpu_bench.json"; }

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/bash
# Everything that needs the card, in one go: refusals, laws and cases for every rung, random problems, equal bits, far offsets,
# sanitizer, times.
#
#   tests/run_gpu.sh                 on a GPU machine: takes build/gpu_carry, or else builds; runs all parts, writes JSON
#   tests/run_gpu.sh --build DIR     the same with the build in DIR (make test-gpu)
#   tests/run_gpu.sh --pack DIR      where nvcc is: gathers the build of DIR in build/gpu_carry, with the libraries that a bare
#                                    GPU machine lacks and the cases of ../shared/cases where they are (make gpu-pack)
#   PARTS="laws cases" tests/run_gpu.sh     only these of: refusals laws cases drivers fuzz bits far sanitize bench
#   KERNELS="mma pipeline"           only these rungs          SECONDS_EACH=150   limit of one command
#   BENCH="P,N,R ..."                shapes of the tensor-core rungs
#   FUZZ=40 SEED=1                   seconds of random problems for each rung, and the first problem's seed
#   CUBLAS=DIR                       where libcublas.so.13 is; it is looked for when this is not set
#
# Checks run beside each other, with guard zones around every tensor (gpu/runtime/arena.h) except under the sanitizer, which
# sees more without them; times are taken alone.  Results go to docs/results (to $OUT when that is set): gpu_checks.json, and
# gpu_bench.json, a list of what `dualkv bench --json` wrote.
# Exit code 1 when anything failed, 2 when nothing could run.  tests/test_run_gpu.sh tries this script without a GPU.
set -u
export LC_ALL=C # numbers with points, and bytes cut as bytes: both go into JSON
cd "$(dirname "$0")/.." || exit 2
carry=${CARRY:-build/gpu_carry} at=
drivers="ladder_driver fwd_driver bwd_hopper hopper_plumbing ladder_plan bwd_plan work_lists refusals fuzz_driver"

pack() {
  local from=$1 file
  rm -rf "$carry" && mkdir -p "$carry/tests/gpu" "$carry/cases" || exit 2
  cp "$from"/dualkv "$from"/libdualkv.so "$from"/libdualkv_gpu.so "$carry"/ || exit 2
  for file in $drivers; do cp "$from/tests/gpu/$file" "$carry/tests/gpu/" || exit 2; done
  strip --strip-debug "$carry"/dualkv "$carry"/*.so "$carry"/tests/gpu/*
  cp ../shared/cases/*.safetensors "$carry/cases/" 2>/dev/null # more cases, where there are any
  cp "$from/.commit" "$carry"/commit
  for file in libcjson.so.1 libgomp.so.1; do
    cp -L "$(ldconfig -p | awk -v f="$file" '$1 == f {print $NF; exit}')" "$carry"/ || echo "no $file to carry" >&2
  done
  du -sh "$carry"
}
case ${1:-} in
--pack) pack "${2:-build}"; exit ;;
--build) at=${2:?--build needs a folder} ;;
?*) echo "run_gpu: unknown flag $1" >&2; exit 2 ;;
esac

if [ -z "$at" ] && [ -x "$carry/dualkv" ]; then at=$carry; fi
if [ -z "$at" ]; then make test-gpu; exit; fi # builds, and comes back with --build
out=${OUT:-docs/results}
log=$out/gpu_run.log
mkdir -p "$out" && : >"$log" || exit 2
cublas=${CUBLAS:-$(ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib 2>/dev/null | while read -r d; do
  [ -e "$d/libcublas.so.13" ] && echo "$d" && break; done)}
[ -n "$cublas" ] ||
  cublas=$(dirname "$(find / -name 'libcublas.so.13' -not -path '/proc/*' 2>/dev/null | head -n 1)" 2>/dev/null)
at=$(cd "$at" && pwd)
export LD_LIBRARY_PATH=$at:$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_WAIT_POLICY=passive
dualkv=$at/dualkv gpu=$at/tests/gpu
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
plain() { tr -d '\\"\000-\037\177-\377'; } # what may stand in a JSON string as it is
device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) ||
  device= # it tells on stdout why there is none
device=$(echo "$device" | head -n 1 | plain)
commit=$(cat "$at/commit" "$at/.commit" 2>/dev/null | head -n 1 | plain)
all_parts="refusals laws cases drivers fuzz bits far sanitize bench"
parts=${PARTS:-$all_parts}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | plain)
hopper="wgmma hopper" # they take cards of 9.0 and no others, and so do their drivers
[ "$capability" = 9.0 ] || hopper=
kernels=${KERNELS:-naive warp shared mma pipeline${hopper:+ $hopper}}
limit=${SECONDS_EACH:-150}
passed=0 failed=0 records= began=$SECONDS

# start NAME COMMAND...: begins a check beside the others; collect waits for all and reports them in order
names=()
start() {
  local n=${#names[@]}
  names+=("$1")
  shift
  while [ "$(jobs -rp | wc -l)" -ge 32 ]; do wait -n; done
  (
    begin=$(date +%s.%N)
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} timeout -k 20 "$limit" "$@" >"$log.$n" 2>&1
    rc=$?
    echo "$rc $(echo "$(date +%s.%N) $begin" | awk '{printf "%.1f", $1-$2}')" >"$log.$n.rc"
  ) &
}
write_checks() {
  cat >"$out/gpu_checks.json" <<JSON
{"schema": "dualkv.gpu_run.1", "device": "$device", "compute_capability": "$capability", "date": "$(date -u +%FT%TZ)",
 "commit": "${commit:-unknown}", "seconds": $((SECONDS - began)), "passed": $passed, "failed": $failed, "checks": [$records
]}
JSON
}
collect() {
  local n rc seconds last
  wait
  for n in "${!names[@]}"; do
    rc="" seconds=""
    read -r rc seconds 2>/dev/null <"$log.$n.rc"
    rc=${rc:-99} seconds=${seconds:-0} # nothing was written down: who should have done so was killed
    { echo "== ${names[n]} (exit $rc)"; cat "$log.$n"; } >>"$log"
    last=$(grep -v '^$' "$log.$n" | tail -n 1 | plain | cut -c1-160)
    if [ "$rc" -eq 0 ]; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      grep -E 'FAIL|WRONG|ERROR|Error:|dualkv:' "$log.$n" | cut -c1-200 | head -n 4
    fi
    printf '%-4s %-34s %6s s  %s\n' "$([ "$rc" -eq 0 ] && echo ok || echo "rc$rc")" "${names[n]}" "$seconds" "$last"
    records="$records${records:+,}
  {\"check\": \"${names[n]}\", \"exit\": $rc, \"seconds\": $seconds, \"last_line\": \"$last\"}"
    rm -f "$log.$n" "$log.$n.rc"
  done
  names=()
  write_checks
  echo "-- after $((SECONDS - began)) s: $passed passed, $failed failed"
}
has() { [[ " $parts " == *" $1 "* ]]; }
head_dim() { python3 -c 'import json,struct,sys
f = open(sys.argv[1], "rb"); print(json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["q"]["shape"][-1])' "$1"; }
all_cases=()
more=../shared/cases
[ -d "$at/cases" ] && more=$at/cases
for file in tests/cases/*.safetensors "$more"/*.safetensors; do
  [ -e "$file" ] && has cases || continue
  dim=$(head_dim "$file" 2>/dev/null) || dim=unreadable
  all_cases+=("$dim $file")
done
# cases_of KERNEL: which cases does a rung take?  A file that cannot be read is for every rung: one of them shall say why.
cases_of() {
  local entry dims=" 64 96 128 "
  case $1 in
  naive | warp | shared) dims=any ;;
  wgmma | hopper) dims=" 64 128 " ;;
  esac
  dims="$dims unreadable "
  for entry in "${all_cases[@]}"; do
    if [[ $dims == any* || $dims == *" ${entry%% *} "* ]]; then echo "${entry#* }"; fi
  done
}
# The backward rung that goes with a forward one in the drivers
backward_of() { case $1 in warp) echo shared ;; pipeline) echo mma ;; *) echo "$1" ;; esac; }
# clean TOOL NAME COMMAND...: under the sanitizer; every summary must say 0, and the command itself must succeed
clean() {
  start "$1 $2" bash -c 'tool=$1; shift 2; text=$("$0" --tool "$tool" --error-exitcode 9 "$@" 2>&1); rc=$?; echo "$text"
    echo "$text" | grep "SUMMARY: " | grep -qvE "SUMMARY: 0 (errors|hazards)" && exit 9
    echo "$text" | grep -qE "SUMMARY: 0 (errors|hazards)" && exit $rc; exit 9' "$sanitizer" "$@"
}

[ -n "$device" ] || { echo "run_gpu: nvidia-smi shows no GPU here" >&2; exit 2; }
for part in $parts; do
  [[ " $all_parts " == *" $part "* ]] || { echo "run_gpu: there is no part \"$part\"; there are $all_parts" >&2; exit 2; }
done
echo "$device, compute capability $capability, commit ${commit:-unknown}; rungs: $kernels"
export DKV_GPU_GUARD=1
if has refusals; then start "refusals" "$gpu/refusals"; start "refusals card" "$gpu/refusals" card; fi
if has laws; then for k in $kernels; do start "laws $k" "$dualkv" check --backend gpu --kernel "$k"; done; fi
if has cases; then
  for k in $kernels; do for t in f32 bf16 f16; do
    case $k,$t in naive,* | warp,* | shared,* | *16) ;; *) continue ;; esac # tensor cores take 16-bit types
    mapfile -t list < <(cases_of "$k")
    [ ${#list[@]} -gt 0 ] || { start "cases $k $t (0)" sh -c 'echo "no case file for this rung"; exit 9'; continue; }
    start "cases $k $t (${#list[@]})" "$dualkv" check "${list[@]}" --backend gpu --kernel "$k" --dtype "$t"
  done; done
  start "against cpu" "$dualkv" check tests/cases/{around_tiles,wide_heads,huge_scores}.safetensors --backend gpu --against cpu
fi
if has drivers; then
  start "plan of the ladder" "$gpu/ladder_plan"
  start "plan of bwd hopper" "$gpu/bwd_plan"
  start "lists of fwd hopper" "$gpu/work_lists"
  [ -z "$hopper" ] || start "plumbing" "$gpu/hopper_plumbing"
  for k in $hopper; do start "fwd driver $k" "$gpu/fwd_driver" check "$k"; done
  [ -z "$hopper" ] || start "bwd driver" "$gpu/bwd_hopper" check
fi
if has fuzz; then
  start "fuzz planted errors" "$gpu/fuzz_driver" planted
  start "fuzz two streams" "$gpu/fuzz_driver" streams "${FUZZ:-40}" "${SEED:-1}"
  for k in ${KERNELS:-all}; do
    start "fuzz $k" "$gpu/fuzz_driver" rungs "$k" "$(backward_of "$k")" "${FUZZ:-40}" "${SEED:-1}"
  done
fi
if has bits; then
  for k in $kernels; do
    case $k in naive | warp | shared) dims=40 ;; *) dims="64 128" ;; esac
    for d in $dims; do start "bits $k D=$d" "$gpu/ladder_driver" bits "$k" "$(backward_of "$k")" "$d"; done
  done
fi
collect
if has far; then
  start "far planted errors" "$gpu/ladder_driver" planted
  start "far pipeline mma" "$gpu/ladder_driver" far pipeline mma
  [ -z "$hopper" ] || start "far hopper" "$gpu/ladder_driver" far hopper hopper
  collect
  for k in $kernels; do # one rung after another, for memory
    [ "$k" != naive ] || continue
    start "far $k, 65535 heads" "$gpu/ladder_driver" far "$k" "$(backward_of "$k")" 100 6 100 65535 65535 64
    collect
  done
  start "far warp, H T > 2^31" "$gpu/ladder_driver" far warp - 1 10923 3 65535 1 8
  collect
fi
unset DKV_GPU_GUARD
if has sanitize; then
  if [ -z "$sanitizer" ]; then start "sanitizer" sh -c 'echo "no compute-sanitizer here"; exit 9'; fi
  for k in $kernels; do
    [ -n "$sanitizer" ] || break
    types=bf16 dims="64 128" file=tests/cases/wide_heads.safetensors
    case $k in mma | pipeline) dims="64 96 128" ;;
    naive | warp | shared) types="bf16 f32" dims=40 file=tests/cases/ragged_and_empty.safetensors ;; esac
    for tool in memcheck racecheck; do
      for t in $types; do
        for d in $dims; do
          clean $tool "$k $t D=$d" "$gpu/ladder_driver" once "$k" "$(backward_of "$k")" "$t" "$d"
        done
        clean $tool "$k $t $(basename $file)" "$dualkv" check $file --backend gpu --kernel "$k" --dtype "$t"
      done
      clean $tool "$k fuzz" "$gpu/fuzz_driver" rungs "$k" "$(backward_of "$k")" "${FUZZ:-40}" "${SEED:-1}" 300
      case $k in naive | warp | shared)
        clean $tool "$k f32 huge_scores" "$dualkv" check tests/cases/huge_scores.safetensors --backend gpu --kernel "$k" ;;
      esac
    done
  done
  collect
fi
# bench KERNEL P N R H HKV EXTRA...: what succeeds is joined to one list
benches=()
bench() {
  local k=$1 p=$2 n=$3 r=$4 h=$5 hkv=$6
  shift 6
  OMP_NUM_THREADS=$(nproc) start "bench $k $p,$n,$r" \
    bash -c '"$@" >"$0" && python3 -m json.tool "$0" >/dev/null; rc=$?
      [ $rc -eq 0 ] || { cat "$0"; rm -f "$0"; }; exit $rc' "$log.bench.${#benches[@]}" \
    "$dualkv" bench --backend gpu --kernel "$k" --dtype bf16 --prompt "$p" --responses "$n" --response-length "$r" \
    --heads "$h" --kv-heads "$hkv" --head-dim 128 --repeats "${REPEATS:-5}" --json "$@"
  benches+=("$log.bench.${#benches[@]}")
  collect
}
if has bench; then
  OMP_NUM_THREADS=$(nproc) start "bench as text" "$dualkv" bench --backend gpu --kernel mma --prompt 8192 --responses 16 \
    --response-length 1024 --heads 16 --kv-heads 4 --head-dim 128 --repeats 5
  collect
  for k in $kernels; do
    case $k in
    naive) REPEATS=2 bench "$k" 2048 8 512 8 2 ;;
    warp | shared) bench "$k" 2048 8 512 8 2 ;;
    *) for s in ${BENCH:-16384,28,2048}; do IFS=, read -r p n r <<<"$s"; bench "$k" "$p" "$n" "$r" 32 8; done ;;
    esac
  done
  first=1
  for file in "${benches[@]}"; do
    if python3 -m json.tool "$file" >/dev/null 2>&1; then
      [ $first -eq 1 ] && echo "[" || echo ","
      first=0
      cat "$file"
    fi
    rm -f "$file"
  done >"$out/gpu_bench.json"
  [ $first -eq 1 ] && rm -f "$out/gpu_bench.json" || echo "]" >>"$out/gpu_bench.json"
fi
write_checks || { echo "run_gpu: cannot write $out/gpu_checks.json" >&2; exit 2; }
echo "run_gpu: $passed passed, $failed failed in $((SECONDS - began)) s; $out/gpu_checks.json, log in $log"
[ $((passed + failed)) -gt 0 ] || exit 2
[ $failed -eq 0 ]

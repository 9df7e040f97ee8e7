#!/bin/bash
# Everything that needs the card, in one go: laws and cases for every rung, sanitizer, equal bits, far offsets, times.
#
#   tests/run_gpu.sh                 on a GPU machine: builds (or takes build/gpu_carry), runs all parts, writes JSON
#   tests/run_gpu.sh --pack [DIR]    on a machine with nvcc: gathers a build (DIR, default build) in build/gpu_carry,
#                                    with the libraries that a bare GPU machine lacks
#   PARTS="laws cases" tests/run_gpu.sh     only these of: laws cases bits far sanitize bench
#   KERNELS="mma pipeline"           only these rungs          SECONDS_EACH=120   limit of one command
#   BENCH="P,N,R ..."                shapes of the tensor-core rungs
#
# Results go to docs/results (to $OUT when that is set): gpu_checks.json, and gpu_bench.json, a list of
# what `dualkv bench --json` wrote.
# Exit code 1 when anything failed, 2 when nothing could run.
set -u
cd "$(dirname "$0")/.."
carry=build/gpu_carry

pack() {
  local from=${1:-build} file
  rm -rf "$carry" && mkdir -p "$carry" || exit 2
  cp "$from"/dualkv "$from"/libdualkv.so "$from"/libdualkv_gpu.so "$carry"/ || exit 2
  strip --strip-debug "$carry"/dualkv "$carry"/libdualkv.so
  git rev-parse --short=10 HEAD >"$carry"/commit
  nvcc -std=c++17 -O3 -I. -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
    -o "$carry"/ladder_driver tests/gpu/ladder_driver.cu -L"$carry" -ldualkv_gpu -ldualkv -Xlinker -rpath,'$ORIGIN' ||
    exit 2
  for file in libopenblas.so.0 libcjson.so.1 libgomp.so.1 libgfortran.so.5 libquadmath.so.0; do
    cp -L "$(ldconfig -p | awk -v f="$file" '$1 == f {print $NF; exit}')" "$carry"/ 2>/dev/null ||
      echo "no $file to carry" >&2
  done
  du -sh "$carry"
}
if [ "${1:-}" = --pack ]; then pack "${2:-}"; exit; fi

at=$carry
if [ ! -x "$at/dualkv" ]; then
  make lib tool gpu >/dev/null || { echo "run_gpu: neither $carry nor a build" >&2; exit 2; }
  at=build
fi
out=${OUT:-docs/results}
mkdir -p "$out"
log=$out/gpu_run.log
: >"$log"
cublas=$(ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib 2>/dev/null | while read -r d; do
  [ -e "$d/libcublas.so.13" ] && echo "$d" && break; done)
[ -n "$cublas" ] ||
  cublas=$(dirname "$(find / -name 'libcublas.so.13' -not -path '/proc/*' 2>/dev/null | head -n 1)" 2>/dev/null)
export LD_LIBRARY_PATH=$PWD/$at:$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
dualkv=$at/dualkv
device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
commit=$(cat "$at/commit" 2>/dev/null || git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
parts=${PARTS:-laws cases bits far sanitize bench}
kernels=${KERNELS:-naive warp shared mma pipeline wgmma hopper}
limit=${SECONDS_EACH:-120}
passed=0 failed=0 records=

# start NAME COMMAND...: begins a check beside the others; collect waits for all and reports them in order
names=()
start() {
  local n=${#names[@]}
  names+=("$1")
  shift
  (
    begin=$(date +%s.%N)
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} timeout "$limit" "$@" >"$log.$n" 2>&1
    rc=$?
    echo "$rc $(echo "$(date +%s.%N) $begin" | awk '{printf "%.1f", $1-$2}')" >"$log.$n.rc"
  ) &
}
collect() {
  local n rc seconds last
  wait
  for n in "${!names[@]}"; do
    read -r rc seconds <"$log.$n.rc"
    { echo "== ${names[n]} (exit $rc)"; cat "$log.$n"; } >>"$log"
    last=$(grep -v '^$' "$log.$n" | tail -n 1 | tr -d '\\"' | cut -c1-160)
    if [ "$rc" -eq 0 ]; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      grep -E 'FAIL|ERROR|dualkv:' "$log.$n" | head -n 4
    fi
    printf '%-4s %-36s %6s s  %s\n' "$([ "$rc" -eq 0 ] && echo ok || echo "rc$rc")" "${names[n]}" "$seconds" "$last"
    records="$records${records:+,}
  {\"check\": \"${names[n]}\", \"exit\": $rc, \"seconds\": $seconds, \"last_line\": \"$last\"}"
    rm -f "$log.$n" "$log.$n.rc"
  done
  names=()
}
has() { [[ " $parts " == *" $1 "* ]]; }
# Which cases does kernel $1 take in type $2? The tensor-core rungs take 16-bit types and a few head sizes.
cases_of() {
  local c
  for c in tests/cases/*.safetensors; do
    case $1 in naive | warp | shared) ;; *) [ "$2" != f32 ] && [[ $c == *wide_heads* ]] || continue ;; esac
    echo "$c"
  done
}

echo "${device:-no device}, commit $commit"
if has laws; then for k in $kernels; do start "laws $k" "$dualkv" check --backend gpu --kernel "$k"; done; fi
if has cases; then
  for k in $kernels; do for t in f32 bf16 f16; do
    mapfile -t list < <(cases_of "$k" "$t")
    [ ${#list[@]} -gt 0 ] || continue
    start "cases $k $t (${#list[@]})" "$dualkv" check "${list[@]}" --backend gpu --kernel "$k" --dtype "$t"
  done; done
  start "against cpu" "$dualkv" check tests/cases/{around_tiles,wide_heads}.safetensors --backend gpu --against cpu
fi
if has bits; then
  for k in $kernels; do
    b=$k
    case $k in warp | pipeline | wgmma) b=shared ;; esac
    start "bits $k" "$at/ladder_driver" bits "$k" "$b"
  done
fi
collect
if has far; then
  start "far pipeline mma" "$at/ladder_driver" far pipeline mma
  collect
  [[ $kernels == *hopper* ]] && start "far hopper" "$at/ladder_driver" far hopper hopper
  collect
fi
if has sanitize; then
  for k in $kernels; do
    mapfile -t list < <(cases_of "$k" bf16 | grep -E "${SANITIZE:-wide_heads|ragged_and_empty}")
    for tool in memcheck racecheck; do
      start "$tool $k (${#list[@]})" compute-sanitizer --tool $tool --error-exitcode 9 \
        "$dualkv" check "${list[@]}" --backend gpu --kernel "$k" --dtype bf16
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
    bash -c '"$@" >"$0"' "$log.bench.${#benches[@]}" "$dualkv" bench --backend gpu --kernel "$k" --dtype bf16 \
    --prompt "$p" --responses "$n" --response-length "$r" --heads "$h" --kv-heads "$hkv" --head-dim 128 \
    --repeats "${REPEATS:-5}" --json "$@"
  benches+=("$log.bench.${#benches[@]}")
  collect
}
if has bench; then
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
cat >"$out/gpu_checks.json" <<JSON
{"schema": "dualkv.gpu_run.1", "device": "$(echo "$device" | tr -d '"\\')", "date": "$(date -u +%FT%TZ)",
 "commit": "$commit", "passed": $passed, "failed": $failed, "checks": [$records
]}
JSON
echo "run_gpu: $passed passed, $failed failed; $out/gpu_checks.json, log in $log"
[ $((passed + failed)) -gt 0 ] || exit 2
[ $failed -eq 0 ]

#!/bin/sh
# bench_cpu.sh BUILD [FOLDER] - the CPU measurements behind docs/results.md, each a file of `dualkv bench --json` in FOLDER
# (default docs/results).
#
# A run counts when the machine was quiet: the median of its matrix products is at least 0.85 of the best, and the medians of
# the packed times are at most 1.25 times the least.  Otherwise it is repeated, up to TRIES (8) times; a machine that is never
# quiet is reported, and the file that was there stays.  PREFIX="nice" or the like is put before each run, ONLY="NAME" takes
# one shape alone.
set -u
build=${1:?usage: tests/bench_cpu.sh BUILD [FOLDER]}
cd "$(dirname "$0")/.." || exit 1
out=${2:-docs/results}
mkdir -p "$out"
work=$(mktemp)
trap 'rm -f "$work"' EXIT
failed=0
ragged=9,37,5,17,8,32,29,31,25,14,7,32,2,25,28,39,1,29,18,15,38,7,21,2,2,2,35,1,25,14,28,2
ragged=$ragged,34,15,29,32,36,15,23,15,15,30,19,2,27,36,7,12,19,8,22,33,28,33,13,20,19,38,32,33,26,38,3,31

# quiet FILE: see above. The first two medians and least times of the file are those of packed forward and backward.
quiet() {
  awk -F'[:,]' '/"sgemm_gflops"/ { m = $2 } /"sgemm_gflops_best"/ { b = $2 } /"median"/ { t[++n] = $2 } /"min"/ { l[++k] = $2 }
    END { exit !(m >= 0.85 * b && t[1] <= 1.25 * l[1] && t[2] <= 1.25 * l[2]) }' "$1"
}

# measure NAME FLAGS...
measure() {
  name=$1; shift; try=0
  [ -z "${ONLY:-}" ] || [ "$ONLY" = "$name" ] || return
  while [ $try -lt "${TRIES:-8}" ]; do
    try=$((try + 1))
    # shellcheck disable=SC2086  # PREFIX may be several words
    ${PREFIX:-} "$build/dualkv" bench --heads 8 --kv-heads 2 --json "$@" >"$work" || { failed=1; return; }
    if quiet "$work"; then
      cp "$work" "$out/cpu_$name.json"
      echo "cpu_$name.json: run $try"
      return
    fi
  done
  echo "cpu_$name: the machine was never quiet in $try runs" >&2; failed=1
}

measure 2048_16x128_d128 --prompt 2048 --responses 16 --response-length 128 --head-dim 128
measure 2048_16x128_d64 --prompt 2048 --responses 16 --response-length 128 --head-dim 64
measure 1024_64_ragged_d64 --prompt 1024 --lengths "$ragged" --head-dim 64
measure 2048_1x1024_d128 --prompt 2048 --responses 1 --response-length 1024 --head-dim 128
measure 2048_16x128_d128_bf16 --prompt 2048 --responses 16 --response-length 128 --head-dim 128 --dtype bf16
exit $failed

#!/bin/sh
# run.sh BUILD - runs every test that needs no GPU: the Criterion programs in BUILD/tests, then the shell checks tests/test_*.sh.
#
# Each program prints its own failures; each gets one line here with its count and seconds.  The last line is
# "N passed, N failed" over all of them.  Exit code 0 only when nothing failed, nothing crashed and something ran.
set -u
build=${1:?usage: tests/run.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd)
case $build in /*) ;; *) build=$PWD/$build ;; esac
cd "$here/.." || exit 1
export OMP_WAIT_POLICY=passive # tests share the cores; a spinning thread would steal them
passed=0; failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# A line for one program: name, counts, seconds. $1 name, $2 passed, $3 failed, $4 start
line() {
  printf '%-28s %5d passed %3d failed  %4d s\n' "$1" "$2" "$3" $(($(date +%s) - $4))
  passed=$((passed + $2)); failed=$((failed + $3))
}

for source in tests/test_*.c; do
  name=$(basename "$source" .c); start=$(date +%s)
  "$build/tests/$name" >"$log" 2>&1; code=$?
  # Tests crash in a process of their own, and the closing line counts them.  No closing line: Criterion's runner died, as it does
  # now and then when a worker is held up for long.  It gets one more try, and that is said.
  if ! grep -q 'Synthesis: Tested' "$log"; then
    echo "$name: the runner died (exit code $code) without its closing line; once more"
    "$build/tests/$name" >"$log" 2>&1; code=$?
  fi
  counts=$(sed -n 's/.*Synthesis: Tested: *\([0-9]*\) *| *Passing: *\([0-9]*\) *| *Failing: *\([0-9]*\) *| *Crashing: *\([0-9]*\).*/\2 \3 \4/p' "$log" |
    sed 's/\x1b\[[0-9;]*m//g' | tail -n 1)
  good=0; bad=0; crashed=0
  # shellcheck disable=SC2086  # three numbers
  [ -n "$counts" ] && { set -- $counts; good=$1; bad=$2; crashed=$3; }
  bad=$((bad + crashed))
  [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1          # died without a closing line
  [ "$good" -eq 0 ] && [ "$bad" -eq 0 ] && bad=1          # ran nothing
  if [ "$bad" -ne 0 ]; then cat "$log"; else grep -E 'SKIP' "$log"; fi
  line "$name" "$good" "$bad" "$start"
done

for script in tests/test_*.sh; do
  [ -e "$script" ] || continue
  start=$(date +%s)
  sh "$script" "$build" >"$log" 2>&1; code=$?
  # shellcheck disable=SC2046  # two numbers
  set -- $(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log" | tail -n 1)
  good=${1:-0}; bad=${2:-0}
  [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  [ "$good" -eq 0 ] && [ "$bad" -eq 0 ] && bad=1
  [ "$bad" -ne 0 ] && cat "$log"
  line "$(basename "$script")" "$good" "$bad" "$start"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/sh
# run_fuzz.sh SECONDS FUZZER... - runs each libFuzzer program for SECONDS; a finding is kept in the current folder and fails.
#
# A corpus lies beside the source in tests/fuzz/NAME.corpus when there is one; nothing is added to it.
set -u
seconds=${1:?usage: tests/run_fuzz.sh SECONDS FUZZER...}; shift
[ $# -gt 0 ] || { echo "run_fuzz: there is no fuzzer" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
passed=0; failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for fuzzer in "$@"; do
  name=$(basename "$fuzzer")
  corpus=$here/fuzz/$name.corpus
  work=$(mktemp -d)
  [ -d "$corpus" ] && cp "$corpus"/* "$work"
  if "$fuzzer" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=10 -print_final_stats=1 "$work" \
      >"$log" 2>&1; then
    passed=$((passed + 1))
    echo "$name: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, no finding"
  else
    failed=$((failed + 1))
    tail -n 40 "$log"; echo "$name: FOUND SOMETHING"
  fi
  rm -rf "$work"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/bin/sh
# run_host.sh PROGRAM... - runs the programs of tests/gpu that need no GPU; the last line is "N passed, N failed".
set -u
passed=0; failed=0
for program in "$@"; do
  if text=$("$program" 2>&1); then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL: $program"; fi
  echo "$text" | grep -vE '^pass ' | tail -n 12
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

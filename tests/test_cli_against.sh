#!/bin/sh
# test_cli_against.sh BUILD - `dualkv check --against` says in one line which tensor and row of two backends differ most.
#
# The last line is "N passed, N failed".
set -u
build=${1:?usage: tests/test_cli_against.sh BUILD}
cases=$(cd "$(dirname "$0")/cases" && pwd)
passed=0; failed=0
hold() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL: $2"; fi; }

text=$("$build/dualkv" check "$cases/smallest.safetensors" "$cases/huge_scores.safetensors" --backend cpu --against ref)
hold $? "the backends agree"
named=$(echo "$text" | sed -n 's/^differs most: \([a-z_]* [a-z]*\), .* in row \([0-9]*\), index \([0-9]*\): .*/\1 \2 \3/p')
[ "$(echo "$text" | grep -c '^differs most: ')" -eq 1 ] && [ -n "$named" ]
hold $? "one line names case, tensor, row and index, not: $named"
# the same from the table: the first line with the largest error by its bound
want=$(echo "$text" | awk '/ pass$/ { share = $(NF - 5) / $(NF - 4); if (!seen++ || share > most) { most = share
  named = $1 " " $(NF - 6) " " $(NF - 2) " " $(NF - 1) } } END { print named }')
[ "$named" = "$want" ]
hold $? "it is the first of the table's largest: $named, not $want"
"$build/dualkv" check "$cases/smallest.safetensors" --backend cpu | grep -q '^differs most'
[ $? -eq 1 ]
hold $? "without --against the line is not there"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

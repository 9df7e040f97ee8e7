#!/bin/sh
# check_files.sh - rules about files that no compiler knows: length, width, who includes whom, who prints, what is left over.
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0; failed=0
tracked() { git ls-files -- "$@" 2>/dev/null; }

# rule NAME TEXT: holds when TEXT is empty
rule() {
  if [ -z "$2" ]; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1)); echo "FAIL: $1"; echo "$2" | head -n 10 | sed 's/^/  /'
}

sources=$(tracked '*.c' '*.h' '*.cu' '*.cuh')
[ -n "$sources" ] || { echo "check_files: git knows no source file here" >&2; exit 1; }
# shellcheck disable=SC2086,SC2046  # file names without spaces, a word each
{
  rule "no source file has more than 400 lines" "$(wc -l $sources | awk '$2 != "total" && $1 > 400 { print $2 ": " $1 }')"
  rule "no line has more than 120 columns" "$(LC_ALL=C.UTF-8 grep -nE '.{121}' $sources | cut -c 1-100)"
  rule "cpu and gpu do not include each other" \
    "$(grep -nE '#include "gpu/' $(tracked 'cpu/*') /dev/null; grep -nE '#include "cpu/' $(tracked 'gpu/*') /dev/null)"
  rule "common includes nothing from above" "$(grep -nE '#include "(cpu|gpu|tools)/' $(tracked 'common/*') /dev/null)"
  rule "library code does not print, exit or abort" \
    "$(grep -nE '(^|[^a-z_])(exit|abort|printf|puts|putchar|perror)\(' $(tracked 'common/*.c' 'common/*.h' 'cpu/*.c' 'cpu/*.h' 'gpu/*.cu' 'gpu/*.cuh') /dev/null |
      grep -vE '__attribute__|^[^:]*:[0-9]*: *(\*|//|/\*)')"
  rule "nothing is left to do" "$(grep -nE '\b(TODO|FIXME|XXX)\b' $sources /dev/null)"
  rule "no fast-math for whole files" "$(grep -nE -e '-ffast-math|-Ofast|--?use_fast_math' Makefile $sources)"
  rule "every kernel's file is there" \
    "$(sed -n 's/.*DKV_KERNEL([^"]*"\([^"]*\)".*/\1/p' common/kernels.def | sort -u | while read -r f; do [ -e "$f" ] || echo "$f"; done)"
}
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

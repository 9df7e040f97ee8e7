#!/usr/bin/env bash
# Judges the tutorials' exercises, and judges the judges.
#
#   tests/run_exercises.sh BUILD            all: every skeleton must fail, every solution pass, every wrong answer be caught, and a
#                                           parameter typed in be noticed (freeze_parameters.py)
#   tests/run_exercises.sh BUILD CH=04      what `make exercise CH=04`, or CH=4, runs: the student's own files of one chapter
#
# An exercise is a function with one hole.  tutorials/exercises/chNN_name.c is the student's file; tutorials/judges/chNN_name.c holds
# main(), which compares it with the library; tutorials/solutions/ has the answer; tutorials/wrong/chNN_name__why.c are answers that
# look right, each with a first line  "// caught: TEXT"  where TEXT must stand in what the judge says.  A skeleton's first line is of
# the same form.  Judges exit 0 when the answer is right, 1 with a sentence when it is not.
#
# Where the compiler has them, exercises run under the address and undefined-behaviour sanitizers: an index out of range is then a line
# number, not a crash or a wrong number somewhere else.  EXERCISES names another folder of answers, LIMIT other seconds for one (20).
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: run_exercises.sh BUILD [CH=NN]}
chapter=${2:-}
chapter=${chapter#CH=}
out=$build/exercises
mkdir -p "$out"
passed=0 failed=0
sanitize=-fsanitize=address,undefined
echo 'int main(void) { return 0; }' | ${CC:-gcc} -x c - $sanitize -o "$out/probe" 2>/dev/null && "$out/probe" 2>/dev/null || sanitize=
export ASAN_OPTIONS=detect_leaks=0:exitcode=99 UBSAN_OPTIONS=print_stacktrace=0

# compile NAME FILE: links the file with its judge; the compiler's words, warnings too, go to compile.log
compile() {
  ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O1 -g -I. -Wall -Wextra -fopenmp ${sanitize:+$sanitize -fno-sanitize-recover=all} "$2" \
    "tutorials/judges/$1.c" -o "$out/run_$1" -L"$build" -ldualkv -lm -Wl,-rpath,"$(cd "$build" && pwd)" 2>"$out/compile.log"
}

# digest FILE: what was said to stderr, with a report of the address sanitizer as one sentence about FILE
digest() {
  awk -v file="$1" '
    /^=+$|AddressSanitizer:DEADLYSIGNAL/ { next }
    /ERROR: AddressSanitizer/ { report = 1; kind = $3; next }
    !report { print; next }
    /^(READ|WRITE) of size/ && !what { what = ($1 == "READ" ? "reads " : "writes ") $4 " bytes outside its array" }
    /^ *#[0-9]/ && !at && (i = index($0, file ":")) { at = file ":" int(substr($0, i + length(file) + 1)) }
    END {
      if (!report) exit
      if (kind == "SEGV") what = "follows a pointer that leads nowhere"
      if (kind == "stack-overflow") what = "calls itself without end, or keeps an array too large for the stack"
      if (!what) what = "is stopped"
      print (at ? at : file) ": your code " what " (" kind ")"
    }' "$out/stderr.log"
}

# expect NAME FILE red|green: one line of verdict
expect() {
  local text rc want
  if ! compile "$1" "$2"; then failed=$((failed + 1)); cat "$out/compile.log"; echo "FAIL $2 does not compile"; return; fi
  text=$(timeout 60 "$out/run_$1" 2>&1); rc=$?
  want=$(sed -n '1s,^// caught: ,,p' "$2")
  if [ "$3" = green ]; then
    [ $rc -eq 0 ] && { passed=$((passed + 1)); return; }
    echo "FAIL $2 should pass, but the judge says: $text"
  elif [ $rc -ne 1 ]; then
    echo "FAIL $2 should be refused with exit code 1, but it gave $rc: $text"
  elif [ -z "$want" ]; then
    echo "FAIL $2 has no first line '// caught: TEXT'"
  elif [[ "$text" != *"$want"* ]]; then
    echo "FAIL $2 should be caught with '$want', but the judge says: $text"
  else
    passed=$((passed + 1)); return
  fi
  failed=$((failed + 1))
}

if [ $# -ge 2 ]; then
  found=0
  answers=${EXERCISES:-tutorials/exercises} limit=${LIMIT:-20}
  for file in "$answers"/ch"$chapter"_*.c "$answers"/ch0"$chapter"_*.c; do
    [ -e "$file" ] || continue
    found=1
    name=$(basename "$file" .c)
    echo "== $file"
    if ! compile "$name" "$file"; then
      cat "$out/compile.log"
      echo "$file does not compile: begin with the first error above"
      failed=$((failed + 1))
      continue
    fi
    cat "$out/compile.log"
    { timeout "$limit" "$out/run_$name" 2>"$out/stderr.log"; } 2>/dev/null
    rc=$?
    digest "$file"
    if [ $rc -eq 124 ]; then echo "stopped after $limit s: does every loop of yours end?"
    elif [ $rc -ge 128 ]; then echo "stopped by signal $((rc - 128)): an index or a pointer is out of range, as a rule"; fi
    if [ $rc -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done
  [ $found -eq 1 ] || { echo "there is no exercise of chapter '$chapter'; tutorials/exercises lists them" >&2; exit 2; }
  echo "exercises: $passed passed, $failed failed"
  [ $failed -eq 0 ]
  exit
fi

for judge in tutorials/judges/ch*.c; do
  name=$(basename "$judge" .c)
  expect "$name" "tutorials/exercises/$name.c" red
  expect "$name" "tutorials/solutions/$name.c" green
  for wrong in tutorials/wrong/"$name"__*.c; do
    [ -e "$wrong" ] && expect "$name" "$wrong" red
  done
done
if command -v python3 >/dev/null; then # a class may have none; CI has
  frozen=$(python3 tests/freeze_parameters.py "$build" 2>&1) || echo "$frozen"
  counts=$(sed -n 's/^frozen parameters: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' <<<"$frozen")
  [ -n "$counts" ] || counts="0 1"
  passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
fi
echo "exercises: $passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]

#!/bin/sh
# test_exercise.sh BUILD - what a student sees of `make exercise`: for a right answer, a wrong one, and code that crashes, hangs or does
# not compile.  That each judge knows its mistakes is checked by tests/run_exercises.sh.  The last line is "N passed, N failed".
set -u
build=${1:?usage: tests/test_exercise.sh BUILD}
cd "$(dirname "$0")/.." || exit 1
case $build in /*) ;; *) build=$PWD/$build ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0; failed=0; limit=60

# answer CODE TEXT BODY: with BODY in the function of exercise 00, the exit code must be CODE and TEXT stand in what is printed
answer() {
  printf '#include <stdint.h>\nvoid student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, %s) {\n%s\n}\n' \
    'const int32_t *length' "$3" >"$work/ch00_rows.c"
  said=$(EXERCISES=$work LIMIT=$limit tests/run_exercises.sh "$build" CH=0 2>&1); code=$?
  verdict "$1" "$2"
}
verdict() {
  case $code$said in
    "$1"*"$2"*) passed=$((passed + 1)) ;;
    *) failed=$((failed + 1)); echo "FAIL: exit code $1 and '$2' are wanted, it was $code: $said" ;;
  esac
}
total='*packed = prompt; *replicated = 0; for (int n = 0; n < responses; ++n) *packed += length[n], *replicated += prompt + length[n];'
bad=${total#*;} # nothing is set before it is added to

answer 0 "right: three batches" "$total"
answer 1 "was not set to anything before" "$bad"
answer 1 "does not compile: begin with the first error" "$total return 1 +;"
answer 0 "unused variable" "int forgotten; $total"
limit=2
answer 1 "stopped after 2 s: does every loop of yours end?" "for (volatile int i = 1; i;) ; $total"
limit=60
if echo 'int main(void) { return 0; }' | ${CC:-gcc} -x c - -fsanitize=address,undefined -o "$work/probe" 2>/dev/null; then
  loop=$(echo "$total" | sed 's/n < responses/n <= responses/')
  answer 1 "ch00_rows.c:3: your code reads 4 bytes outside its array" "$loop"
  answer 1 "ch00_rows.c:3:" "int *nowhere = 0; *nowhere = prompt; $total"
fi

for chapter in "" 99 00_rows; do
  said=$(tests/run_exercises.sh "$build" CH=$chapter 2>&1); code=$?
  verdict 2 "there is no exercise of chapter '$chapter'"
  said=$(make exercise BUILD="$build" CH=$chapter 2>&1); code=$?
  verdict 2 "make exercise needs CH=NN, the number of a chapter: 00 01"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

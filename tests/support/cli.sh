# cli.sh - how the shell checks look at the program from outside; sourced with the build folder as $1.
#
# Sets dualkv (the program), here (tests/), and work: an empty folder, entered here and removed at the end.  Every check
# prints nothing when it holds; the caller ends with `tally`.
build=${1:?usage: $0 BUILD}
case $build in /*) ;; *) build=$PWD/$build ;; esac
here=$(cd "$(dirname "$0")" && pwd)
dualkv=$build/dualkv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
passed=0; failed=0
seen_out=$work/.stdout; seen_err=$work/.stderr

verdict() { # $1 = 0 when it holds, the rest says what
  held=$1; shift
  if [ "$held" -eq 0 ]; then passed=$((passed + 1)); return 0; fi
  failed=$((failed + 1))
  echo "FAIL: $*"; sed 's/^/  stdout: /' "$seen_out" | tail -n 5; sed 's/^/  stderr: /' "$seen_err" | tail -n 5
  return 1
}

# expect CODE PATTERN ARGUMENTS... : the exit code, and an extended regular expression somewhere in the output.
# With code 2 also: exactly one line on stderr, and it is no crash.
expect() {
  want=$1; pattern=$2; shift 2
  "$dualkv" "$@" >"$seen_out" 2>"$seen_err" </dev/null; got=$?
  if [ "$got" -ne "$want" ]; then verdict 1 "dualkv $*: exit code $got, not $want"; return; fi
  if ! cat "$seen_out" "$seen_err" | grep -Eq -e "$pattern"; then verdict 1 "dualkv $*: no \"$pattern\" in the output"; return; fi
  if [ "$want" -eq 2 ] && [ "$(wc -l <"$seen_err")" -ne 1 ]; then verdict 1 "dualkv $*: not one sentence"; return; fi
  verdict 0
}

# tally : the closing line; succeeds when nothing failed and something ran
tally() { echo "$passed passed, $failed failed"; [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]; }

#!/bin/sh
# setup.sh GROUP... - installs the Debian or Ubuntu packages of tools/packages.txt that are missing.
#
# Nothing is asked and nothing is installed when everything is there.  As root it calls apt-get, otherwise sudo apt-get; where
# neither works it says in one sentence what to install by hand, and exits 1.  SETUP=no only looks.
set -u
here=$(cd "$(dirname "$0")" && pwd)
CC=${CC:-gcc}
command -v "$CC" >/dev/null 2>&1 || CC=cc

# Is the thing there?  $1 = kind:what
present() {
  what=${1#*:}
  case $1 in
    program:*) command -v "$what" >/dev/null 2>&1 ;;
    header:*) printf '#include <stddef.h>\n#include <%s>\n' "$what" | "$CC" -E -x c - >/dev/null 2>&1 ;;
    python:*) python3 -c "import $what" >/dev/null 2>&1 || /usr/bin/python3 -c "import $what" >/dev/null 2>&1 ;;
    clang:-fsanitize=fuzzer)
      probe=$(mktemp) && printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }\n' |
        clang "$what" -x c - -o "$probe" >/dev/null 2>&1; found=$?; rm -f "$probe"; return $found ;;
    clang:*)
      probe=$(mktemp) && printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' |
        clang "$what" -x c - -o "$probe" >/dev/null 2>&1; found=$?; rm -f "$probe"; return $found ;;
    *) echo "setup: packages.txt has an unknown probe '$1'" >&2; exit 1 ;;
  esac
}

# Package names of the wanted groups whose probe fails.
missing() {
  while read -r group package probe; do
    case $group in ''|'#'*) continue ;; esac
    case " $wanted " in *" $group "*) present "$probe" || printf ' %s' "$package" ;; esac
  done <"$here/packages.txt"
}

wanted="$*"
list=$(missing)
[ -z "$list" ] && exit 0
by_hand="install$list by hand (on other systems: the same libraries with their headers, see tools/packages.txt), then run again"
if [ "${SETUP:-yes}" = no ]; then echo "setup: missing:$list; $by_hand" >&2; exit 1; fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: missing:$list, and there is no apt-get here; $by_hand" >&2; exit 1
fi
if [ "$(id -u)" = 0 ]; then as=
elif command -v sudo >/dev/null 2>&1; then as=sudo
else echo "setup: missing:$list, and this user is not root and has no sudo; $by_hand" >&2; exit 1; fi

echo "setup: installing$list"
log=$(mktemp)
# shellcheck disable=SC2086  # the list is several words
if ! { $as apt-get update && $as env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $list; } \
    >"$log" 2>&1 </dev/null; then
  tail -n 5 "$log" >&2; rm -f "$log"
  echo "setup: apt-get could not install$list; $by_hand" >&2; exit 1
fi
rm -f "$log"
list=$(missing)
[ -z "$list" ] || { echo "setup: apt-get finished, but$list still cannot be found" >&2; exit 1; }

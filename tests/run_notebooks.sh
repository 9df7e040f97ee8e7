#!/bin/sh
# run_notebooks.sh BUILD [--update] [NN ...] - judges notebooks/: are they what their sources give, does each lab run, are holes and
# wrong answers caught?  --update renews them instead.  Needs matplotlib, nbclient and ipykernel in one Python (tools/setup.sh notebooks).
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1; shift
for python in python3 /usr/bin/python3 none; do
  [ "$python" != none ] || { echo "run_notebooks: no python3 here has matplotlib, nbclient and ipykernel; tools/setup.sh notebooks installs them" >&2; exit 1; }
  "$python" -c 'import matplotlib, nbclient, ipykernel' 2>/dev/null && break
done
DUALKV_LIBRARY=$build/libdualkv.so; OMP_WAIT_POLICY=passive; PYTHONDONTWRITEBYTECODE=1
export DUALKV_LIBRARY OMP_WAIT_POLICY PYTHONDONTWRITEBYTECODE
case " $* " in
  *" --update "*) "$python" tools/make_notebooks.py || exit 1 ;;
  *) "$python" tools/make_notebooks.py --check && "$python" notebooks/test_lab.py || exit 1 ;;
esac
exec "$python" tests/run_notebooks.py "$@"

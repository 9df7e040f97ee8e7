#!/bin/sh
# check_ptxas.sh LOG... - reads what ptxas said about each file of the GPU backend (build/gpu/.../NAME.cu.ptxas).
#
# Fails on a performance warning of the C75xx or C76xx family (wgmma serialised, setmaxnreg ignored) anywhere, on a register
# spilled by a tensor-core kernel (a path that says mma, pipeline or hopper), and when it was given nothing to read.
# -v also prints a line per kernel: registers, barriers, stack, spills.
set -u
verbose=0
if [ "${1:-}" = -v ]; then verbose=1; shift; fi
[ $# -gt 0 ] || { echo "check_ptxas: no log to read" >&2; exit 1; }
awk -v verbose=$verbose '
  function tensor(file) { return file ~ /mma|pipeline|hopper/ }
  FNR == 1 { files++ }
  /\(C7[56][0-9][0-9]\)/ { print FILENAME ": " $0; warnings++ }
  /Compiling entry function/ { split($0, quoted, "\047"); name = quoted[2]; arch = quoted[4]; kernels++ }
  /Function properties for/ { name = $NF }
  /bytes spill stores/ {
    spill = $5 + $9; stack = $1
    if (spill > 0) { spilled++; if (tensor(FILENAME)) { print FILENAME ": " name " (" arch ") spills " spill " bytes"; bad++ } }
  }
  /Used [0-9]+ registers/ {
    if (verbose) {
      for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
      printf "%-7s %3d registers %5d stack %5d spilled  %s\n", arch, registers, stack, spill, name
    }
  }
  END {
    printf "ptxas: %d files, %d kernels, %d with spills (%d of them on tensor cores), %d performance warnings\n",
           files, kernels, spilled, bad, warnings
    if (kernels == 0) print "check_ptxas: the logs name no kernel"
    exit (bad + warnings > 0 || kernels == 0)
  }' "$@"

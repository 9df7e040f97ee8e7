#!/bin/sh
# check_sass.sh [--fetch DIR] OBJECT... - reads in the machine code which instructions the tensor-core kernels consist of.
#
#   path says    every kernel that multiplies     and none of       at least one such kernel for
#   hopper       HGMMA and UTMALDG                HMMA              sm_90a      (wgmma, bulk tensor copies)
#   mma          HMMA and LDSM                    HGMMA             sm_80, sm_90    (mma.sync, ldmatrix)
#   pipeline     HMMA, LDSM and LDGSTS            HGMMA             sm_80, sm_90    (and cp.async)
#   any other    -                                HMMA, HGMMA       -
#
# And every file but Hopper's holds PTX besides, for cards newer than sm_90.
#
# A kernel multiplies when it holds HMMA or HGMMA anywhere, so what is said of a kernel is said of its main loop.  The
# disassembler is $CUOBJDUMP, or cuobjdump on PATH, beside nvcc or in DIR; --fetch installs NVIDIA's from PyPI into DIR when
# there is none.  Without any it says so and exits 0: nothing was read.
set -u
fetch=
if [ "${1:-}" = --fetch ]; then fetch=$2; shift 2; fi
[ $# -gt 0 ] || { echo "check_sass: no object to read" >&2; exit 1; }

find_disassembler() {
  for tool in "${CUOBJDUMP:-}" "$(command -v cuobjdump 2>/dev/null)" /usr/local/cuda/bin/cuobjdump \
    ${fetch:+"$fetch"/nvidia/*/bin/cuobjdump}; do
    if [ -n "$tool" ] && [ -x "$tool" ] && "$tool" --version >/dev/null 2>&1; then return 0; fi
  done
  return 1
}
if ! find_disassembler && [ -n "$fetch" ]; then
  python3 -m pip install --quiet --disable-pip-version-check --target "$fetch" 'nvidia-cuda-cuobjdump>=13,<14' \
    'nvidia-cuda-nvdisasm>=13,<14' >/dev/null 2>&1 </dev/null
fi
find_disassembler || {
  echo "check_sass: no cuobjdump here and none to be had from PyPI, so no machine code was read"
  exit 0
}

for object in "$@"; do
  echo "== $object"
  "$tool" -sass "$object" 2>/dev/null | awk '/Function :|arch = |Fatbin ptx| HGMMA| HMMA| UTMALDG| LDSM| LDGSTS/'
done | awk '
  function fail(text) { print "FAIL: " file ": " text; bad++ }
  function kernel_ends(   what) {
    if (name == "") return
    kernels++
    what = name " (" arch ")"
    multiplies = count["HMMA"] + count["HGMMA"]
    if (kind == "other") { if (multiplies) fail(what " uses tensor cores, which its name does not say") }
    else if (multiplies) {
      seen[arch]++; judged++
      need = kind == "hopper" ? "HGMMA UTMALDG" : kind == "mma" ? "HMMA LDSM" : "HMMA LDSM LDGSTS"
      n = split(need, word, " ")
      for (i = 1; i <= n; i++) if (!count[word[i]]) fail(what " holds no " word[i])
      unwanted = kind == "hopper" ? "HMMA" : "HGMMA"
      if (count[unwanted]) fail(what " holds " count[unwanted] " " unwanted)
    }
    name = ""
  }
  function file_ends() {
    kernel_ends()
    if (file != "" && kind != "hopper" && !ptx) fail("no PTX for newer cards")
    if (file == "" || kind == "other") return
    n = split(kind == "hopper" ? "sm_90a" : "sm_80 sm_90", word, " ")
    for (i = 1; i <= n; i++) if (!seen[word[i]]) fail("no kernel for " word[i] " multiplies on tensor cores")
  }
  /^== / {
    file_ends()
    file = $2; files++; ptx = 0; split("", seen)
    base = file; sub(/.*\//, "", base)
    kind = base ~ /hopper/ ? "hopper" : base ~ /pipeline/ ? "pipeline" : base ~ /mma/ ? "mma" : "other"
    next
  }
  /^Fatbin ptx/ { ptx = 1; next }
  /arch = / { kernel_ends(); arch = $3; next }
  /Function :/ { kernel_ends(); name = $3; split("", count); next }
  { for (i = 1; i <= NF; i++) if (match($i, /^(HGMMA|HMMA|UTMALDG|LDSM|LDGSTS)/)) { count[substr($i, 1, RLENGTH)]++; break } }
  END {
    file_ends()
    printf "sass: %d files, %d kernels, %d of them on tensor cores, %d wrong\n", files, kernels, judged, bad
    if (judged == 0) print "check_sass: no kernel uses tensor cores"
    exit (bad > 0 || judged == 0)
  }'

#!/bin/sh
# test_cli.sh BUILD - the program from outside: what it prints, its exit codes, what it leaves behind.
#
# 0 all is well, 1 a comparison failed, 2 a bad flag, file, shape or backend, with one sentence on stderr.  Every check
# prints nothing when it holds; the last line is "N passed, N failed".
set -u
# shellcheck source=tests/support/cli.sh
. "$(dirname "$0")/support/cli.sh"
cases=$here/cases
tool=$build/tests/tool_case

# --- help and usage ---------------------------------------------------------------------------------------------------
expect 0 'usage: dualkv COMMAND' --help
expect 0 'commit ' --version
for command in demo layout cost count attention check bench kernels; do
  expect 0 "^  $command " --help
  expect 0 "usage: dualkv $command" "$command" --help
  expect 2 "no flag --colour" "$command" --colour
  expect 2 "no flag -z" "$command" -z
done
"$dualkv" >"$seen_out" 2>"$seen_err"; verdict $(($? != 2)) "no command: exit code 2"
expect 2 'no command "frobnicate"' frobnicate
expect 2 'takes no file' bench stray
expect 2 'takes no file' kernels stray
expect 2 -- '--tile needs a value' layout --prompt 1 --responses 1 --response-length 1 --tile
expect 2 'whole number, not "many"' layout --prompt many
expect 2 'whole number, not "1.5"' layout --prompt 1.5
expect 2 'whole number, not ""' layout --prompt=
expect 2 'it goes from 0 to' layout --prompt -3
expect 2 'it goes from 0 to' layout --prompt 99999999999
expect 2 'it goes from 1 to' layout --prompt 1 --lengths 1 --tile 0
expect 2 'takes no value' attention --deterministic=yes
expect 2 'no command "two.lines"' 'two
lines'
expect 2 'no flag --two.lines' layout '--two
lines'
# What could not be printed is no success.
for command in --help "layout --prompt 3 --lengths 2" "cost --prompt 3 --lengths 2 --json" kernels; do
  # shellcheck disable=SC2086  # the command is words
  "$dualkv" $command >/dev/full 2>"$seen_err"; got=$?
  grep -q 'standard output cannot be written' "$seen_err" && [ $got -eq 2 ]
  verdict $? "dualkv $command into a full disk: exit code $got"
done

# --- layout and cost --------------------------------------------------------------------------------------------------
expect 0 '6 b +p +p +p +\. +\. +b +b' layout --prompt 3 --responses 2 --response-length 2
expect 0 '^7 rows, 24 visible pairs, 4 predicted tokens' layout --prompt=3 --lengths=2,2
expect 0 'tiles of 4 x 4: .* useful' layout --prompt 5 --lengths 3,0,4 --tile 4
expect 0 'replicated: a copy' layout --prompt 3 --lengths 2,2 --replicated
expect 0 '^18 rows' layout --group 3:2,2 --group 4:1,0,6
expect 0 '^5 rows' layout --tree=-1:2,0:1,1:0,0:2
expect 0 '^0 rows' layout --prompt 0 --responses 0 --response-length 0
expect 0 '^[0-9 ]+ rows' layout "$cases/two_prompts.safetensors"
expect 2 'no layout is given' layout
expect 2 'prompt is missing' layout --responses 2
expect 2 'goes with --responses' layout --prompt 3 --responses 2
expect 2 'goes without' layout --prompt 3 --lengths 2 --responses 2
expect 2 'three ways' layout --prompt 3 --lengths 2 --tree=-1:1
expect 2 'separated by commas' layout --prompt 3 --lengths 2,x
expect 2 'separated by commas' layout --prompt 3 --lengths 2,
expect 2 'a length is 0 to' layout --prompt 3 --lengths 2,-1
expect 2 '.' layout --tree=-1:2,5:1
expect 2 '.' layout --tree=-1:2,0
expect 2 '.' layout --tree=-1:2,0:1,-1:1,0:1
expect 2 '.' layout --prompt 2147480000 --responses 2 --response-length 2147480000
expect 2 'not from both' layout "$cases/smallest.safetensors" --prompt 3 --lengths 1
expect 2 'is the second' layout "$cases/smallest.safetensors" "$cases/smallest.safetensors"
expect 2 'colon' layout --group 3
expect 0 'rho = 8.2957 ' cost --prompt 1000 --responses 16 --response-length 66 --layers 1
expect 0 '"rho":' cost --prompt 1000 --lengths 100,20 --json
expect 0 'nothing is shared' cost --prompt 10 --lengths 5
expect 2 'no multiple of' cost --prompt 10 --lengths 5 --heads 6 --kv-heads 4
expect 2 'it goes from 1' cost --prompt 10 --lengths 5 --layers 0
expect 0 '^ +1 +24 +30 +1.25 ' count --prompt 3 --lengths 2,2 --heads 1 --kv-heads 1 --rows 1,4
expect 0 'sums of dk and dv' count --prompt 300 --lengths 20,30 --dtype f32
expect 0 '^0 rows packed' count --prompt 0 --responses 0 --response-length 0
expect 2 'no multiple of|multiple' count --prompt 10 --lengths 5 --heads 6 --kv-heads 4
expect 2 'at least 1' count --prompt 10 --lengths 5 --rows 4,0
expect 2 'separated by commas' count --prompt 10 --lengths 5 --rows 4,x
expect 2 'f64' count --prompt 10 --lengths 5 --dtype f64
expect 0 'cpu +forward +tiled +yes' kernels
expect 0 '^cpu: .* threads' kernels --backend cpu
expect 2 'no backend "tpu"' kernels --backend tpu
expect 0 '^\| gpu \| forward \|' kernels --markdown

# --- cases: check, attention, judge -----------------------------------------------------------------------------------
expect 0 '^50 passed, 0 failed$' check "$cases"/*.safetensors --backend ref
expect 0 '^50 passed, 0 failed$' check "$cases"/*.safetensors
expect 0 '^5 passed, 0 failed$' check "$cases/smallest.safetensors" --backend cpu --kernel tiled --against ref
expect 0 '^5 passed, 0 failed$' check "$cases/equal_responses.safetensors" --backend ref --against cpu
expect 0 '^5 passed, 0 failed$' check "$cases/equal_responses.safetensors" --dtype bf16
expect 0 '^5 passed, 0 failed$' check "$cases/equal_responses.safetensors" --dtype f16 --threads 1 --deterministic
expect 2 'no backend "tpu"' check "$cases/smallest.safetensors" --backend tpu
expect 2 'no kernel "warp9"' check "$cases/smallest.safetensors" --kernel warp9
expect 2 '.' check "$cases/smallest.safetensors" --dtype f64
expect 2 '.' check "$cases/smallest.safetensors" --dtype i32
expect 2 '.' check "$cases/smallest.safetensors" --dtype float
expect 2 'goes without a case' check "$cases/smallest.safetensors" --law fold
expect 2 'needs the case' check --judge out.safetensors
expect 2 'goes with a case' check --dtype bf16
expect 2 'takes one case' check "$cases/smallest.safetensors" "$cases/two_prompts.safetensors" --judge out.safetensors
expect 2 'law' check --law no_such_law
expect 2 'needs the --backend' check --kernel tiled
expect 2 'no kernel "warp9" on cpu' check --backend cpu --kernel warp9
expect 2 'takes one' attention -o out.safetensors
expect 2 'takes one' attention a b -o out.safetensors
expect 2 'o OUT is missing' attention "$cases/smallest.safetensors"
if ! "$dualkv" kernels | grep -q '^gpu .* yes '; then
  expect 2 'gpu' check "$cases/smallest.safetensors" --backend gpu
  expect 2 'gpu' check "$cases/smallest.safetensors" --against gpu
  expect 2 'gpu' bench --backend gpu --prompt 4 --lengths 1
  "$dualkv" check "$cases/smallest.safetensors" --against gpu >"$seen_out" 2>"$seen_err"
  [ ! -s "$seen_out" ] && [ "$(wc -l <"$seen_err")" -eq 1 ]
  verdict $? "check against a backend that is not here: one sentence, and no heading above it"
fi

# One element of any output, changed by its own size or to NaN, is found and named.
for case in "$cases"/*.safetensors; do
  name=$(basename "$case" .safetensors)
  expect 0 "o, lse, dq, dk, dv" attention "$case" -o out.safetensors
  expect 0 '^5 passed, 0 failed$' check "$case" --judge out.safetensors
  for tensor in o lse dq dk dv; do
    # shellcheck disable=SC2046  # the sizes are words
    set -- $("$tool" shape out.safetensors $tensor)
    rows=$1; width=1; shift
    for size in "$@"; do width=$((width * size)); done
    count=$((rows * width))
    for k in 1 2 3; do
      at=$((k * 7919 % count)); tries=0
      value=$("$tool" print out.safetensors $tensor $at)
      # What is 0, or beyond the reach of 16-bit rounding, has no size of its own: take another element.
      while [ $tries -lt 200 ] && awk -v v="$value" 'BEGIN { if (v < 0) v = -v; exit !(v < 1e-3) }'; do
        at=$(((at + 97) % count)); tries=$((tries + 1)); value=$("$tool" print out.safetensors $tensor $at)
      done
      for change in double nan; do
        [ $change = nan ] && [ $k -ne 1 ] && continue
        "$tool" set out.safetensors changed.safetensors $tensor $at $change || verdict 1 "tool_case set $name $tensor $at"
        expect 1 "FAIL: $tensor row $((at / width)), index $((at % width)) is" check "$case" --judge changed.safetensors
      done
    done
  done
done

# Outputs that are not what they should be.
case=$cases/equal_responses.safetensors
"$dualkv" attention "$case" -o out.safetensors >/dev/null
"$tool" drop out.safetensors bad.safetensors dk;               expect 2 'no tensor dk' check "$case" --judge bad.safetensors
"$tool" cast out.safetensors bad.safetensors dq i32;           expect 2 'dq' check "$case" --judge bad.safetensors
"$tool" cast out.safetensors bad.safetensors lse bf16;         expect 2 'lse is bf16' check "$case" --judge bad.safetensors
"$tool" reshape out.safetensors bad.safetensors o 1,2;         expect 2 '.' check "$case" --judge bad.safetensors
# shellcheck disable=SC2046
set -- $("$tool" shape out.safetensors o)
"$tool" reshape out.safetensors bad.safetensors o "$2,$1,$3";  expect 2 'o' check "$case" --judge bad.safetensors
"$tool" cast out.safetensors wide.safetensors o f64;           expect 0 '^5 passed' check "$case" --judge wide.safetensors
expect 2 'no_such_file' check "$case" --judge no_such_file
expect 0 '^5 passed' check "$case" --judge "$case"
expect 2 '.' check "$case" --judge "$cases/smallest.safetensors"
"$dualkv" attention "$case" -o bf16.safetensors --dtype bf16 >/dev/null
expect 0 'rounded to it' check "$case" --judge bf16.safetensors

# The same bits for any number of threads, and twice in a row.
for case in "$cases"/*.safetensors; do
  for n in 1 2 3; do "$dualkv" attention "$case" -o "threads$n.safetensors" --threads $((n < 3 ? n : 2)) >/dev/null 2>&1; done
  cmp -s threads1.safetensors threads2.safetensors && cmp -s threads2.safetensors threads3.safetensors
  verdict $? "$(basename "$case"): 1 thread, 2 threads and 2 threads again give the same bits"
done

# --- bad files: one sentence, exit code 2, little memory, nothing left behind -----------------------------------------
# raw FILE JSON [DATA]: a safetensors file with this header.
raw() {
  length=$(printf '%s' "$2" | wc -c)
  # shellcheck disable=SC2059  # the format is the bytes
  { printf "\\$(printf %o $((length % 256)))\\$(printf %o $((length / 256 % 256)))\\0\\0\\0\\0\\0\\0"; printf '%s' "$2"; printf '%s' "${3:-}"; } >"$1"
}
# The address sanitizer reserves terabytes of addresses: there the limit is left out.
# shellcheck disable=SC3045  # dash and bash have ulimit -v
if (ulimit -v 3000000; "$dualkv" --version) >/dev/null 2>&1; then limit=3000000; else limit=unlimited; fi
# refused PATTERN FILE: by every command that reads a case, within 3 GB of address space.
refused() {
  for command in check layout cost; do
    # shellcheck disable=SC3045  # dash and bash have it
    (ulimit -v $limit; exec "$dualkv" $command "$2" >"$seen_out" 2>"$seen_err" </dev/null); got=$?
    grep -Eq -e "$1" "$seen_err" && [ $got -eq 2 ] && [ "$(wc -l <"$seen_err")" -eq 1 ]
    verdict $? "dualkv $command $2: exit code $got; one sentence with \"$1\" and 2 are wanted"
  done
  rm -f left.safetensors*
  "$dualkv" attention "$2" -o left.safetensors >"$seen_out" 2>"$seen_err" </dev/null; got=$?
  [ $got -eq 2 ] && [ "$(find . -name 'left.safetensors*' | wc -l)" -eq 0 ]
  verdict $? "dualkv attention $2: exit code $got, files left: $(find . -name 'left.safetensors*' | tr '\n' ' ')"
}
case=$cases/equal_responses.safetensors
refused 'no_such_file' no_such_file
mkdir folder; refused 'folder' folder
: >empty.safetensors; refused 'empty' empty.safetensors
head -c 7 "$case" >short.safetensors; refused 'short' short.safetensors
head -c 100 "$case" >header.safetensors; refused 'header' header.safetensors
head -c 20000 "$case" >cut.safetensors; refused 'cut' cut.safetensors
{ cat "$case"; printf 'more'; } >long.safetensors; refused 'long' long.safetensors
printf '\377\377\377\377\377\377\377\177{}' >huge.safetensors; refused 'huge' huge.safetensors
raw nojson.safetensors '{"q": nonsense'; refused 'nojson' nojson.safetensors
raw list.safetensors '[]'; refused 'list' list.safetensors
raw none.safetensors '{}'; refused 'q' none.safetensors
raw type.safetensors '{"q":{"dtype":"COMPLEX","shape":[1],"data_offsets":[0,4]}}' 1234; refused 'q' type.safetensors
raw overlap.safetensors '{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"k":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}' 123456
refused '[qk]' overlap.safetensors
raw rows.safetensors '{"q":{"dtype":"F32","shape":[1000000000000,1,8],"data_offsets":[0,32000000000000]}}' 1234; refused 'q' rows.safetensors
raw wrap.safetensors '{"q":{"dtype":"F32","shape":[4611686018427387904,4,8],"data_offsets":[0,4]}}' 1234; refused 'q' wrap.safetensors
raw negative.safetensors '{"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}' 1234; refused 'q' negative.safetensors
for tensor in q k v 'do'; do
  "$tool" set "$case" bad.safetensors $tensor 5 nan; refused "$tensor" bad.safetensors
done
"$tool" set "$case" bad.safetensors o 5 inf; refused 'o' bad.safetensors
for tensor in q k v segment_parent segment_length; do
  "$tool" drop "$case" bad.safetensors $tensor; refused "$tensor" bad.safetensors
done
"$tool" cast "$case" bad.safetensors k bf16; refused 'k' bad.safetensors
"$tool" cast "$case" bad.safetensors q i32; refused 'q' bad.safetensors
"$tool" cast "$case" bad.safetensors segment_length u8; refused 'segment_length' bad.safetensors
"$tool" set "$case" bad.safetensors segment_length 0 -5; refused '.' bad.safetensors
"$tool" set "$case" bad.safetensors segment_length 0 1000000000; refused '.' bad.safetensors
"$tool" set "$case" bad.safetensors segment_parent 1 4; refused '.' bad.safetensors
"$tool" set "$case" bad.safetensors segment_parent 0 0; refused '.' bad.safetensors
# shellcheck disable=SC2046
set -- $("$tool" shape "$case" q)
"$tool" reshape "$case" bad.safetensors q "$1,$(($2 * $3))"; refused 'q' bad.safetensors
"$tool" reshape "$case" bad.safetensors q "$1,$(($2 * 4)),$(($3 / 4))"; refused '.' bad.safetensors
# A good case among bad ones is still checked, and the exit code is that of the bad one.
"$dualkv" check empty.safetensors "$cases/smallest.safetensors" >"$seen_out" 2>"$seen_err"; got=$?
grep -q '^5 passed, 0 failed$' "$seen_out" && [ $got -eq 2 ]
verdict $? "check of a bad and a good case: exit code $got, and the good one is checked"
# Where OUT cannot be written.
expect 2 'overwrite the case' attention "$cases/smallest.safetensors" -o "$cases/smallest.safetensors"
expect 2 'no_such_folder' attention "$cases/smallest.safetensors" -o no_such_folder/out.safetensors
mkdir out_is_a_folder; expect 2 'out_is_a_folder' attention "$cases/smallest.safetensors" -o out_is_a_folder
expect 0 'lse' attention "$cases/smallest.safetensors" -o fresh.safetensors
[ "$(find . -name 'fresh*' -o -name 'out_is_a_folder?*' -o -name 'no_such*' | wc -l)" -eq 1 ]
verdict $? "only the finished file is left: $(find . -name 'fresh*' | tr '\n' ' ')"

# --- bench ------------------------------------------------------------------------------------------------------------
shape="--prompt 64 --responses 4 --response-length 16 --heads 2 --kv-heads 1 --head-dim 32 --repeats 3 --matmul-size 128"
# shellcheck disable=SC2086  # flags are words
{
  expect 0 'backward +tiled' bench $shape
  expect 0 'left out by --packed-only' bench $shape --packed-only
  expect 0 '"sgemm_gflops":' bench $shape --json
  for key in schema commit date device threads openblas_core rho A forward_ratio backward_ratio forward_ms backward_ms useful_gflops peak_bytes; do
    expect 0 "\"$key\":" bench $shape --json
  done
  expect 2 'H|heads' bench $shape --heads 3 --kv-heads 2
  expect 2 'D|head' bench $shape --head-dim 12
  expect 2 'D|head' bench $shape --head-dim 264
}
expect 2 'nothing to time' bench --prompt 0 --lengths 0
expect 2 'no layout is given' bench

tally

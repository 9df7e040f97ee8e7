#!/bin/sh
# test_cli_train.sh BUILD - `dualkv train`, `sample` and `plot` from outside: refusals, files, Ctrl-C and resume to the bit.
#
# Exit codes: 0 all is well, 1 the self-check found a difference, 2 a bad flag or file with one sentence on stderr, 130
# stopped by Ctrl-C after saving.  The last line is "N passed, N failed".
set -u
# shellcheck source=tests/support/cli.sh
. "$(dirname "$0")/support/cli.sh"
warm=$(cd "$here/../tools/warmstart/sort" && pwd)
out=$seen_out; err=$seen_err

lines() { [ -f "$1" ] && [ "$(grep -c "\"kind\":\"$2\"" "$1")" -eq "$3" ]; verdict $? "$1 has not $3 lines of kind $2"; }
small="--task sort --groups 2 --responses 4 --held-out 4"

# --- refusals ---------------------------------------------------------------------------------------------------------
for command in train sample plot; do
  expect 0 "usage: dualkv $command" $command --help
  expect 2 'no flag --colour' $command --colour
done
expect 2 'task is missing' train
expect 2 'must be one of sort, missing' train --task chess
expect 2 'must be one of grpo, dapo' train --task sort --algorithm ppo
expect 2 'packed or replicated' train --task sort --layout padded
expect 2 'keep, drop or resample' train --task sort --dead bury
expect 2 'group of one has nothing to compare' train --task sort --responses 1 --no-warmup --steps 1
expect 2 'it goes from 1' train --task sort --groups 0
# refused at once, not after the warm-up
expect 2 'group of one' train --task sort --responses 1 --output late
[ ! -e late ]; verdict $? "a run that cannot be began"
expect 2 'finite number' train --task sort --lr nan
expect 2 'compare needs --output' train --task sort --compare
expect 2 'json goes without it' train --task sort --compare --output x --json y
expect 2 'compare cannot be resumed' train --task sort --compare --output x --resume
expect 2 'resume needs --output' train --task sort --resume
expect 2 'warm start already' train --task sort --checkpoint "$warm" --warmup-steps 3
expect 2 'keeps no state' train --task sort --exact --resume --output x
expect 2 'computes none' train --task sort --exact --self-check
expect 2 'epochs is 2' train $small --checkpoint "$warm" --exact --epochs 2
expect 2 'holds no run' train --task sort --resume --output nothing_here
expect 2 '.' train --task sort --checkpoint nothing_here
expect 2 'dual_clip is 0.5' train $small --checkpoint "$warm" --dual-clip 0.5
expect 2 'cannot make the directory' train $small --checkpoint "$warm" --output no/such/place --steps 0
expect 2 'cannot write' train $small --checkpoint "$warm" --json no/such/place.jsonl --steps 0
expect 2 'not all metrics could be written' train $small --checkpoint "$warm" --steps 2 --evaluate-every 0 --json /dev/full
expect 2 'are needed' sample --task sort
expect 2 'needs 32 and' sample --task missing --checkpoint "$warm"
expect 2 'OUT.svg is missing' plot x.jsonl
expect 2 'no file of metrics' plot -o x.svg
expect 2 'cannot read' plot nothing.jsonl -o x.svg
echo '{"kind":"run"}' >empty.jsonl
expect 2 'holds no step' plot empty.jsonl -o x.svg
[ ! -e x.svg ] && [ ! -e nothing_here ]; verdict $? "a refusal left a file behind"

# --- a run, its files, its continuation -------------------------------------------------------------------------------
expect 0 'saved +[0-9.]+ x' train $small --checkpoint "$warm" --steps 6 --evaluate-every 3 --output whole
lines whole/metrics.jsonl run 1
lines whole/metrics.jsonl step 6
lines whole/metrics.jsonl evaluation 3
if grep -Eqi 'nan|inf' whole/metrics.jsonl; then verdict 1 "metrics hold a number that is not finite"; else verdict 0; fi
expect 2 'already holds a run' train $small --checkpoint "$warm" --steps 6 --output whole
expect 2 'a run continues with the settings' train $small --checkpoint "$warm" --steps 7 --output whole --resume
expect 2 'whole last layer = 0, but this run has 1' train $small --checkpoint "$warm" --steps 6 --output whole --resume --whole-last-layer
expect 0 'right|wrong' sample --task sort --checkpoint whole --count 2
expect 0 '^  [0-4] of 4 right' sample --task sort --checkpoint whole --count 4
expect 0 'Wrote whole.svg: .*, 1 curve$' plot whole/metrics.jsonl -o whole.svg
expect 0 'Most likely' sample --task sort --checkpoint whole --count 1 --greedy --temperature 0.5 --seed 9
grep -q '<polyline' whole.svg; verdict $? "whole.svg has no curve"

expect 0 'Wrote odd.svg' plot whole/metrics.jsonl -o odd.svg --title 'a < b & c'
grep -q '<title>a &lt; b &amp; c</title>' odd.svg; verdict $? "a title is not written as XML has it"
mkfifo pipe && expect 2 'not a regular file' plot whole/metrics.jsonl -o pipe
[ -p pipe ]; verdict $? "a picture took the place of a pipe"
ln -s real.svg link.svg && : >real.svg && expect 0 'Wrote link.svg' plot whole/metrics.jsonl -o link.svg
[ -L link.svg ] && grep -q '</svg>' real.svg; verdict $? "a picture took the place of a link"

# Stopped twice by Ctrl-C (while the log grows), continued, and the same bits as the run that nobody stopped.
stop_when() { # $1 file, $2 pattern, the rest: arguments
  file=$1; pattern=$2; shift 2
  "$dualkv" "$@" >"$out" 2>"$err" </dev/null &
  child=$!; tries=0
  while ! grep -q "$pattern" "$file" 2>/dev/null && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
  kill -INT $child; wait $child; code=$?
  if [ $code -ne 130 ]; then verdict 1 "stopped by Ctrl-C: exit code $code, not 130"; return; fi
  grep -q -e '--resume' "$out"; verdict $? "it does not say how to resume"
}
long="train --task sort --groups 2 --responses 4 --held-out 4 --evaluate-every 0 --warmup-steps 8 --steps 60 --dead keep"
"$dualkv" $long --output straight >"$out" 2>"$err"; verdict $? "a run of warm-up and 60 steps"
stop_when broken/metrics.jsonl '"kind":"warmup"' $long --output broken
[ -f broken/warmup.state ] && [ ! -e broken/train.state ]; verdict $? "no state of the warm-up alone"
stop_when broken/metrics.jsonl '"kind":"step","step":9' $long --output broken --resume
[ -f broken/train.state ]; verdict $? "no state of the training"
expect 0 'Saved in broken' $long --output broken --resume
cmp -s straight/model.safetensors broken/model.safetensors; verdict $? "a continued run differs from an uninterrupted one"
lines broken/metrics.jsonl step 60
lines broken/metrics.jsonl warmup 2

# A model that is there is never replaced, nor a warm-up thrown away, nor the state of another run written over.
mkdir model && cp "$warm"/* model
expect 2 'already holds a model' train $small --checkpoint model --steps 1 --output model
cmp -s model/model.safetensors "$warm/model.safetensors"; verdict $? "a run replaced a model that was there"
mkdir taught && cp broken/warmup.state taught
expect 2 'which --no-warmup would throw away' $long --output taught --resume --no-warmup
expect 2 'which --checkpoint would throw away' train $small --checkpoint "$warm" --output taught --resume
forever="train --task sort --groups 2 --responses 4 --evaluate-every 0 --steps 9999 --dead keep"
stop_when first.jsonl '"kind":"step"' $forever --checkpoint "$warm" --json first.jsonl
cp dualkv_run/train.state first.state
stop_when 'it'"'"'s.jsonl' '"kind":"step"' $forever --checkpoint "$warm" --json "it's.jsonl"
cmp -s dualkv_run/train.state first.state && [ -f dualkv_run_2/train.state ]; verdict $? "the state of another run was replaced"
grep -q "it'\\\\''s.jsonl' --output dualkv_run_2 --resume" "$out"; verdict $? "the command to resume is not what a shell reads"

# --- nothing to learn from: said, and no number is made up -------------------------------------------------------------
expect 0 'Nothing was learnt: in none of 2 steps' train $small --no-warmup --steps 2 --evaluate-every 0
expect 0 ' -   +2 of  2 +- ' train $small --checkpoint "$warm" --max-length 3 --mask-truncated --dead keep --steps 2 --json masked.jsonl
expect 0 'longer --max-length' train $small --checkpoint "$warm" --max-length 1 --steps 2 --json short.jsonl
if grep -Eqi 'nan|inf' masked.jsonl short.jsonl; then verdict 1 "metrics hold a number that is not finite"; else verdict 0; fi

# --- self-check, both layouts, all methods ----------------------------------------------------------------------------
expect 0 'gradients of 25 tensors equal' train $small --checkpoint "$warm" --steps 1 --self-check --repeats 2 --json check.jsonl
lines check.jsonl self_check 1
expect 1 'gradient of model.* differs by' train $small --checkpoint "$warm" --steps 1 --self-check --tolerance 0
expect 0 'same samples packed and replicated, 4 steps' train $small --checkpoint "$warm" --steps 4 --check-every 1 --json every.jsonl
lines every.jsonl self_check 4
expect 1 'gradient of model.* differs by' train $small --checkpoint "$warm" --steps 4 --check-every 2 --tolerance 0
for algorithm in grpo dr_grpo gspo cispo; do
  expect 0 'Samples after' train $small --checkpoint "$warm" --algorithm $algorithm --layout replicated --steps 2 --epochs 2 \
    --kl 0.01 --dead resample --temperature 1.2 --mask-truncated --groups-per-batch 1 --evaluate-every 0 --recompute
done
expect 0 'rho, the ratio of rows, is' train $small --checkpoint "$warm" --steps 3 --evaluate-every 0 --compare --output both
lines both/packed.jsonl step 3
lines both/replicated.jsonl step 3
numbers() { sed -n 's/.*"kind":"step".*"reward":\([^,]*\),"accuracy":\([^,]*\),.*/\1 \2/p' "$1"; }
[ "$(numbers both/packed.jsonl)" = "$(numbers both/replicated.jsonl)" ]; verdict $? "packed and replicated rewards differ"
[ "$(grep -c '<polyline' both/curves.svg)" -eq 4 ]; verdict $? "curves.svg has not two curves in two panels"
expect 0 'equal at the first 3 of 3 steps' train $small --checkpoint "$warm" --steps 3 --evaluate-every 0 --compare --exact \
  --output exact
[ ! -e exact/train.state ]; verdict $? "an exact run left a state"
expect 0 'Samples before' train --task missing --groups 2 --responses 2 --no-warmup --steps 1 --held-out 2

tally

#!/usr/bin/env bash
# Checkpoints from the command line: a run that was stopped anywhere goes on with the same bits; a
# save that is killed or runs out of disk at any call leaves something to go on from.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=models/gpt2.it
tiny=(-D n_layer=2 -D n_embd=32 -D n_head=2 -D vocab=500 -D ctx=32 -D train.B=2 -D train.T=16
    -D train.microbatches=2 -D train.dtype=f32)

# Tokens: a header of 256 words (magic, version, count), then u16 in [0, 500).
perl -e 'print pack("V3 x1012", 20240520, 1, 4001);
    my $x = 7; for (1 .. 4001) { $x = ($x * 1103515245 + 12345) % 2147483648; print pack("v", ($x >> 12) % 500) }' > "$work/tokens.bin"
check "a small GPT-2 compiles" compile $model "$work/gpt2" "${tiny[@]}"
check "the shim compiles" cc -shared -fPIC -O1 tests/e2e/shim/faults.c -o "$work/faults.so" -ldl

always=(train --data "$work/tokens.bin" --quiet --threads 2)
# trains OUT OPTION...: in the foreground.
trains() {
    local out=$1
    shift
    "$work/gpt2" "${always[@]}" --out "$out" "$@"
}
weights() { cmp "$1/model.safetensors" "$2/model.safetensors"; }

check "20 steps" trains "$work/whole" --steps 20 --save-every 10 --metrics "$work/whole.jsonl"
cp -r "$work/whole" "$work/halves"
rm -r "$work/halves/step-00000020" "$work/halves/model.safetensors"
echo step-00000010 > "$work/halves/latest"
check "10 of them, and 10 more" trains "$work/halves" --steps 20 --save-every 10 --resume --metrics "$work/halves.jsonl"
check "the same weights" weights "$work/whole" "$work/halves"
for file in model optimizer; do
    check "the same checkpoint: $file" cmp "$work"/{whole,halves}/step-00000020/$file.safetensors
done
check "the same losses" cmp <(losses "$work/whole.jsonl" | tail -n 10) <(losses "$work/halves.jsonl")

# A signal saves; the run goes on from there.
stopped() {
    local pid code steps
    rm -rf "$work/signal" "$work/signal.jsonl" "$work/straight"
    "$work/gpt2" "${always[@]}" --out "$work/signal" --steps 100000 --metrics "$work/signal.jsonl" 2> "$work/signal.err" &
    pid=$!
    for _ in $(seq 200); do
        grep -q '"step": *5,' "$work/signal.jsonl" 2> /dev/null && break
        sleep 0.02
    done
    kill -s "$1" $pid
    wait $pid
    code=$?
    steps=$(sed 's/step-0*//' "$work/signal/latest")
    [ $code = 75 ] && grep -q "stopped by SIG$1 after step $steps; saved in" "$work/signal.err" || {
        echo "exit code $code"
        cat "$work/signal.err"
        return 1
    }
    trains "$work/signal" --steps $((steps + 3)) --resume && trains "$work/straight" --steps $((steps + 3)) &&
        weights "$work/signal" "$work/straight"
}
for signal in TERM INT USR1; do
    check "SIG$signal saves, exits with 75, and the run goes on with the same bits" stopped $signal
done

# A second SIGINT does not wait for the save.
twice() {
    local pid
    "$work/gpt2" "${always[@]}" --out "$work/twice" --steps 1000000 --metrics "$work/twice.jsonl" &
    pid=$!
    for _ in $(seq 200); do
        grep -q '"step": *5,' "$work/twice.jsonl" 2> /dev/null && break
        sleep 0.02
    done
    kill -INT $pid
    kill -INT $pid 2> /dev/null
    wait $pid
    [ $? = 75 ]
}
check "two SIGINTs end a run with 75" twice

# --- every call that a save makes ---

mkdir "$work/start"
check "a run to start from" trains "$work/start" --steps 2 --save-every 2
rm "$work/start/model.safetensors"
check "without a fault" trains "$work/straight6" --steps 6

# faulty KIND POINT: goes on from step 2, saves at 4 and 6 and at the end, with a fault.
faulty() {
    rm -rf "$work/run" "$work/count"
    cp -r "$work/start" "$work/run"
    timeout 60 env FAULT_UNDER="$work/run" FAULT_KIND="$1" FAULT_AT="$2" FAULT_COUNT="$work/count" \
        LD_PRELOAD="$work/faults.so" "$work/gpt2" "${always[@]}" --out "$work/run" --steps 6 --save-every 2 \
        --resume > "$work/fault.log" 2>&1
}
# The run is loadable whatever happened, and ends where it would have ended.
goes_on() {
    trains "$work/run" --steps 6 --save-every 2 --resume > "$work/on.log" 2>&1 || { cat "$work/on.log"; return 1; }
    ! grep -q damaged "$work/on.log" || { cat "$work/on.log"; return 1; }
    weights "$work/straight6" "$work/run" && ! find "$work/run" -name '*.tmp*' | grep .
}
killed_at() {
    faulty kill "$1"
    [ $? = 137 ] || { cat "$work/fault.log"; return 1; }
    goes_on
}
full_at() {
    faulty full "$1"
    local code=$?
    [ $code = 5 ] && grep -q 'No space left on device' "$work/fault.log" || { echo "exit code $code"; cat "$work/fault.log"; return 1; }
    ! find "$work/run" -name '*.tmp*' | grep . && goes_on
}
check "counts the calls of the saves" faulty none 0
points=$(cat "$work/count")
check "there are at least 50 of them" test "$points" -ge 50
every=$((points / 6))
[ -n "${INFINIC_LONG:-}" ] && every=$((points / 60))
for ((point = 1; point <= points; point += every)); do
    check "killed at call $point of $points: goes on with the same bits" killed_at $point
done
for ((point = 1; point <= points; point += every)); do
    check "no space at call $point of $points: exit 5, nothing half written, goes on" full_at $point
done

little() { env FAULT_FREE=1000 LD_PRELOAD="$work/faults.so" "$work/gpt2" "${always[@]}" --out "$work/little" --steps 2; }
check "a disk that is too small is said before the first step" says "the disk is full" little
check "exit 5" exits 5 little
check "and nothing is trained" test ! -e "$work/little/model.safetensors"

# --- what is refused ---

check "another model is refused by name" compile $model "$work/other" "${tiny[@]}" -D n_layer=3
check "and names what is missing" says "missing     transformer.h.2.attn.c_attn.bias" "$work/other" train \
    --data "$work/tokens.bin" --out "$work/whole" --resume
check "exit 4" exits 4 "$work/other" train --data "$work/tokens.bin" --out "$work/whole" --resume
check "another width too" compile $model "$work/other" "${tiny[@]}" -D n_embd=64
check "and says how it differs" says "transformer.wpe.weight is [32, 32] in the file, [32, 64] in the model" \
    "$work/other" train --data "$work/tokens.bin" --out "$work/whole" --resume
check "another batch" compile $model "$work/other" "${tiny[@]}" -D train.B=4
check "is refused" says "this program takes 8 a step" "$work/other" train --data "$work/tokens.bin" --out "$work/whole" --resume
check "another grouping of the same batch is not" compile $model "$work/other" "${tiny[@]}" -D train.B=1 -D train.microbatches=4
check "it goes on" "$work/other" train --data "$work/tokens.bin" --out "$work/whole" --steps 22 --resume --quiet
check "--init takes a checkpoint's folder" trains "$work/again" --steps 1 --init "$work/whole"
finish

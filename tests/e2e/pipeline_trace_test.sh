#!/usr/bin/env bash
# pipeline_trace_test.sh - what ranks say of their time: one trace of all of them, the bubble beside
# the predicted one, costs that are measured on one rank and cut a pipeline; and that looking
# changes no bit. `info` knows every rank's plan.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
command -v mpirun > /dev/null || { echo "skipped: no mpirun (Debian's openmpi-bin)"; exit 77; }
"$INFINIC" tokenize README.md -o "$work/tokens.bin" > /dev/null || exit 1

cat > "$work/small.it" << 'END'
dim B, T = 8, V = 256, D = 16
block Layer(x: [B, T, D]) -> [B, T, D] {
  up: Linear(D, 2*D); down: Linear(2*D, D)
  return x + (up(x) |> gelu |> down)
}
model small(tokens: i32[B, T], targets: i32[B, T]) {
  wte: Embedding(V, D); h: Layer x 4; head: Linear(D, V, bias = false)
  return cross_entropy(wte(tokens) |> h |> head, targets)
}
train { data = tokens("tokens.bin"); B = 4; microbatches = 4; steps = 6; optimizer = sgd(lr = 0.1); clip = 1.0 }
END
check "a model for one rank" compile "$work/small.it" "$work/one"
if ! compile "$work/small.it" "$work/two" -D parallel.pp=2 -D parallel.vpp=2 > "$work/compile.log" 2>&1; then
    grep -q -i "mpi" "$work/compile.log" && { echo "skipped: built without MPI"; exit 77; }
    cat "$work/compile.log"
    exit 1
fi

run() { # run NAME [OPTION...]: six steps, metrics in NAME.jsonl
    local name=$1
    shift
    "$work/$name" train --data "$work/tokens.bin" --quiet "$@"
}
check "one rank trains" run one --metrics "$work/one.jsonl" --trace "$work/one.json"
check "two ranks train" run two --metrics "$work/plain.jsonl"
check "two ranks train with a trace" run two --metrics "$work/two.jsonl" --trace "$work/two.json"
check "a trace changes no bit" cmp <(losses "$work/plain.jsonl") <(losses "$work/two.jsonl")
check "nor does the layout" cmp <(losses "$work/one.jsonl") <(losses "$work/two.jsonl")

# events FILE RANK TRACK: how many pieces a track has.
events() { grep -c "\"ph\":\"X\".*\"pid\":$2,\"tid\":$3,"  "$1"; }
# is A B: two numbers are equal.
is() { [ "$1" = "$2" ] || { echo "$1, expected $2"; return 1; }; }
# tasks RANK PATTERN: rows of the table of one rank.
table=$("$work/two" schedule | sed -n '/^step rank/,/^$/p')
tasks() { echo "$table" | grep -c -E "^ *[0-9]+ +$1 +($2) "; }

shape() {
    local rank compute all named
    for rank in 0 1; do
        compute=$(tasks $rank "forward|backward") all=$(tasks $rank ".*")
        named=$(grep "\"pid\":$rank,\"tid\":0," "$work/two.json" | grep -c -E '"name":"(send|recv)?[FBU]')
        is "$named" $((6 * all)) || return 1
        is "$(events "$work/two.json" $rank 1)" $((6 * compute)) || return 1
        is "$(events "$work/two.json" $rank 2)" $((6 * (all - compute - 1))) || return 1
        [ "$(events "$work/two.json" $rank 3)" -gt $((6 * compute)) ] || return 1
        grep -q "\"process_name\".*\"rank $rank\"" "$work/two.json" || return 1
    done
    is "$(grep -c '"ph":"s"' "$work/two.json")" "$(grep -c '"ph":"f"' "$work/two.json")"
}
check "each rank has its tasks, the table's, the messages and its kernels" shape
# Every line is an event; all but the last end with a comma.
whole() {
    [ "$(tail -n 1 "$1")" = "]}" ] || return 1
    is "$(sed '1d;$d' "$1" | sed '$d' | grep -v -c '^{.*},$')" 0 || return 1
    sed '1d;$d' "$1" | tail -n 1 | grep -q '^{.*}$'
}
check "the trace of two ranks is one list" whole "$work/two.json"
check "the trace of one rank is one list" whole "$work/one.json"
check "one rank has tasks, too" is "$(events "$work/one.json" 0 0)" $((6 * 9))

predicted=$("$work/two" schedule | sed -n 's/^estimated costs: .*bubble \([0-9.]*\) %.*/\1/p')
check "the run ends with its bubble" says "% measured over 3 steps, $predicted % predicted" run two
check "metrics hold it" grep -q '"event":"end".*"bubble":0\.[0-9]*,"bubble_predicted":0\.[0-9]*,"bubble_steps":3' "$work/two.jsonl"
check "one rank has none" is "$(grep -c bubble "$work/one.jsonl")" 0

check "bench has it, too" says "% measured over 5 steps, $predicted % predicted" "$work/two" bench --steps 3 --trace "$work/bench.json"
check "and its trace is one list" whole "$work/bench.json"
check "bench writes costs" "$work/one" bench --steps 3 --costs="$work/costs.json"
check "which cut a pipeline" says "measured costs: makespan" "$INFINIC" "$work/small.it" \
    --target=cpu --costs="$work/costs.json" --dump-schedule -D parallel.pp=2
check "costs are measured on one rank" says "costs are measured on one rank" \
    exits 2 "$work/two" bench --costs="$work/x.json"
check "a folder that is not there" says "/absent/costs.json" \
    exits 5 "$work/one" bench --steps 1 --costs=/absent/costs.json
check "a trace that cannot be written ends all ranks" says "/absent/trace.json" \
    exits 5 "$work/two" train --data "$work/tokens.bin" --quiet --trace /absent/trace.json

for format in table json; do
    check "both print the same $format" cmp <("$work/two" schedule --format=$format) \
        <("$INFINIC" "$work/small.it" --target=cpu --dump-schedule=$format -D parallel.pp=2 -D parallel.vpp=2)
done
# Two replicas of two ranks that share the optimizer's work: each bucket and shard of each step was
# on its way once, whatever track it is on, and is predicted once.
check "replicas" compile "$work/small.it" "$work/four" -D parallel.dp=2 -D parallel.pp=2 -D parallel.zero=1 -D train.microbatches=2
predicted=$("$work/four" schedule | sed -n 's/^estimated costs: .*bubble \([0-9.]*\) %.*/\1/p')
check "train with a trace, and sums count into the bubble" says "$predicted % predicted" run four --trace "$work/four.json"
check "which is one list" whole "$work/four.json"
sums() {
    local rank kind rows
    local -A letter=([reduce]=R [gather]=G)
    "$work/four" schedule > "$work/four.table"
    for rank in 0 1 2 3; do
        for kind in reduce gather; do
            rows=$(grep -c -E "^ +[0-9]+ +$((rank / 2)) $kind " "$work/four.table")
            [ "$rows" -gt 0 ] || return 1
            is "$(grep -c "\"cat\":\"$kind\".*\"pid\":$rank,\"tid\":[4-9]" "$work/four.json")" $((6 * rows)) || return 1
            is "$(grep "\"name\":\"${letter[$kind]}[0-9]*\",\"cat\":\"predicted\"" "$work/four.json" |
                grep -c "\"pid\":$rank,\"tid\":5,")" $((6 * rows)) || return 1
        done
    done
}
check "each sum and gather was on its way, and was predicted" sums
for format in table json svg trace; do
    check "both print the same $format of replicas" cmp <("$work/four" schedule --format=$format) \
        <("$INFINIC" "$work/small.it" --target=cpu --dump-schedule=$format -D parallel.dp=2 -D parallel.pp=2 -D parallel.zero=1 -D train.microbatches=2)
done
check "info lists the ranks' layers" says "rank 1   chunk 3" "$work/two" info
check "and their memory" says "memory by rank" "$work/two" info
check "info in JSON, too" says '"ranks":[{"rank":0,"planned_bytes":' "$work/two" info --json
# README's command, without what it writes, prints README's table and picture.
readme=$(sed -n 's/^    infinic \(models.*parallel\.pp=4\)$/\1/p' README.md | sed 's/ -o gpt2//')
in_readme() { # lines of the standard input
    local line
    while IFS= read -r line; do
        grep -q -x -F -- "    $line" README.md || { echo "README lacks: $line"; return 1; }
    done
}
printed() {
    "$INFINIC" $readme --target=cpu --dump-schedule 2> /dev/null > "$work/table.txt"
    { grep '^r[0-9]' "$work/table.txt"; tail -n 2 "$work/table.txt"; } | in_readme
}
check "README shows the table that is printed" printed
check "and its picture" cmp models/gpt2_pipeline.svg \
    <("$INFINIC" $readme --target=cpu --dump-schedule=svg 2> /dev/null)
replicas=$(sed -n 's/^    infinic \(models.*parallel\.dp=2 -D parallel\.pp=2\)$/\1/p' README.md | sed 's/ -o gpt2//')
sums_printed() {
    "$INFINIC" $replicas --target=cpu --dump-schedule 2> /dev/null > "$work/table.txt"
    { grep -m 2 ' reduce ' "$work/table.txt"; tail -n 1 "$work/table.txt"; } | in_readme
}
check "and sums of replicas" sums_printed
finish

#!/usr/bin/env bash
# Replicas on devices: one device that adds up its buckets alone has the bits of one that does not,
# in a graph or launch by launch; two replicas train what one rank trains on the same global batch,
# but for the order in which gradients are added, and in every run the same, and so do two of a
# pipeline of two: on devices of their own or, by a stand-in for NCCL, on one. With reduce = ordered
# they have one rank's bits. Skipped where no device answers.
# PREBUILT=FOLDER: as in lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"
ref=tests/reference
need_programs
find_ranks

# train NAME OUTPUT [OPTION...]: 20 steps, two evaluations.
train() {
    local name=$1 output=$2
    shift 2
    rm -rf "$work/$output.out"
    timeout 120 "$made/gpt2_tiny.$name" train --data $ref/tokens.bin --quiet --grad-norm --steps 20 \
        --metrics "$work/$output.jsonl" --out "$work/$output.out" --dump-grads "$work/$output.grads" "$@" &&
        norms "$work/$output.jsonl" > "$work/$output.norms"
}

# resumed NAME [OTHER]: 20 steps, and 10 + resume + 10, the second half by OTHER, end with the same weights.
resumed() {
    rm -rf "$work/half.out"
    for steps in 10 20; do
        timeout 120 "$made/gpt2_tiny.$([ $steps = 10 ] && echo "$1" || echo "${2:-$1}")" train --data $ref/tokens.bin --steps $steps --save-every 10 --quiet \
            --out "$work/half.out" $([ $steps = 10 ] || echo --resume) || return 1
    done
    cmp "$work/$1.out/model.safetensors" "$work/half.out/model.safetensors"
}

# evaluated NAME OTHER: what NAME has saved evaluates alike by both.
evaluated() {
    for name in "$1" "$2"; do
        timeout 60 "$made/gpt2_tiny.$name" eval --data $ref/tokens.bin --weights "$work/$1.out" --json \
            > "$work/$name.eval" || return 1
    done
    grep -q '"loss"' "$work/$1.eval" && cmp <(values "$work/$1.eval") <(values "$work/$2.eval")
}
values() { tr ',{}' '\n\n\n' < "$1" | grep -E '"(loss|samples|perplexity)"'; }

ranks_of() { case $1 in dp2pp2* | dp4*) echo 4 ;; *) echo 2 ;; esac; }

# tree_near_cpu: the losses of the same sums on the processor.
tree_near_cpu() {
    losses "$made/tree.jsonl" > "$work/wanted"
    within "$work/wanted" "$work/f32.tree.jsonl" 20 2e-5
}

# facts NAME [--time]: bytes of the optimizer, parameters; with --time bytes planned and measured.
facts() {
    "$made/gpt2_states.$1" info --json ${2:-} > "$work/info.json" || return
    tr ',{}' '\n\n\n' < "$work/info.json" | tr -d '" ' | awk -F: '
        { if (!($1 in got)) got[$1] = $2 }
        END { print got["optimizer"], got["parameters"], got["planned_bytes"] + 0, got["measured_bytes"] + 0 }'
}
# fails CODE TEXT COMMAND...: within 20 seconds.
fails() {
    exits "$1" timeout 20 "${@:3}" > "$work/fails.log" 2>&1 && grep -q -F -- "$2" "$work/fails.log" && return
    cat "$work/fails.log"
    return 1
}
# stopped PROGRAM: a signal to the launcher, in the middle of training.
stopped() {
    local pid got
    rm -rf "$work/stopped.out" "$work/stopped.jsonl"
    "$made/$1" train --data $ref/tokens.bin --quiet --steps 1000000 --metrics "$work/stopped.jsonl" \
        --out "$work/stopped.out" > "$work/stopped.log" 2>&1 &
    pid=$!
    until [ -s "$work/stopped.jsonl" ]; do kill -0 "$pid" && sleep 0.05 || break; done
    kill -TERM "$pid"
    wait "$pid"
    got=$?
    [ "$got" = 75 ] && grep -q 'stopped by SIGTERM after step [0-9]*; saved' "$work/stopped.log" && return
    cat "$work/stopped.log"
    echo "exit code $got"
    return 1
}

# owns NAME REPLICAS: of 12 bytes of states and f32 weights for each parameter its share.
owns() {
    facts "$1" | awk -v dp="$2" '{ want = 12 * $2 / dp; d = $1 - want; print $1, want
                                   exit d > 0.02 * want || d < -0.02 * want }'
}
# saved NAME OTHER: what zero = 1 saves is measured as it is planned; NCCL's own memory, which is not planned, is the
# same with zero = 0.
saved() {
    { facts "$1" --time && facts "$2" --time; } | awk '
        { own[NR] = $1; planned[NR] = $3; measured[NR] = $4 }
        END { d = (measured[1] - measured[2]) - (planned[1] - planned[2]); if (d < 0) d = -d
              print planned[1], planned[2], measured[1], measured[2]
              exit NR != 2 || measured[1] <= own[1] || measured[2] <= own[2] || d > 0.02 * own[1] }'
}
check "bf16: zero = 1 keeps 12 bytes a parameter" owns zero1 1
check "bf16: as measured" saved zero1 zero0
check "bf16: of two replicas each keeps half of it" owns zero1.dp2 2
[ "$most" -lt 2 ] || [ -n "$how" ] || check "bf16: as measured on two" saved zero1.dp2 zero0.dp2

for dtype in f32 bf16; do
    tolerance=$([ $dtype = f32 ] && echo 2e-5 || echo 2e-2)
    check "$dtype: one rank trains" train $dtype.one $dtype.one
    for layout in sums sums64 sums2; do
        check "$dtype: $layout trains" train $dtype.$layout $dtype.$layout
        check "$dtype: $layout, same bits" same_output $dtype.$layout $dtype.one
        check "$dtype: $layout trains with --no-graph" train $dtype.$layout plain --no-graph
        check "$dtype: $layout with --no-graph, same bits" same_output plain $dtype.one
    done
    # Its norm is a tree of blocks that owners sum; all else is the same.
    check "$dtype: zero = 1 alone trains" train $dtype.sumsz $dtype.sumsz
    check "$dtype: zero = 1 alone, near one rank" near_output $dtype.sumsz $dtype.one $tolerance
    check "$dtype: zero = 1 alone trains with --no-graph" train $dtype.sumsz plain --no-graph
    check "$dtype: zero = 1 alone with --no-graph, same bits" same_output plain $dtype.sumsz
    check "$dtype: zero = 1 alone: 20 steps are 10, resume, 10" resumed $dtype.sumsz
    check "$dtype: zero = 1 alone evaluates as one rank" evaluated $dtype.sumsz $dtype.one
    # All microbatches in one tree: whoever adds them, sums and norm are the same.
    check "$dtype: reduce = ordered trains" train $dtype.tree $dtype.tree
    check "$dtype: reduce = ordered, near one rank" near_output $dtype.tree $dtype.one $tolerance
    check "$dtype: reduce = ordered trains with --no-graph" train $dtype.tree plain --no-graph
    check "$dtype: reduce = ordered with --no-graph, same bits" same_output plain $dtype.tree
    for layout in treez treev2; do
        check "$dtype: $layout trains" train $dtype.$layout $dtype.$layout
        check "$dtype: $layout, the bits of reduce = ordered" same_output $dtype.$layout $dtype.tree
    done
    for layout in dp2tree dp2treez dp2treev2 dp2pp2tree dp4tree; do
        [ "$most" -ge "$(ranks_of $layout)" ] || continue
        check "$dtype: $layout trains$how" ranks train $dtype.$layout $dtype.$layout --check-replicas 5
        check "$dtype: $layout, the bits of one rank" same_output $dtype.$layout $dtype.tree
        [ $layout = dp2treez ] || continue
        check "$dtype: $layout trains with --no-graph$how" ranks train $dtype.$layout plain --no-graph
        check "$dtype: $layout with --no-graph, same bits" same_output plain $dtype.tree
    done
    for layout in dp2 dp2z dp2v2 dp2pp2 dp2pp2z; do
        [ "$most" -ge "$(ranks_of $layout)" ] || continue
        check "$dtype: $layout trains$how" ranks train $dtype.$layout $dtype.$layout --check-replicas 5
        check "$dtype: $layout, near one rank" near_output $dtype.$layout $dtype.one $tolerance
        check "$dtype: $layout trains again, streamed$how" ranks train $dtype.$layout again --stream
        check "$dtype: $layout, same bits again" same_output again $dtype.$layout
        check "$dtype: $layout trains with --no-graph$how" ranks train $dtype.$layout plain --no-graph
        check "$dtype: $layout with --no-graph, same bits" same_output plain $dtype.$layout
        check "$dtype: $layout: 20 steps are 10, resume, 10$how" ranks resumed $dtype.$layout
    done
    if [ "$most" -ge 2 ]; then
        check "$dtype: zero = 1, the bits of zero = 0" same_output $dtype.dp2z $dtype.dp2
        check "$dtype: zero = 1 goes on where zero = 0 was" ranks resumed $dtype.dp2 $dtype.dp2z
        check "$dtype: zero = 0 goes on where zero = 1 was" ranks resumed $dtype.dp2z $dtype.dp2
        check "$dtype: zero = 1 and 0 evaluate alike" ranks evaluated $dtype.dp2z $dtype.dp2
    fi
    [ "$most" -lt 4 ] || check "$dtype: zero = 1 of a pipeline, the bits of zero = 0" same_output $dtype.dp2pp2z $dtype.dp2pp2
    [ "$most" -lt 4 ] || check "$dtype: two of a pipeline, the bits of two" same_output $dtype.dp2pp2 $dtype.dp2
done
check "f32: reduce = ordered, near the processor" tree_near_cpu
if [ "$most" -ge 2 ]; then
    two=(train --data $ref/tokens.bin --quiet --steps 9)
    check "a killed replica is named$how" ranks killed_rank "$made/gpt2_tiny.f32.dp2" --data tests/reference/tokens.bin
    check "a number that is not finite ends all$how" ranks fails 6 'the weights are those of the step before' \
        "$made/gpt2_tiny.f32.dp2" "${two[@]}" --lr 3e38
    check "or is skipped by all$how" ranks fails 0 'steps skipped' \
        "$made/gpt2_tiny.f32.dp2z" "${two[@]}" --lr 3e38 --on-nan=skip --check-replicas 1
    check "a signal stops all, and saves$how" ranks stopped gpt2_tiny.f32.dp2z
    # The stand-in can fail where we want it to: while a step is recorded, or in the middle of one.
    for way in "" --no-graph; do
        [ -n "$how" ] || continue
        for name in dp2 pp2; do
            # shellcheck disable=SC2086
            check "$name: a rank whose message fails ends all${way:+, with }$way$how" ranks fails 7 'rank 1: error: NCCL' \
                env ONE_GPU_FAIL=1:8 "$made/gpt2_tiny.f32.$name" "${two[@]}" $way
        done
    done
else
    echo 'left out: two replicas, which need mpirun and two devices, or one and a stand-in for NCCL'
fi
if [ "$most" -ge 4 ]; then
    check "a killed replica of a pipeline is named$how" ranks killed_rank "$made/gpt2_tiny.f32.dp2pp2" --data tests/reference/tokens.bin
    check "from two replicas to two of a pipeline of two: same bits$how" ranks resumed f32.dp2 f32.dp2pp2
    check "and back, with zero = 1: same bits$how" ranks resumed f32.dp2pp2z f32.dp2
else
    echo 'left out: replicas of pipelines, which need mpirun and four devices, or one and a stand-in for NCCL'
fi
finish

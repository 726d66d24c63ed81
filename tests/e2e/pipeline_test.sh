#!/usr/bin/env bash
# Pipelines of real ranks: whatever the layout, twenty steps give the same losses, norms, gradients,
# weights and optimizer state, bit for bit, as one rank with the same microbatches. With --long every
# layout of each model for 1 to 9 microbatches, 200 runs without a hang.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
need_ranks
shim=$BUILD/tests/mpi/libslow_mpi.so watch=$BUILD/tests/mpi/libcheck_mpi.so
ref=tests/reference
limit=120   # seconds; a run takes one or two
export OMP_NUM_THREADS=1   # of each rank; bits do not depend on it

# settings MODEL: into the array `is`, and data and weights into `with`.
settings() {
    case $1 in
    gpt2) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=1) ;;
    seven) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=1 -D n_layer=7) ;;
    llama) is=(models/llama3.it "${llama_trained[@]}" -D train.dtype=f32 -D train.B=1) ;;
    cnn) is=(models/mnist_cnn.it -D train.B=16 -D train.schedule=constant -D eval.B=1000) ;;
    esac
    with=(--data $ref/tokens.bin)
    case $1 in
    gpt2) with+=(--init $ref/gpt2_tiny.safetensors) ;;
    llama) with+=(--init $ref/llama_tiny.safetensors) ;;
    cnn) with=(--data "$images") ;;
    esac
}

# build MODEL MICROBATCHES NAME [KEY=VALUE|OPTION...]: a layout's executable.
build() {
    local model=$1 n=$2 name=$3 key
    shift 3
    settings "$model"
    is+=(-D train.microbatches="$n")
    for key in "$@"; do
        case $key in
        --*) is+=("$key") ;;
        train.*) is+=(-D "$key") ;;
        *) is+=(-D "parallel.$key") ;;
        esac
    done
    compile "${is[0]}" "$work/bin.$name" "${is[@]:1}" -W no-empty-chunk
}

# train MODEL NAME OUT [OPTION...]: metrics, gradients and two checkpoints into $work/OUT.
train() {
    local name=$2 out=$work/$3
    settings "$1"
    shift 3
    rm -rf "$out" && mkdir -p "$out" &&
        timeout $limit "$work/bin.$name" train "${with[@]}" --no-shuffle --steps 20 --lr 1e-2 --grad-norm \
            --save-every 10 --out "$out/run" --metrics "$out/metrics.jsonl" --quiet \
            --dump-grads "$out/grads.safetensors" "$@" > "$out/log" 2>&1 || { cat "$out/log"; return 1; }
    numbers "$out/metrics.jsonl" > "$out/numbers"
}

# layout MODEL MICROBATCHES [KEY=VALUE...]: builds it, trains, compares with the one rank before it.
layout() {
    local name=$1.$2.layout
    build "$1" "$2" "$name" "${@:3}" && train "$1" "$name" "$name" && same_run "$name" "$1.$2"
}

# one MODEL MICROBATCHES: what one rank does.
one() {
    check "$1, $2 microbatches, one rank" build "$1" "$2" "$1.$2"
    check "$1, $2 microbatches, trains" train "$1" "$1.$2" "$1.$2"
}

# layouts MODEL MICROBATCHES "KEY=VALUE ..."...: each against the one rank.
layouts() {
    local model=$1 n=$2 keys
    shift 2
    one "$model" "$n"
    for keys in "$@"; do
        # shellcheck disable=SC2086
        check "$model, $n microbatches, $keys: same bits" layout "$model" "$n" $keys
    done
}

every=()
for pp in 1 2 4; do
    for pipeline in 1f1b gpipe zb-h1; do
        [ "$pp $pipeline" = "1 1f1b" ] || every+=("pp=$pp pipeline=$pipeline")
    done
    for pipeline in 1f1b zb-v; do every+=("pp=$pp vpp=2 pipeline=$pipeline"); done
done
again=("pp=2 pipeline=zb-h1 train.recompute=layer --no-fuse"
    "pp=2 vpp=2 pipeline=zb-v train.recompute=layer")

# Most layouts in half the time: cc optimizes less.
light_cc

if [ -n "${INFINIC_LONG-}" ]; then
    for n in 1 2 3 4 5 6 7 8 9; do
        if [ $n = 4 ]; then unset CC; else light_cc; fi   # once as they are
        for model in gpt2 llama cnn; do layouts $model $n "${every[@]}"; done
    done
    layouts gpt2 4 "${again[@]}"
    layouts seven 5 "pp=4" "pp=4 vpp=2" "pp=4 vpp=2 pipeline=zb-v"
    unset CC
else
    # With those of replicas_test.sh and ordered_test.sh twenty-eight.
    layouts gpt2 4 "pp=2 pipeline=gpipe" "pp=2 vpp=2" "pp=2 vpp=2 pipeline=zb-v" "pp=4 pipeline=zb-h1" \
        "${again[0]}"
    layouts gpt2 1 "pp=4 vpp=2 pipeline=zb-v"
    layouts seven 5 "pp=4" "pp=4 vpp=2" "pp=4 vpp=2 pipeline=zb-v"
    layouts llama 3 "pp=4 vpp=2 pipeline=zb-v"
    layouts cnn 6 "pp=2 vpp=2 pipeline=zb-v" "pp=4 pipeline=zb-h1"
fi

# A split by hand and a table from a file.
split() { layout gpt2 4 pp=2 "split=(1, 3)"; }
check "layers by hand: same bits" split
imported() {
    build gpt2 4 table pp=4 &&
        "$work/bin.table" schedule --format csv > "$work/table.csv" &&
        layout gpt2 4 pp=4 "schedule=$work/table.csv"
}
check "a table from a file: same bits" imported

# Ranks that are slow at random, and no run that hangs.
slow() {
    local seed
    build gpt2 4 slow pp=4 vpp=2 || return 1
    for ((seed = 1; seed <= $1; seed++)); do
        LD_PRELOAD=$shim SLOW_SEED=$seed train gpt2 slow slow && same_run slow gpt2.4 || return 1
    done
}
runs=1
[ -z "${INFINIC_LONG-}" ] || runs=200
[ ! -e "$shim" ] || check "random sleeps in every rank, $runs runs: same bits" slow $runs

# Ten steps under one layout, ten more under another; MPI is used as it has to be.
moved() {
    local -x LD_PRELOAD
    build gpt2 4 from pp=4 vpp=2 && build gpt2 4 to pp=2 pipeline=zb-h1 || return 1
    settings gpt2
    rm -rf "$work/moved" && mkdir "$work/moved"
    LD_PRELOAD=$watch
    timeout $limit "$work/bin.from" train "${with[@]}" --no-shuffle --steps 10 --lr 1e-2 --quiet --save-every 10 \
        --out "$work/moved/run" &&
        timeout $limit "$work/bin.to" train "${with[@]:0:2}" --no-shuffle --steps 20 --lr 1e-2 --quiet \
            --save-every 20 --out "$work/moved/run" --resume &&
        cmp "$work/moved/run/step-00000020/optimizer.safetensors" \
            "$work/gpt2.4/run/step-00000020/optimizer.safetensors" &&
        cmp "$work/moved/run/model.safetensors" "$work/gpt2.4/run/model.safetensors"
}
check "a checkpoint goes on under another layout: same bits" moved

# A signal to the launcher stops every rank after the same step, and what was saved goes on.
stopped() {
    local pid
    settings gpt2
    rm -rf "$work/stopped"
    "$work/bin.to" train "${with[@]}" --no-shuffle --steps 1000000 --lr 1e-2 --quiet --out "$work/stopped" \
        > "$work/stopped.log" 2>&1 &
    pid=$!
    sleep 2
    kill -TERM $pid
    wait $pid
    [ $? = 75 ] || { cat "$work/stopped.log"; return 1; }
    grep -q "stopped by SIGTERM" "$work/stopped.log" && ls "$work/stopped" | grep -q step-
}
if [ -n "${INFINIC_LONG-}" ]; then   # once in ranks_test.sh
    for ((k = 1; k <= 50; k++)); do check "signal $k saves and ends with 75" stopped; done
fi

# A dead rank: the others are out within ten seconds, with exit code 7 and its name.
killed() {
    local pid rank start
    settings gpt2
    "$work/bin.from" train "${with[@]}" --no-shuffle --steps 1000000 --lr 1e-2 --quiet \
        > "$work/killed.log" 2>&1 &
    pid=$!
    sleep "1.$((RANDOM % 10))"
    rank=$(pgrep -f "^$work/bin.from train" | grep -v "^$pid\$" | shuf -n 1)
    [ -n "$rank" ] || { echo "no rank to kill"; return 1; }
    start=$SECONDS
    kill -9 "$rank"
    wait $pid
    [ $? = 7 ] || { echo "exit code is not 7"; cat "$work/killed.log"; return 1; }
    [ $((SECONDS - start)) -le 10 ] || { echo "took $((SECONDS - start)) s"; return 1; }
    ! pgrep -f "^$work/bin.from train" || { echo "ranks are left"; return 1; }
    grep "rank [0-9]" "$work/killed.log"
}
kills=1
[ -z "${INFINIC_LONG-}" ] || kills=50
for ((k = 1; k <= kills; k++)); do check "kill $k: everyone leaves" killed; done

finish

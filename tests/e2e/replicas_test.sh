#!/usr/bin/env bash
# Data parallel over real ranks: replicas train what one rank trains on the same global batch, but
# for the order in which gradients are added; they stay equal bit for bit, whatever the layout.
# With --long the whole matrix of replicas, pipelines and microbatches.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
need_ranks
ref=tests/reference
limit=120   # seconds; a run takes one or two
export OMP_NUM_THREADS=1   # of each rank; bits do not depend on it

light_cc

# settings MODEL: into the array `is`, and its data into `with`.
settings() {
    with=(--data "$images")
    case $1 in
    gpt2) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=2) with=(--data $ref/tokens.bin) ;;
    llama) is=(models/llama3.it "${llama_trained[@]}" -D train.dtype=f32 -D train.B=2 -D parallel.zero=0) with=(--data $ref/tokens.bin) ;;
    cnn) is=(models/mnist_cnn.it -D train.B=16 -D train.schedule=constant -D eval.B=1000) ;;
    mlp) is=(models/mnist_mlp.it -D train.B=16 -D train.schedule=constant -D eval.B=3000) ;;
    esac
}

# build MODEL MICROBATCHES NAME [KEY=VALUE...]: a layout's executable; microbatches of each replica.
build() {
    local model=$1 n=$2 name=$3 key
    shift 3
    settings "$model"
    is+=(-D train.microbatches="$n")
    for key in "$@"; do is+=(-D "parallel.$key"); done
    compile "${is[0]}" "$work/bin.$name" "${is[@]:1}" -W no-empty-chunk
}

# train MODEL NAME OUT [OPTION...]: twenty steps; metrics, gradients and checkpoints into $work/OUT.
train() {
    local name=$2 out=$work/$3
    settings "$1"
    shift 3
    rm -rf "$out" && mkdir -p "$out" &&
        timeout $limit "$work/bin.$name" train "${with[@]}" --steps 20 --lr 1e-2 --grad-norm \
            --save-every 10 --out "$out/run" --metrics "$out/metrics.jsonl" --quiet --check-replicas 5 \
            --dump-grads "$out/grads.safetensors" "$@" > "$out/log" 2>&1 || { cat "$out/log"; return 1; }
    numbers "$out/metrics.jsonl" > "$out/numbers"
}

# near OUT REFERENCE STEPS TOLERANCE: losses.
near() {
    losses "$work/$2/metrics.jsonl" > "$work/wanted"
    within "$work/wanted" "$work/$1/metrics.jsonl" "$3" "$4"
}

# How far losses of a model may be from one rank's, over how many of the twenty steps. At this rate a
# tiny language model now and then takes a step after which the last bit of a sum is 1e-3 of the loss;
# from which start is luck, and one rank that adds its microbatches in another order (reduce = ordered)
# departs from itself as far. So where that is more, ten times that is allowed.
steps_of() { case $1 in cnn) echo 10 ;; *) echo 20 ;; esac; }
tolerance_of() {   # MODEL REFERENCE
    local least
    case $1 in cnn) least=5e-6 ;; mlp) least=3e-6 ;; *) least=2e-5 ;; esac
    if [ -e "$work/$2.tree" ]; then
        paste <(losses "$work/$2/metrics.jsonl") <(losses "$work/$2.tree/metrics.jsonl") | awk -v least=$least '
            { d = $1 - $2; if (d < 0) d = -d; if (10 * d > least) least = 10 * d } END { print least }'
    else
        echo $least
    fi
}

# layout MODEL MICROBATCHES REFERENCE [KEY=VALUE...]: trains into $work/layout.
layout() {
    local model=$1
    build "$1" "$2" layout "${@:4}" && train "$1" layout layout &&
        near layout "$3" "$(steps_of "$model")" "$(tolerance_of "$model" "$3")"
}

# layouts MODEL MICROBATCHES DP "KEY=VALUE ..."...: each against one rank with all microbatches, and
# bit for bit against the first, which has as many replicas.
layouts() {
    local model=$1 n=$2 dp=$3 one=$1.$(($2 * $3)) first=$1.$2.$3 keys
    shift 3
    if [ ! -e "$work/$one" ]; then
        check "$model, $((n * dp)) microbatches, one rank" build "$model" $((n * dp)) "$one"
        check "$model, $((n * dp)) microbatches, trains" train "$model" "$one" "$one"
        if [ -n "${INFINIC_LONG-}" ] && [[ $model = gpt2 || $model = llama ]]; then
            check "$model, $((n * dp)) microbatches in a tree" build "$model" $((n * dp)) "$one.tree" reduce=ordered
            check "$model, $((n * dp)) microbatches in a tree, trains" train "$model" "$one.tree" "$one.tree"
        fi
    fi
    for keys in "$@"; do
        # shellcheck disable=SC2086
        check "$model, dp $dp x $n microbatches, $keys: near one rank" layout "$model" "$n" "$one" "dp=$dp" $keys
        if [ -e "$work/$first" ]; then
            check "$model, dp $dp x $n microbatches, $keys: the bits of other layouts" same_run layout "$first"
        else
            mv "$work/layout" "$work/$first" && mv "$work/bin.layout" "$work/bin.$first"
        fi
    done
}

if [ -n "${INFINIC_LONG-}" ]; then
    every=("pp=1" "pp=2" "pp=1 zero=1" "pp=2 zero=1" "pp=1 vpp=2" "pp=2 vpp=2" "pp=2 pipeline=zb-h1" "pp=2 vpp=2 pipeline=zb-v")
    for bucket in 1KB 64KB 100MB; do every+=("pp=2 bucket=$bucket" "pp=1 bucket=$bucket"); done
    for model in gpt2 llama cnn mlp; do
        for dp in 2 3 4; do
            for n in 1 2 4; do layouts $model $n $dp "${every[@]}"; done
        done
    done
else
    layouts mlp 2 2 "pp=1"
    layouts cnn 1 3 "pp=1"
    layouts gpt2 2 2 "pp=1" "pp=2 vpp=2" "pp=1 vpp=2 bucket=1KB" "pp=2 zero=1"
fi

again() { train gpt2 gpt2.2.2 again && same_run again gpt2.2.2; }
check "two runs: the same bits" again

# One collective a bucket and step, in the table and at run time.
collectives() {
    local rows counted
    rows=$("$work/bin.gpt2.2.2" schedule | grep -c -E '^ +[0-9]+ +0 reduce ')
    counted=$(sed -n '/"event": *"end"/s/.*"collectives": *\([0-9]*\).*/\1/p' "$work/gpt2.2.2/metrics.jsonl")
    [ "$rows" -gt 0 ] && [ "$counted" = $((20 * rows)) ] || { echo "$rows rows, $counted in 20 steps"; return 1; }
}
check "a collective a bucket and step" collectives

# planned DP [KEY=VALUE...]: a GPT-2 whose sums are as large as its buckets; the memory that rank 0
# has taken is within 2 % of the plan.
planned() {
    local dp=$1 key is=(-D n_layer=2 -D n_embd=384 -D n_head=6 -D vocab=16384 -D ctx=64 -D train.T=64
        -D train.B=1 -D train.dtype=f32 -D train.microbatches=1 -D parallel.dp="$1")
    shift
    for key in "$@"; do is+=(-D "parallel.$key"); done
    compile models/gpt2.it "$work/bin.planned" "${is[@]}" -W no-bf16 &&
        timeout $limit "$work/bin.planned" bench --steps 2 --json > "$work/planned.json" || return 1
    tr ',{' '\n\n' < "$work/planned.json" | awk -F'[":]+' -v dp="$dp" '
        $2 == "planned_bytes" { planned = $3 } $2 == "peak_bytes" { peak = $3 }
        END { print dp, planned, peak; d = peak / planned - 1; exit !(planned > 100e6 && d < 0.02 && d > -0.02) }'
}
check "dp 2: sums take no memory beyond the plan" planned 2 bucket=100MB
check "nor with zero 1 and small buckets" planned 2 zero=1 bucket=1MB
check "nor with dp 3" planned 3 zero=1
[ -z "${INFINIC_LONG-}" ] || for dp in 2 3 4; do
    for zero in 0 1; do
        for bucket in 1MB 25MB 100MB; do
            check "planned memory, dp $dp zero $zero bucket $bucket" planned $dp zero=$zero bucket=$bucket
        done
    done
done

# resumed NAME OUT FROM: the last ten of twenty steps, from the checkpoint of another layout.
resumed() {
    settings gpt2
    rm -rf "$work/$2" && mkdir -p "$work/$2/run" && cp -r "$work/$3/run/step-00000010" "$work/$2/run" &&
        timeout $limit "$work/bin.$1" train "${with[@]}" --steps 20 --lr 1e-2 --quiet --out "$work/$2/run" \
            --save-every 10 --resume --metrics "$work/$2/metrics.jsonl" > "$work/resumed.log" 2>&1 ||
        { cat "$work/resumed.log"; return 1; }
}
# As the run that was not interrupted, whose replicas are as many.
resumed_same() {
    local file
    resumed "$1" moved "$2" || return 1
    for file in model.safetensors step-00000020/{model,optimizer}.safetensors; do
        cmp "$work/moved/run/$file" "$work/$2/run/$file" || return 1
    done
}
resumed_near() {
    resumed "$1" moved "$2" && losses "$work/$2/metrics.jsonl" | sed -n '11,$p' > "$work/wanted" &&
        within "$work/wanted" "$work/moved/metrics.jsonl" 10 2e-5
}
check "dp 2 pp 2 vpp 2" build gpt2 2 wide dp=2 pp=2 vpp=2
check "dp 1 pp 2" build gpt2 4 deep pp=2
check "from dp 2 to dp 2 x pp 2 x vpp 2: the same bits" resumed_same wide gpt2.2.2
check "from dp 2 to pp 2: near" resumed_near deep gpt2.2.2
check "from one rank to pp 2: the same bits" resumed_same deep gpt2.4
check "from one rank to dp 2 x pp 2 x vpp 2: near" resumed_near wide gpt2.4
other_batch() {
    build gpt2 2 small && says 'was saved after 80 samples in 10 steps; this program takes 4 a step' \
        resumed small moved gpt2.2.2
}
check "a checkpoint of another global batch is refused" other_batch

# Evaluations share the set's batches; in their last round some replicas have none.
evaluated() {
    timeout $limit "$work/bin.mlp.4" eval --data "$images" --weights "$work/mlp.4/run" > "$work/eval.one" &&
        timeout $limit "$work/bin.mlp.2.2" eval --data "$images" --weights "$work/mlp.4/run" > "$work/eval.two" &&
        grep accuracy "$work/eval.one" && cmp "$work/eval.one" "$work/eval.two"
}
check "an evaluation has the bits of one rank's" evaluated
gpt2_evaluated() {
    "$work/bin.gpt2.4" eval "${with[@]}" --weights "$work/gpt2.4/run" --json > "$work/eval.one" &&
        "$work/bin.wide" eval "${with[@]}" --weights "$work/gpt2.4/run" --json > "$work/eval.two" &&
        cmp "$work/eval.one" "$work/eval.two"
}
check "and under dp 2 x pp 2 x vpp 2" gpt2_evaluated
generated() {
    "$work/bin.gpt2.4" generate --weights "$work/gpt2.4/run" --prompt-ids 1,2,3 --length 8 --ids > "$work/text.one" &&
        "$work/bin.gpt2.2.2" generate --weights "$work/gpt2.4/run" --prompt-ids 1,2,3 --length 8 --ids > "$work/text.two" &&
        [ -s "$work/text.one" ] && cmp "$work/text.one" "$work/text.two"
}
check "a replica alone generates" generated
verified() {
    settings gpt2
    "$work/bin.gpt2.4" train "${with[@]}" --no-shuffle --steps 1 --quiet --dump-grads "$work/first.safetensors" &&
        timeout $limit "$work/bin.wide" verify "${with[@]}" --ref "$work/first.safetensors" --tolerance 1e-6
}
check "the first gradients are one rank's" verified

# All replicas drop what does not fill a global batch, and end together.
epoch() {
    settings gpt2
    says 'the last 1 samples of each epoch' timeout $limit "$work/bin.gpt2.2.2" train "${with[@]}" --epochs 1 \
        --metrics "$work/epoch.jsonl" && [ "$(losses "$work/epoch.jsonl" | wc -l)" = 156 ]
}
check "an epoch ends for all after the same step" epoch
remembered() {
    grep -q -E '  mem [0-9.]+/[0-9.]+ MB on rank [01]  ETA' "$work/says.log" &&
        grep '"event": *"step"' "$work/epoch.jsonl" | awk -F'[":,]+' '{ for (i = 1; i < NF; i++) v[$i] = $(i + 1)
            bad += !(v["mem_used"] > 1e6 && v["mem_reserved"] > 0.9 * v["mem_used"] && v["mem_rank"] <= 1); n++ }
            END { print n " steps, " bad + 0 " without memory"; exit !(n == 156 && bad == 0) }'
}
check "each step shows used and reserved memory" remembered

# --- faults ---

as_root=()
[ "$(id -u)" = 0 ] && as_root=(--allow-run-as-root)
by_hand=(mpirun "${as_root[@]}" --oversubscribe --bind-to none)
program=$work/bin.gpt2.2.2
settings gpt2
check "a wrong number of ranks" says 'has 2 ranks (dp 2, tp 1, pp 1) and was started as 3' \
    "${by_hand[@]}" -n 3 "$program" train
# fails CODE TEXT COMMAND...
fails() {
    local code=$1 text=$2
    shift 2
    exits "$code" timeout $limit "$@" > "$work/fails.log" 2>&1 && grep -q -F -- "$text" "$work/fails.log" && return
    cat "$work/fails.log"
    return 1
}
# apart CODE TEXT FLAGS FLAGS: each replica with its own flags.
apart() {
    local every=(train "${with[@]}" --quiet --steps 9)
    # shellcheck disable=SC2086
    fails "$1" "$2" "${by_hand[@]}" -n 1 "$program" "${every[@]}" $3 : -n 1 "$program" "${every[@]}" $4
}
check "other weights on a replica" apart 7 "do not begin alike: parameter 'transformer.h.0.attn.c_attn.bias' differs on rank 1" \
    "--init $work/gpt2.4/run" "--init $work/gpt2.2.2/run"
check "replicas that go apart" apart 3 "the replicas went apart by step 2: parameter" \
    "--check-replicas 2 --lr 1e-2" "--check-replicas 2 --lr 2e-2"
check "a number that is not finite ends all" fails 6 'the weights are those of the step before' \
    "$work/bin.wide" train "${with[@]}" --quiet --steps 9 --lr 3e38
check "or is skipped by all" says 'steps skipped' \
    "$work/bin.wide" train "${with[@]}" --quiet --steps 9 --lr 3e38 --on-nan=skip --check-replicas 1

# ended SIGNAL WHO CODE TEXT: a signal to the launcher or to a rank of a long run.
ended() {
    local pid who code start k
    rm -rf "$work/ended" "$work/ended.jsonl"
    "$work/bin.wide" train "${with[@]}" --steps 1000000 --quiet --out "$work/ended" --metrics "$work/ended.jsonl" \
        > "$work/ended.log" 2>&1 &
    pid=$!
    for k in $(seq 400); do   # until it trains
        [ -s "$work/ended.jsonl" ] && [ "$(wc -l < "$work/ended.jsonl")" -ge 3 ] && break
        sleep 0.05
    done
    who=$pid
    [ "$2" = launcher ] || who=$(pgrep -f "^$work/bin.wide train" | grep -v "^$pid\$" | shuf -n 1)
    start=$SECONDS
    kill "-$1" "$who"
    wait $pid
    code=$?
    [ $((SECONDS - start)) -le 10 ] && [ $code = "$3" ] && grep -E "$4" "$work/ended.log" &&
        ! pgrep -f "^$work/bin.wide train" && return
    cat "$work/ended.log"
    echo "exit code $code after $((SECONDS - start)) s"
    return 1
}
check "a killed rank: everyone leaves" ended KILL rank 7 'rank [0-3] = replica [01] of pipeline rank [01] \(process [0-9]+\) died at step [0-9]+'
check "a signal stops all, and saves" ended TERM launcher 75 'stopped by SIGTERM after step [0-9]+; saved'
finish

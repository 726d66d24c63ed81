#!/usr/bin/env bash
# polls_test.sh - messages between ranks go on only when MPI is called, so the plan of a rank polls:
# however its repeats are nested, the work between two polls is bounded. Walks the plan's text.
set -u
: "${INFINIC:?names the program under test}"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failures=0

# longest PLAN: the most work that has no poll behind it when the next kernel begins; the polls walked.
longest() {
    awk '
        function number(key,   at) {
            at = index($0, "." key " = ")
            return at ? substr($0, at + length(key) + 4) + 0 : 0
        }
        function walk(from, to, turn,   s, i) {
            for (s = from; s < to; s++) {
                if (kind[s] == "LAUNCH" && since > most) most = since
                if (kind[s] == "LAUNCH") since += work[kernel[s]]
                if (kind[s] == "POLL" && (turn + 1) % count[s] == 0) { since = 0; polls++ }
                if (kind[s] != "REPEAT") continue
                for (i = 0; i < count[s]; i++)
                    walk(s + 1, s + 1 + body[s], first[s] + (reverse[s] ? count[s] - 1 - i : i))
                s += body[s]
            }
        }
        /^static const/ { table = $4 }
        table == "kernels[]" && /\.name/ {
            work[kernels++] = number("bytes") + int(number("flops") / 16)
        }
        table == "steps[]" && /\.kind/ {
            match($0, /STEP_[A-Z]*/)
            kind[steps] = substr($0, RSTART + 5, RLENGTH - 5)
            kernel[steps] = number("kernel"); body[steps] = number("nbody"); count[steps] = number("count")
            first[steps] = number("first"); reverse[steps] = number("reverse")
            steps++
        }
        table == "chunks[]" && /^    [{]"/ {
            split($0, part, /[{,}]/)
            since = 0
            walk(part[3] + 0, part[4] + 0, 0)
        }
        END { print most + 0, polls + 0 }' "$1"
}

# bounded WHAT OPTION...: at most what two polls are meant for, 2 x 1 MiB.
bounded() {
    local what=$1 most= polls=
    shift
    if "$INFINIC" "$@" --target=cpu --emit=plan -D parallel.pp=2 -D train.microbatches=2 > "$work/plan" 2> "$work/log"; then
        read -r most polls <<< "$(longest "$work/plan")"
        if [ "$polls" -gt 0 ] && [ "$most" -gt 0 ] && [ "$most" -le 2097152 ]; then
            echo "ok: $what: $most at most between $polls polls"
            return
        fi
    fi
    echo "FAILED: $what: ${most:-no plan}, ${polls:-no} polls"
    tail -n 5 "$work/log"
    failures=$((failures + 1))
}

small=(-D vocab=50 -D n_embd=8 -D n_head=1 -D ctx=8 -D train.T=8 -D eval.T=8 -D train.B=1 -D eval.B=1 -D generate.T=4 -Wno-bf16)
bounded "many small layers" models/gpt2.it "${small[@]}" -D n_layer=500
bounded "layers just below a poll" models/gpt2.it "${small[@]}" -D n_layer=64 -D n_embd=64
bounded "large layers" models/gpt2.it "${small[@]}" -D n_layer=6 -D n_embd=256 -D ctx=64 -D train.T=64 -D eval.T=64
cat > "$work/nested.it" << 'IT'
dim B, D = 16
block Inner(x: [B, D]) -> [B, D] {
  ln: LayerNorm(D); fc: Linear(D, D)
  return x + (x |> ln |> fc |> gelu)
}
block Outer(x: [B, D]) -> [B, D] {
  ln: LayerNorm(D); fc: Linear(D, D); h: Inner x 40
  return x + (x |> ln |> fc |> h)
}
model net(image: f32[B, 1, 28, 28], label: i32[B]) {
  stem: Linear(784, D); h: Outer x 50; head: Linear(D, 10)
  return cross_entropy(image |> flatten(1) |> stem |> h |> head, label)
}
train { data = mnist("data/mnist"); B = 4; steps = 30; optimizer = adamw(lr = 1e-3) }
IT
bounded "nested repeats" "$work/nested.it"
[ "$failures" = 0 ]

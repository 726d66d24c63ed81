# sizes.sh - sourced, not run.
#
# The shipped language models at the sizes of the references; for generation, what only training
# reads is left alone.
tiny="-D n_layer=4 -D n_embd=64 -D ctx=64 -D vocab=500 -D train.B=2 -D train.T=16"
gpt2_tiny="$tiny -D n_head=4"
llama_tiny="$tiny -D n_head=8 -D n_kv=2 -D head=8 -D ffn=176"

# The same, trained as the references were: four rows of 32 tokens a step, but for dtype and B.
optimizer="adamw(lr = 1e-3, betas = (0.9, 0.95), eps = 1e-8, decay = 0.1, decay_if = ndim >= 2)"
trained=(-D vocab=500 -D ctx=64 -D n_layer=4 -D n_embd=64 -D train.T=32 -D train.microbatches=1
    -D train.schedule=constant -D "train.optimizer=$optimizer")
gpt2_trained=("${trained[@]}" -D n_head=4)
llama_trained=("${trained[@]}" -D n_head=8 -D n_kv=2 -D head=8 -D ffn=176)

# norms METRICS: the gradient's norm of each step, as `losses` of lib.sh.
norms() {
    sed -n '/"event": *"step"/s/.*"grad_norm": *\([^,}]*\).*/{"event": "step", "loss": \1}/p' "$1"
}

# sizes.sh - sourced, not run.
#
# The shipped language models at the sizes of the references; what only training reads is left alone.
tiny="-D n_layer=4 -D n_embd=64 -D ctx=64 -D vocab=500 -D train.B=2 -D train.T=16"
gpt2_tiny="$tiny -D n_head=4"
llama_tiny="$tiny -D n_head=8 -D n_kv=2 -D head=8 -D ffn=176"

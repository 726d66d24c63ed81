#!/usr/bin/env bash
# Text generation: greedy continuations against those of Hugging Face transformers, and what the
# command line may hold.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
ref=tests/reference

gpt2="$gpt2_tiny -Wno-bf16"
llama="$llama_tiny -Wno-bf16"

ids() { "$work/gpt2" generate --weights "$ref/gpt2_tiny.loud.safetensors" --quiet "$@" 2> "$work/log"; }

# same FIRST SECOND: two outputs are equal, and not empty.
same() { [ -s "$1" ] && cmp "$1" "$2"; }
differ() { ! cmp -s "$1" "$2"; }

for model in gpt2 llama; do
    file=$([ $model = gpt2 ] && echo models/gpt2.it || echo models/llama3.it)
    options=$([ $model = gpt2 ] && echo "$gpt2" || echo "$llama")
    check "$model compiles" compile "$file" "$work/$model" $options
    check "$model: ten greedy continuations are the reference's" \
        greedy ${model}_tiny "$work/$model"
    [ -n "${INFINIC_LONG-}" ] || continue
    check "$model: with one kernel a operation, too" compile "$file" "$work/$model.plain" $options --no-fuse --no-reuse
    check "$model: the same continuations" \
        greedy ${model}_tiny "$work/$model.plain"
done

# Every pass keeps the meaning of every program, by the evaluator.
small="-D n_layer=2 -D n_embd=8 -D ctx=16 -D generate.T=(4,16) -D vocab=50 -D train.B=2 -D train.T=8 -Wno-bf16"
check "gpt2: passes keep the meaning" compile models/gpt2.it "$work/kept" $small -D n_head=2 --verify-passes
check "llama: passes keep the meaning" compile models/llama3.it "$work/kept" $small -D n_head=4 -D n_kv=2 -D head=4 \
    -D ffn=8 --verify-passes

# The same text whatever program takes the prompt: lengths of 4, 16 and 64, or one token at a time.
check "prompts of one length" compile models/gpt2.it "$work/four" $gpt2 -D generate.T=4
long=$(seq -s, 1 30)
ids --temperature 0 --length 8 --prompt-ids "$long" > "$work/a"
"$work/four" generate --weights "$ref/gpt2_tiny.loud.safetensors" --temperature 0 --length 8 --prompt-ids "$long" \
    > "$work/b" 2> /dev/null
check "a prompt that no length holds goes on token by token" same "$work/a" "$work/b"

# Drawn tokens: a function of seed and place; k = 1 is greedy.
drawn() {
    local out=$1
    shift
    ids --prompt-ids 1,2,3 "$@" > "$work/$out"
}
drawn a --temperature 1 --seed 1
drawn b --temperature 1 --seed 1
drawn c --temperature 1 --seed 2
drawn d --temperature 1 --seed 1 --threads 1
drawn e --temperature 1 --seed 1 --top-k 1
drawn f --temperature 0
drawn g --temperature 5 --seed 1 --top-k 0
drawn h --temperature 5 --seed 1 --top-k 500
check "one seed, one text" same "$work/a" "$work/b"
check "another seed, another text" differ "$work/a" "$work/c"
check "whatever the threads" same "$work/a" "$work/d"
check "the likeliest of one is greedy" same "$work/e" "$work/f"
check "all and as many as there are" same "$work/g" "$work/h"

check "several texts at a time" compile models/gpt2.it "$work/three" $gpt2 -D generate.B=3 -D generate.T=16
three() { "$work/three" generate --weights "$ref/gpt2_tiny.loud.safetensors" --quiet "$@" 2> /dev/null; }
three --prompt-ids 1,2,3 --temperature 0 --length 9 > "$work/b3"
ids --prompt-ids 1,2,3 --temperature 0 --length 9 > "$work/b1"
check "greedy texts are alike" eval "[ \"\$(sort -u '$work/b3')\" = \"\$(cat '$work/b1')\" ] && [ \$(wc -l < '$work/b3') = 3 ]"
three --prompt-ids 1,2,3 --temperature 1 --length 9 --seed 3 > "$work/d3"
ids --prompt-ids 1,2,3 --temperature 1 --top-k 50 --length 9 --seed 3 > "$work/d1"
check "drawn ones differ" eval "[ \$(sort -u '$work/d3' | wc -l) = 3 ]"
check "the first is what one alone would be" eval "head -n 1 '$work/d3' | cmp - '$work/d1'"

# Text: the bytes of a text as tokens are the ids of the bytes.
text() { ids --tokenizer bytes --temperature 0 --length 6 "$@"; }
text --prompt "Hä" --ids > "$work/t1"
ids --prompt-ids 72,195,164 --temperature 0 --length 6 > "$work/t2"
check "a prompt in bytes" same "$work/t1" "$work/t2"
text --prompt "Hä" > "$work/t3"
escaped=$(tr ' ' '\n' < "$work/t1" | awk '{ printf $1 < 256 ? sprintf("\\x%02x", $1) : "" }')
printf "$escaped\n" > "$work/t4"
check "and what follows" same "$work/t3" "$work/t4"
check "a model for byte pairs" compile models/gpt2.it "$work/pairs" $gpt2 -D vocab=1000 -D generate.T=16 \
    -D generate.tokenizer=tests/reference/bpe_gpt2.json
"$work/pairs" generate --prompt "the GNU General Public License" --length 20 --quiet > "$work/t5" 2> "$work/log"
check "continues a text" test -s "$work/t5"

# What was trained generates.
check "trains" "$work/gpt2" train --data $ref/tokens.bin --steps 3 --lr 1 --quiet --out "$work/run" --save-every 2
after() { "$work/gpt2" generate --prompt-ids 1,2,3 --temperature 0 --quiet "$@" 2> "$work/log"; }
after --weights "$work/run" > "$work/w1"
after --weights "$work/run/model.safetensors" > "$work/w2"
after > "$work/w3"
check "a run's folder and its file are the same weights" same "$work/w1" "$work/w2"
check "and not the initial ones" differ "$work/w1" "$work/w3"

# Mistakes.
program="$work/gpt2 generate --weights $ref/gpt2_tiny.loud.safetensors"
check "no prompt" exits 2 $program
check "says what it needs" says "--prompt-ids 1,2,3" $program
check "an empty prompt" exits 2 $program --prompt-ids ,
check "an id that is no token" says "500 is no token of gpt2, whose ids are 0 to 499" $program --prompt-ids 1,500
check "a negative id" exits 2 $program --prompt-ids=-1
check "a huge id" exits 2 $program --prompt-ids 99999999999999999999
check "no number" says "got 'x,2' at character 3" $program --prompt-ids 1,x,2
check "a prompt as long as the context" says "nothing can follow" $program --prompt-ids "$(seq -s, 1 64)"
check "a longer one" says "it is too long" $program --prompt-ids "$(seq -s, 1 65)"
check "the longest that can be continued" eval "[ \$($program --prompt-ids \$(seq -s, 1 63) 2> /dev/null | wc -w) = 1 ]"
check "text without a tokenizer" says "gpt2 has no tokenizer at data/gpt2" $program --prompt hello
check "ids without one" says "so tokens are printed as ids" $program --prompt-ids 1
check "a tokenizer that is not there" exits 4 $program --prompt-ids 1 --tokenizer "$work/none"
check "another model's" says "it is another model's tokenizer" $program --prompt "the free software" \
    --tokenizer tests/reference/bpe_llama3.json
check "two prompts" exits 2 $program --prompt a --prompt-ids 1
check "a temperature below zero" exits 2 $program --prompt-ids 1 --temperature=-1
check "no temperature at all" exits 2 $program --prompt-ids 1 --temperature nan
check "a length of zero" exits 2 $program --prompt-ids 1 --length 0
check "a fixed setting" says "-D generate.B=" $work/gpt2 generate --B 4
check "weights of another model" exits 4 $work/gpt2 generate --prompt-ids 1 --weights $ref/llama_tiny.loud.safetensors
check "weights that are not there" exits 4 $work/gpt2 generate --prompt-ids 1 --weights $work/none
check "without weights a notice" says "no --weights" $work/gpt2 generate --prompt-ids 1 --length 2
check "a model without the section" eval "sed '/^generate/d' models/gpt2.it > '$work/plain.it'"
check "it compiles" compile "$work/plain.it" "$work/plain" $gpt2
check "and says what is missing" says "add generate {" "$work/plain" generate --prompt-ids 1
check "a full disk" exits 5 sh -c "$program --prompt-ids 1 > /dev/full"
finish

#!/usr/bin/env bash
# The README's language model: its three commands as they stand there, on a text; then tokenizers
# and mistakes of `infinic tokenize`.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
root=$PWD
program=$(readlink -f "$INFINIC")

# The indented lines of the section, comments cut off.
sed -n '/^## A language model/,/^## Text/{s/^    //p}' README.md | sed 's/  *# .*//' > "$work/commands"
check "the README has three commands" test "$(wc -l < "$work/commands")" = 3
mkdir "$work/readme"
cp -r LICENSE models "$work/readme/"
mv "$work/readme/LICENSE" "$work/readme/book.txt"
infinic() { "$program" "$@"; }
follow() { (cd "$work/readme" && set -e && . "$work/commands"); }
check "they train GPT-2" follow
check "and leave weights" test -s "$work/readme/run/model.safetensors"
falls() {
    (cd "$work/readme" && ./gpt2 train --data book.bin --steps 30 --metrics m.jsonl --quiet) &&
        losses "$work/readme/m.jsonl" |
        awk 'NR == 1 { first = $1 } { last = $1 } END { print first, last; exit !(first > 5 && last < first - 1) }'
}
check "the loss falls" falls

# Tokenizers: the same text in either family's tokens, and u32 for a large vocabulary.
for name in gpt2 llama3; do
    check "tokens of $name" "$INFINIC" tokenize LICENSE -o "$work/$name.bin" \
        --tokenizer="$root/tests/reference/bpe_$name.json"
    check "fewer tokens than bytes ($name)" test "$(stat -c %s "$work/$name.bin")" -lt \
        $((1024 + 2 * $(stat -c %s LICENSE)))
done
check "the same text gives the same file" "$INFINIC" tokenize LICENSE -o "$work/again.bin" \
    --tokenizer="$root/tests/reference/bpe_llama3.json"
check "byte for byte" cmp "$work/llama3.bin" "$work/again.bin"

check "no output named" says "-o FILE" exits 2 "$INFINIC" tokenize LICENSE
check "no text named" says "no text is given" exits 2 "$INFINIC" tokenize -o "$work/x"
check "an option of compiling" says "tokenize takes -o and --tokenizer only" exits 2 \
    "$INFINIC" tokenize LICENSE -o "$work/x" --check
check "a text that is not there" says "nowhere.txt" exits 5 "$INFINIC" tokenize nowhere.txt -o "$work/x"
: > "$work/empty.txt"
check "an empty text" says "there is no text" exits 4 "$INFINIC" tokenize "$work/empty.txt" -o "$work/x"
check "a device" says "is a device or pipe" exits 4 "$INFINIC" tokenize /dev/null -o "$work/x"
check "the text itself as output" says "would replace the text" exits 2 \
    "$INFINIC" tokenize "$work/readme/book.txt" -o "$work/readme/book.txt"
check "no such tokenizer" says "there is no such tokenizer" exits 4 \
    "$INFINIC" tokenize LICENSE -o "$work/x" --tokenizer="$work/none"
check "a folder without a tokenizer" says "neither tokenizer.json nor vocab.json" exits 4 \
    "$INFINIC" tokenize LICENSE -o "$work/x" --tokenizer="$root/models"
check "nothing is left behind" test ! -e "$work/x"
check "a text as tokens" says "this is text; make tokens of it" exits 4 \
    "$work/readme/gpt2" train --data LICENSE
finish

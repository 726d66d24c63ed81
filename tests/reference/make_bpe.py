"""Makes two small byte-level tokenizers and what the `tokenizers` library encodes with them.

usage: make_bpe.py TEXT OUTDIR      (needs tokenizers; TEXT is any English text to train on)

Writes bpe_gpt2.json and bpe_llama3.json (tokenizer.json files, pre-tokenizers as in the two
families) and bpe_cases.json: texts with the ids of each.
"""
import json, sys
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = [
    "", " ", "a", "Hello, world!", "The cat sat on the mat; it didn't move, and we'll see.",
    "I'm you're they've he'd it's don't", "I'M YOU'RE THEY'VE HE'D IT'S DON'T", "'s's 'S 't'T'", "'ſ 'ſt",
    "  two spaces", "trailing   ", "tabs\t\tand\tmore", "line\nline\n\nline\n", "a\r\nb\r\n\r\nc", " \n \n x",
    "x   \n   y", "x\u00a0y\u00a0\u00a0z", "a\u0085b \u0085 c", "a\u2028b\u3000c", "\u200bzero\u200bwidth",
    "12345 3.14159 1,000,000 2nd", "١٢٣٤٥ ½ Ⅷ x²", "naïve café Ünïcödé ß", "e\u0301te\u0301", "русский текст", "中文字符测试",
    "日本語のテスト", "한국어", "हिन्दी में", "👩\u200d👩\u200d👧 😀!", "ǅ ʰ ª º", "\U0001e900\U00010d40\U000323af",
    "a<|endoftext|>b", "a <|endoftext|> <|endoftext|>", "<|eot_id|><|eot<|eot_id", "<|endoftext", "!?!... --- ***\n\n",
    " ... (parenthesis) [x] {y}", "\x00\x01\x7f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababababababababababababababababababab", "thethethethe the  the   the", "\ufeffbom", "mixed中ABC12ab",
]


def make(llama3, text):
    t = Tokenizer(models.BPE(ignore_merges=llama3))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    t.pre_tokenizer = (pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]) if llama3
        else pre_tokenizers.ByteLevel(add_prefix_space=False))
    special = ["<|endoftext|>", "<|eot_id|>", "<|eot"] if llama3 else ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([text], trainer)
    return t


text, out = open(sys.argv[1], encoding="utf-8").read(), sys.argv[2]
made = {"gpt2": make(False, text), "llama3": make(True, text)}
for name, t in made.items():
    t.save(f"{out}/bpe_{name}.json", pretty=False)
with open(f"{out}/bpe_cases.json", "w") as file:
    rows = [{"text": x, **{n: t.encode(x, add_special_tokens=False).ids for n, t in made.items()}} for x in TEXTS]
    file.write('{"cases": [\n' + ",\n".join(json.dumps(r) for r in rows) + "\n]}\n")

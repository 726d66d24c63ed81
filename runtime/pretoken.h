/* pretoken.h - cuts text into the words that byte-pair encoding works on, one by one.
 *
 * Both styles are regular expressions in the tokenizers' files, tried in order at each place:
 *   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *           ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+     (a space before "?" in line two)
 */
#ifndef INF_RUNTIME_PRETOKEN_H
#define INF_RUNTIME_PRETOKEN_H

#include <stddef.h>

typedef enum InfPretokenStyle { INF_PRETOKEN_gpt2, INF_PRETOKEN_llama3 } InfPretokenStyle;

/* Bytes of the word at the beginning of `text`, which has `bytes` > 0 of them. */
size_t inf_pretoken_next(InfPretokenStyle style, const char *text, size_t bytes);

/* The style of a pattern as it stands in tokenizer.json; -1 for one that is not known. */
int inf_pretoken_style(const char *pattern);

#endif

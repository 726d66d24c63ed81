/* bpe.c - byte-pair encoding: tables, words to tokens, tokens to bytes. */
#include "runtime/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/bpe_table.h"
#include "runtime/check.h"

/* --- tables --- */

static size_t slots_for(size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

static InfCode out_of_memory(InfError *e) { return inf_fail(e, INF_IO, "out of memory"); }

InfCode inf_bpe_size(InfError *e, InfBpe *b, int64_t count, size_t merges) {
    INF_ASSERT(count >= 0 && count <= INF_BPE_TOKENS_MAX && merges <= INT32_MAX);
    b->count = (int32_t)count;
    b->text_slots = slots_for((size_t)count);
    b->merge_slots = slots_for(merges);
    b->token = calloc((size_t)count + 1, sizeof *b->token);
    b->by_text = malloc(b->text_slots * sizeof *b->by_text);
    b->merge = malloc(b->merge_slots * sizeof *b->merge);
    b->cache = calloc(INF_BPE_CACHE_SLOTS, sizeof *b->cache);
    if (!b->token || !b->by_text || !b->merge || !b->cache) return out_of_memory(e);
    memset(b->by_text, 0xff, b->text_slots * sizeof *b->by_text);
    memset(b->merge, 0xff, b->merge_slots * sizeof *b->merge);
    memset(b->byte_token, 0xff, sizeof b->byte_token);
    return INF_OK;
}

/* The slot that holds the text, or the empty one where it belongs. */
static size_t text_slot(const InfBpe *b, const char *text, size_t bytes) {
    size_t at = XXH3_64bits(text, bytes) & (b->text_slots - 1);
    for (; b->by_text[at] >= 0; at = (at + 1) & (b->text_slots - 1)) {
        const InfBpeToken *t = &b->token[b->by_text[at]];
        if (t->bytes == bytes && memcmp(t->text, text, bytes) == 0) break;
    }
    return at;
}

int32_t inf_bpe_find(const InfBpe *b, const char *text, size_t bytes) {
    return b->by_text[text_slot(b, text, bytes)];
}

InfCode inf_bpe_put_token(InfError *e, InfBpe *b, int64_t token, const char *text, size_t bytes) {
    INF_ASSERT(token >= 0 && token < b->count && bytes <= UINT32_MAX);
    InfBpeToken *t = &b->token[token];
    size_t slot = text_slot(b, text, bytes);
    if (bytes == 0) return inf_fail(e, INF_DATA, "token %lld has no text", (long long)token);
    if (t->text)
        return inf_fail(e, INF_DATA, "token %lld is both '%.*s' and '%.*s'", (long long)token,
                        (int)t->bytes, t->text, (int)bytes, text);
    if (b->by_text[slot] >= 0)
        return inf_fail(e, INF_DATA, "tokens %d and %lld have the same text '%.*s'",
                        b->by_text[slot], (long long)token, (int)bytes, text);
    t->text = malloc(bytes);
    if (!t->text) return out_of_memory(e);
    memcpy(t->text, text, bytes);
    t->bytes = (uint32_t)bytes;
    b->by_text[slot] = (int32_t)token;
    if (bytes == 1) b->byte_token[(unsigned char)text[0]] = (int32_t)token;
    return INF_OK;
}

static size_t merge_slot(const InfBpe *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (key * UINT64_C(0x9E3779B97F4A7C15)) >> 32 & (b->merge_slots - 1);
    while (b->merge[at].left >= 0 && (b->merge[at].left != left || b->merge[at].right != right))
        at = (at + 1) & (b->merge_slots - 1);
    return at;
}

void inf_bpe_put_merge(InfBpe *b, InfBpeMerge merge) {
    size_t at = merge_slot(b, merge.left, merge.right);
    if (b->merge[at].left < 0) b->merge[at] = merge;
}

const InfBpeMerge *inf_bpe_find_merge(const InfBpe *b, int32_t left, int32_t right) {
    const InfBpeMerge *m = &b->merge[merge_slot(b, left, right)];
    return m->left < 0 ? NULL : m;
}

/* --- opening --- */

static void make_bytes(InfBpe *b) {
    b->bytes_only = true;
    b->count = 256;
    for (int i = 0; i < 256; i++) b->byte_text[i] = (char)i;
}

InfCode inf_bpe_open(InfError *e, const char *where, InfBpe **out) {
    *out = NULL;
    InfBpe *b = calloc(1, sizeof *b);
    if (!b) return out_of_memory(e);
    InfCode code = INF_OK;
    if (strcmp(where, "bytes") == 0)
        make_bytes(b);
    else
        code = inf_bpe_load(e, b, where);
    if (code == INF_OK)
        *out = b;
    else
        inf_bpe_close(b);
    return code;
}

void inf_bpe_close(InfBpe *b) {
    if (!b) return;
    for (int32_t i = 0; b->token && i < b->count; i++) free(b->token[i].text);
    free(b->token);
    free(b->by_text);
    free(b->merge);
    free(b->special);
    free(b->cache);
    free(b->part);
    free(b->heap);
    free(b);
}

int32_t inf_bpe_vocabulary(const InfBpe *b) { return b->count; }

const char *inf_bpe_token(const InfBpe *b, int32_t token, size_t *bytes) {
    *bytes = 0;
    if (token < 0 || token >= b->count) return "";
    *bytes = b->bytes_only ? 1 : b->token[token].bytes;
    if (b->bytes_only) return &b->byte_text[token];
    return b->token[token].text ? b->token[token].text : "";
}

/* --- one word --- */

static bool before(const InfBpeCandidate *a, const InfBpeCandidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->part < b->part;
}

static void heap_push(InfBpeCandidate *heap, size_t *n, InfBpeCandidate c) {
    size_t at = (*n)++;
    for (; at > 0 && before(&c, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = c;
}

static InfBpeCandidate heap_pop(InfBpeCandidate *heap, size_t *n) {
    InfBpeCandidate top = heap[0], last = heap[--*n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < *n; at = child) {
        if (child + 1 < *n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* Puts the merge of a part and the one behind it on the heap, if there is one. */
static void offer(const InfBpe *b, InfBpeCandidate *heap, size_t *n, int32_t at) {
    const InfBpePart *p = &b->part[at];
    if (p->after < 0) return;
    const InfBpeMerge *m = inf_bpe_find_merge(b, p->token, b->part[p->after].token);
    if (m) heap_push(heap, n, (InfBpeCandidate){m->rank, at, m->left, m->right, m->token});
}

static InfCode make_room(InfError *e, InfBpe *b, size_t bytes) {
    if (bytes > INT32_MAX / 4)
        return inf_fail(e, INF_DATA, "a word of %zu bytes without a space", bytes);
    if (bytes <= b->parts_room) return INF_OK;
    /* A word of n bytes offers n - 1 merges at first and two more for each that is made. */
    InfBpePart *part = realloc(b->part, bytes * sizeof *part);
    if (part) b->part = part;
    InfBpeCandidate *heap = realloc(b->heap, 3 * bytes * sizeof *heap);
    if (heap) b->heap = heap;
    if (!part || !heap) return out_of_memory(e);
    b->parts_room = bytes;
    return INF_OK;
}

static InfCode split_bytes(InfError *e, InfBpe *b, const char *word, size_t bytes) {
    TRY(make_room(e, b, bytes));
    for (size_t i = 0; i < bytes; i++) {
        int32_t token = b->byte_token[(unsigned char)word[i]];
        if (token < 0)
            return inf_fail(e, INF_DATA, "the tokenizer has no token for the byte 0x%02x",
                            (unsigned)(unsigned char)word[i]);
        b->part[i] = (InfBpePart){token, (int32_t)i - 1, i + 1 < bytes ? (int32_t)i + 1 : -1};
    }
    return INF_OK;
}

/* Merges the parts of a word, the lowest rank first and the leftmost of equal ones. Candidates
 * whose parts have changed meanwhile are passed over. */
static void merge_parts(InfBpe *b, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i + 1 < bytes; i++) offer(b, b->heap, &n, (int32_t)i);
    while (n > 0) {
        InfBpeCandidate c = heap_pop(b->heap, &n);
        InfBpePart *left = &b->part[c.part];
        if (left->token != c.left || left->after < 0) continue;
        InfBpePart *right = &b->part[left->after];
        if (right->token != c.right) continue;
        left->token = c.token;
        left->after = right->after;
        right->token = -1;
        if (left->after >= 0) b->part[left->after].before = c.part;
        if (left->before >= 0) offer(b, b->heap, &n, left->before);
        offer(b, b->heap, &n, c.part);
    }
}

/* Collects tokens for the sink. */
enum { BATCH = 4096 };
typedef struct Output {
    InfBpeSink *sink;
    void *context;
    size_t count;
    int32_t token[BATCH];
} Output;

static InfCode flush(InfError *e, Output *o) {
    size_t count = o->count;
    o->count = 0;
    return count ? o->sink(e, o->context, o->token, count) : INF_OK;
}

static InfCode put(InfError *e, Output *o, int32_t token) {
    o->token[o->count++] = token;
    return o->count == BATCH ? flush(e, o) : INF_OK;
}

static void remember(InfBpeCached *slot, const char *word, size_t bytes, const InfBpePart *part) {
    uint8_t count = 0;
    int32_t at = 0;
    if (bytes > INF_BPE_CACHE_TEXT) return;
    for (; at >= 0 && count < INF_BPE_CACHE_TOKENS; at = part[at].after)
        slot->token[count++] = part[at].token;
    slot->bytes = at < 0 ? (uint8_t)bytes : 0;
    slot->count = count;
    memcpy(slot->text, word, bytes);
}

static InfCode put_word(InfError *e, InfBpe *b, Output *o, const char *word, size_t bytes) {
    InfBpeCached *slot = &b->cache[XXH3_64bits(word, bytes) % INF_BPE_CACHE_SLOTS];
    if (slot->bytes == bytes && bytes <= INF_BPE_CACHE_TEXT &&
        memcmp(slot->text, word, bytes) == 0) {
        for (int i = 0; i < slot->count; i++) TRY(put(e, o, slot->token[i]));
        return INF_OK;
    }
    int32_t whole = b->ignore_merges ? inf_bpe_find(b, word, bytes) : -1;
    if (whole >= 0) return put(e, o, whole);
    TRY(split_bytes(e, b, word, bytes));
    merge_parts(b, bytes);
    for (int32_t at = 0; at >= 0; at = b->part[at].after) TRY(put(e, o, b->part[at].token));
    remember(slot, word, bytes, b->part);
    return INF_OK;
}

/* --- a text --- */

/* The special token at the beginning of `text`, the longest; -1: none. */
static int32_t special_at(const InfBpe *b, const char *text, size_t bytes) {
    if (!b->special_start[(unsigned char)text[0]]) return -1;
    for (size_t i = 0; i < b->specials; i++) {
        const InfBpeToken *t = &b->token[b->special[i]];
        if (t->bytes <= bytes && memcmp(t->text, text, t->bytes) == 0) return b->special[i];
    }
    return -1;
}

static InfCode put_words(InfError *e, InfBpe *b, Output *o, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t word = inf_pretoken_next(b->style, text + at, bytes - at);
        TRY(put_word(e, b, o, text + at, word));
        at += word;
    }
    return INF_OK;
}

static InfCode put_text(InfError *e, InfBpe *b, Output *o, const char *text, size_t bytes) {
    size_t from = 0;
    for (size_t at = 0; at < bytes;) {
        int32_t special = special_at(b, text + at, bytes - at);
        if (special < 0) {
            at++;
            continue;
        }
        TRY(put_words(e, b, o, text + from, at - from));
        TRY(put(e, o, special));
        from = at += b->token[special].bytes;
    }
    return put_words(e, b, o, text + from, bytes - from);
}

InfCode inf_bpe_encode(InfError *e, InfBpe *b, const char *text, size_t bytes, InfBpeSink *sink,
                       void *context) {
    Output o = {.sink = sink, .context = context};
    if (b->bytes_only)
        for (size_t i = 0; i < bytes; i++) TRY(put(e, &o, (unsigned char)text[i]));
    else
        TRY(put_text(e, b, &o, text, bytes));
    return flush(e, &o);
}

typedef struct List {
    int32_t *token;
    size_t count, room;
} List;

static InfCode append(InfError *e, void *context, const int32_t *token, size_t count) {
    List *l = context;
    if (l->room - l->count < count) {
        size_t room = 2 * (l->count + count);
        int32_t *more = realloc(l->token, room * sizeof *more);
        if (!more) return out_of_memory(e);
        l->token = more;
        l->room = room;
    }
    memcpy(l->token + l->count, token, count * sizeof *token);
    l->count += count;
    return INF_OK;
}

InfCode inf_bpe_encode_all(InfError *e, InfBpe *b, const char *text, size_t bytes, int32_t **token,
                           size_t *count) {
    List l = {.token = malloc(sizeof *l.token), .room = 1};
    *token = NULL;
    *count = 0;
    if (!l.token) return out_of_memory(e);
    InfCode code = inf_bpe_encode(e, b, text, bytes, append, &l);
    if (code != INF_OK) {
        free(l.token);
        return code;
    }
    *token = l.token;
    *count = l.count;
    return INF_OK;
}

/* bpe_load.c - reads tokenizers from Hugging Face's files, and refuses what it does not know. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/bpe_table.h"
#include "runtime/check.h"
#include "runtime/file.h"
#include "runtime/safetensors.h"
#include "runtime/unicode.h"

enum { FILE_BYTES_MAX = 256 << 20 };

/* A file's text with a zero behind it. */
static InfCode read_whole(InfError *e, const char *path, char **text, size_t *bytes) {
    InfFile f;
    TRY(inf_file_open(e, path, &f));
    InfCode code = INF_OK;
    *text = NULL;
    if (f.size > FILE_BYTES_MAX)
        code = inf_fail(e, INF_DATA, "%s: %llu bytes; a tokenizer's file has at most %d", path,
                        (unsigned long long)f.size, FILE_BYTES_MAX);
    *bytes = (size_t)f.size;
    if (code == INF_OK && !(*text = calloc(*bytes + 1, 1)))
        code = inf_fail(e, INF_IO, "%s: out of memory", path);
    if (code == INF_OK) code = inf_file_read_at(e, &f, 0, *text, *bytes);
    inf_file_close(&f);
    return code;
}

static InfCode read_json(InfError *e, const char *path, json_t **out) {
    char *text = NULL;
    size_t bytes = 0;
    InfCode code = read_whole(e, path, &text, &bytes);
    if (code == INF_OK) code = inf_json_parse(e, path, text, bytes, out);
    free(text);
    return code;
}

/* --- the alphabet of bytes --- */

/* A byte that prints is written as the character of its code; the others, in order, as the
 * characters from U+0100 on. */
static bool prints(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static int byte_of(uint32_t code) {
    if (code < 256) return prints(code) ? (int)code : -1;
    for (unsigned byte = 0, next = 256; byte < 256; byte++)
        if (!prints(byte) && next++ == code) return (int)byte;
    return -1;
}

/* Text in that alphabet back into bytes, in place; false where it leaves the alphabet. */
static bool to_bytes(char *text, size_t length, size_t *bytes) {
    *bytes = 0;
    for (size_t at = 0; at < length;) {
        InfChar c = inf_char_at(text + at, length - at);
        int byte = byte_of(c.code);
        if (byte < 0) return false;
        at += c.bytes;
        text[(*bytes)++] = (char)byte;
    }
    return true;
}

/* --- what both forms share --- */

typedef struct Loading {
    InfBpe *b;
    const char *path; /* for messages */
    int32_t rank;     /* of the next merge */
} Loading;

/* The token written as `length` characters of the alphabet; `room` has that much space. */
static int32_t find_written(const Loading *l, const char *text, size_t length, char *room) {
    size_t bytes = 0;
    memcpy(room, text, length);
    return to_bytes(room, length, &bytes) ? inf_bpe_find(l->b, room, bytes) : -1;
}

/* One merge: "left right" as they are written in the files. */
static InfCode put_merge(InfError *e, Loading *l, const char *left, size_t left_length,
                         const char *right, size_t right_length) {
    size_t length = left_length + right_length;
    char *room = malloc(length + 1), *both = malloc(length + 1);
    InfBpeMerge m = {.left = -1, .right = -1, .rank = l->rank++, .token = -1};
    if (room && both) {
        memcpy(both, left, left_length);
        memcpy(both + left_length, right, right_length);
        m.left = find_written(l, left, left_length, room);
        m.right = find_written(l, right, right_length, room);
        m.token = find_written(l, both, length, room);
    }
    InfCode code = room && both ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    free(room);
    free(both);
    TRY(code);
    if (m.left < 0 || m.right < 0 || m.token < 0)
        return inf_fail(e, INF_DATA,
                        "%s: merge %d, of '%.*s' and '%.*s': one of the two or both together are "
                        "no token of the vocabulary",
                        l->path, m.rank + 1, (int)left_length, left, (int)right_length, right);
    inf_bpe_put_merge(l->b, m);
    return INF_OK;
}

/* The smallest count that all ids are below. */
static InfCode count_ids(InfError *e, const char *path, json_t *ids, int64_t *count) {
    const char *text;
    json_t *id;
    json_object_foreach(ids, text, id) {
        int64_t value = json_is_integer(id) ? (int64_t)json_integer_value(id) : -1;
        if (value < 0 || value >= INF_BPE_TOKENS_MAX)
            return inf_fail(e, INF_DATA, "%s: the id of '%s' is not in 0 to %d", path, text,
                            INF_BPE_TOKENS_MAX - 1);
        if (value >= *count) *count = value + 1;
    }
    return INF_OK;
}

static InfCode put_ids(InfError *e, Loading *l, json_t *ids) {
    const char *text;
    json_t *id;
    json_object_foreach(ids, text, id) {
        size_t bytes = 0;
        char *copy = strdup(text);
        if (!copy) return inf_fail(e, INF_IO, "out of memory");
        InfCode code =
            to_bytes(copy, strlen(text), &bytes)
                ? inf_bpe_put_token(e, l->b, json_integer_value(id), copy, bytes)
                : inf_fail(e, INF_DATA,
                           "%s: '%s' is no text of bytes: the tokenizer is not byte-level BPE, "
                           "as GPT-2's and LLaMA-3's are",
                           l->path, text);
        free(copy);
        TRY(code);
    }
    return INF_OK;
}

static int longest_first(const void *a, const void *b, void *context) {
    const InfBpe *t = context;
    uint32_t x = t->token[*(const int32_t *)a].bytes, y = t->token[*(const int32_t *)b].bytes;
    return (x < y) - (x > y);
}

/* --- tokenizer.json --- */

static bool is_absent(const json_t *value) { return !value || json_is_null(value); }

static InfCode refuse(InfError *e, const char *path, const char *key, json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    InfCode code =
        inf_fail(e, INF_DATA, "%s: %s = %.120s is not understood", path, key, text ? text : "?");
    free(text);
    return code;
}

static bool is_type(const json_t *part, const char *type) {
    const char *name = json_string_value(json_object_get(part, "type"));
    return name && strcmp(name, type) == 0;
}

static bool is_byte_level(const json_t *part, bool regex) {
    json_t *use = json_object_get(part, "use_regex");
    bool uses = use ? json_is_true(use) : true;
    return is_type(part, "ByteLevel") && uses == regex &&
           !json_is_true(json_object_get(part, "add_prefix_space"));
}

/* The pre-tokenizer: ByteLevel with its own pattern (GPT-2), or a pattern and ByteLevel behind. */
static InfCode read_style(InfError *e, InfBpe *b, const char *path, json_t *part) {
    json_t *list = json_object_get(part, "pretokenizers"), *split = json_array_get(list, 0);
    json_t *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    int style = json_is_string(pattern) ? inf_pretoken_style(json_string_value(pattern)) : -1;
    bool good = is_type(part, "Sequence") && json_array_size(list) == 2 &&
                is_type(split, "Split") && style >= 0 && behavior &&
                strcmp(behavior, "Isolated") == 0 &&
                !json_is_true(json_object_get(split, "invert")) &&
                is_byte_level(json_array_get(list, 1), false);
    if (is_byte_level(part, true))
        b->style = INF_PRETOKEN_gpt2;
    else if (good)
        b->style = (InfPretokenStyle)style;
    else
        return refuse(e, path, "pre_tokenizer", part);
    return INF_OK;
}

static InfCode check_model(InfError *e, const char *path, json_t *model) {
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    if (!is_type(model, "BPE") && !(json_is_object(model) && !json_object_get(model, "type")))
        return inf_fail(e, INF_DATA, "%s: the model is '%s'; byte-level BPE is read", path,
                        json_is_string(json_object_get(model, "type"))
                            ? json_string_value(json_object_get(model, "type"))
                            : "of no type");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        json_t *value = json_object_get(model, off[i]);
        bool empty = json_is_string(value) && json_string_length(value) == 0;
        if (!is_absent(value) && !empty) return refuse(e, path, off[i], value);
    }
    if (!json_is_object(json_object_get(model, "vocab")) ||
        !json_is_array(json_object_get(model, "merges")))
        return inf_fail(e, INF_DATA, "%s: the model lacks its vocab or its merges", path);
    return INF_OK;
}

static InfCode put_merges(InfError *e, Loading *l, json_t *merges) {
    size_t i;
    json_t *row;
    json_array_foreach(merges, i, row) {
        const char *left = json_string_value(json_array_get(row, 0));
        const char *right = json_string_value(json_array_get(row, 1));
        const char *both = json_string_value(row), *space = both ? strchr(both, ' ') : NULL;
        if (space)
            TRY(put_merge(e, l, both, (size_t)(space - both), space + 1, strlen(space + 1)));
        else if (left && right)
            TRY(put_merge(e, l, left, strlen(left), right, strlen(right)));
        else
            return refuse(e, l->path, "a merge", row);
    }
    return INF_OK;
}

/* The tokens that are found by name, and their ids' limit. */
static InfCode count_added(InfError *e, const char *path, json_t *added, int64_t *count) {
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    size_t i;
    json_t *row;
    json_array_foreach(added, i, row) {
        json_t *id = json_object_get(row, "id"), *content = json_object_get(row, "content");
        int64_t value = json_is_integer(id) ? (int64_t)json_integer_value(id) : -1;
        bool good = value >= 0 && value < INF_BPE_TOKENS_MAX && json_is_string(content) &&
                    json_string_length(content) > 0;
        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
            good = good && !json_is_true(json_object_get(row, flags[k]));
        if (!good) return refuse(e, path, "an added token", row);
        if (value >= *count) *count = value + 1;
    }
    return INF_OK;
}

static InfCode put_special(InfError *e, InfBpe *b, int64_t id, const char *text) {
    size_t bytes = strlen(text);
    if (inf_bpe_find(b, text, bytes) != id) TRY(inf_bpe_put_token(e, b, id, text, bytes));
    b->special[b->specials++] = (int32_t)id;
    b->special_start[(unsigned char)text[0]] = true;
    return INF_OK;
}

static InfCode take_specials(InfError *e, InfBpe *b, size_t count) {
    b->special = calloc(count + 1, sizeof *b->special);
    return b->special ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

static InfCode load_tokenizer(InfError *e, InfBpe *b, const char *path, json_t *root) {
    json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    json_t *normalizer = json_object_get(root, "normalizer");
    Loading l = {.b = b, .path = path};
    int64_t count = 0;
    TRY(check_model(e, path, model));
    if (!is_absent(normalizer)) return refuse(e, path, "normalizer", normalizer);
    TRY(read_style(e, b, path, json_object_get(root, "pre_tokenizer")));
    b->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    TRY(count_ids(e, path, json_object_get(model, "vocab"), &count));
    TRY(count_added(e, path, added, &count));
    TRY(inf_bpe_size(e, b, count, json_array_size(json_object_get(model, "merges"))));
    TRY(put_ids(e, &l, json_object_get(model, "vocab")));
    TRY(put_merges(e, &l, json_object_get(model, "merges")));
    TRY(take_specials(e, b, json_array_size(added)));
    size_t i;
    json_t *row;
    json_array_foreach(added, i, row)
        TRY(put_special(e, b, json_integer_value(json_object_get(row, "id")),
                        json_string_value(json_object_get(row, "content"))));
    qsort_r(b->special, b->specials, sizeof *b->special, longest_first, b);
    return INF_OK;
}

/* --- vocab.json and merges.txt: GPT-2 --- */

static size_t count_lines(const char *text) {
    size_t lines = 1;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static InfCode put_lines(InfError *e, Loading *l, const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\r\n");
        const char *space = memchr(text, ' ', length), *end = text + length;
        bool version = strncmp(text, "#version", 8) == 0;
        if (length > 0 && !version && !space)
            return inf_fail(e, INF_DATA, "%s: '%.*s' is no pair of tokens with a space between",
                            l->path, length > 60 ? 60 : (int)length, text);
        if (length > 0 && !version)
            TRY(put_merge(e, l, text, (size_t)(space - text), space + 1,
                          (size_t)(end - space) - 1));
        text = end + strspn(end, "\r\n");
    }
    return INF_OK;
}

static InfCode load_pair(InfError *e, InfBpe *b, const char *path, json_t *vocab,
                         const char *merges_path, const char *merges) {
    static const char end_of_text[] = "<|endoftext|>";
    Loading l = {.b = b, .path = path};
    int64_t count = 0;
    if (!json_is_object(vocab))
        return inf_fail(e, INF_DATA, "%s: is not an object of tokens and ids", path);
    TRY(count_ids(e, path, vocab, &count));
    TRY(inf_bpe_size(e, b, count, count_lines(merges)));
    TRY(put_ids(e, &l, vocab));
    l.path = merges_path;
    TRY(put_lines(e, &l, merges));
    TRY(take_specials(e, b, 1));
    int32_t end = inf_bpe_find(b, end_of_text, strlen(end_of_text));
    return end >= 0 ? put_special(e, b, end, end_of_text) : INF_OK;
}

/* --- which files --- */

static InfCode load_json(InfError *e, InfBpe *b, const char *path) {
    json_t *root = NULL;
    InfCode code = read_json(e, path, &root);
    if (code == INF_OK) code = load_tokenizer(e, b, path, root);
    json_decref(root);
    return code;
}

static InfCode load_files(InfError *e, InfBpe *b, const char *vocab_path, const char *merges_path) {
    json_t *vocab = NULL;
    char *merges = NULL;
    size_t bytes = 0;
    InfCode code = read_json(e, vocab_path, &vocab);
    if (code == INF_OK) code = read_whole(e, merges_path, &merges, &bytes);
    if (code == INF_OK) code = load_pair(e, b, vocab_path, vocab, merges_path, merges);
    json_decref(vocab);
    free(merges);
    return code;
}

static InfCode fail_absent(InfError *e, const char *dir) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out) {
        inf_dir_describe(out, dir, 12);
        fclose(out);
    }
    InfCode code = inf_fail(e, INF_DATA,
                            "%s: no tokenizer: neither tokenizer.json nor vocab.json with "
                            "merges.txt; there is %s",
                            dir, text ? text : "nothing");
    free(text);
    return code;
}

InfCode inf_bpe_load(InfError *e, InfBpe *b, const char *where) {
    struct stat st;
    if (stat(where, &st) != 0) {
        if (errno == ENOENT)
            return inf_fail(e, INF_DATA,
                            "%s: there is no such tokenizer; it is 'bytes', or a folder with "
                            "tokenizer.json, or with vocab.json and merges.txt",
                            where);
        return inf_fail_errno(e, "stat", where);
    }
    if (!S_ISDIR(st.st_mode)) return load_json(e, b, where);
    char *json = inf_path_join(where, "tokenizer.json");
    char *vocab = inf_path_join(where, "vocab.json"), *merges = inf_path_join(where, "merges.txt");
    InfCode code;
    if (!json || !vocab || !merges)
        code = inf_fail(e, INF_IO, "out of memory");
    else if (access(json, F_OK) == 0)
        code = load_json(e, b, json);
    else if (access(vocab, F_OK) == 0 && access(merges, F_OK) == 0)
        code = load_files(e, b, vocab, merges);
    else
        code = fail_absent(e, where);
    free(json);
    free(vocab);
    free(merges);
    return code;
}

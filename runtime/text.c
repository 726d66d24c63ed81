/* text.c - prompts in, tokens out. */
#include "runtime/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/check.h"

InfCode inf_ids_push(InfError *e, InfIds *t, int32_t id) {
    if (t->count == t->room) {
        uint64_t room = 0, bytes = 0;
        bool fits = inf_add((uint64_t)t->room, (uint64_t)t->room + 64, &room) &&
                    inf_mul(room, sizeof *t->id, &bytes);
        int32_t *grown = fits ? realloc(t->id, (size_t)bytes) : NULL;
        if (!grown) return inf_fail(e, INF_IO, "out of memory");
        t->id = grown;
        t->room = (int64_t)room;
    }
    t->id[t->count++] = id;
    return INF_OK;
}

/* --- the tokenizer --- */

static bool is_absent(const char *where) {
    return strcmp(where, "bytes") != 0 && access(where, F_OK) != 0 && errno == ENOENT;
}

static InfCode fail_absent(InfError *e, const char *where, const Plan *plan) {
    char what[256] = "";
    if (where) snprintf(what, sizeof what, " at %s", where);
    return inf_fail(e, INF_USAGE,
                    "%s has no tokenizer%s\n"
                    "  = hint: --tokenizer DIR names one (a folder with tokenizer.json, or bytes), "
                    "or give the prompt as ids: --prompt-ids 1,2,3",
                    plan->model, what);
}

InfCode inf_text_open(InfError *e, const Plan *plan, const InfOptions *o, int64_t limit,
                      InfText *out) {
    bool text = inf_option_given(o, OPT_prompt), given = inf_option_given(o, OPT_tokenizer);
    *out = (InfText){.plan = plan, .options = o, .limit = limit};
    out->where = inf_option_text(o, OPT_tokenizer, plan->generate.tokenizer);
    out->ids = inf_option_given(o, OPT_ids) || !out->where;
    if (!out->where || (out->ids && !text)) return INF_OK;
    if (given || !is_absent(out->where)) return inf_bpe_open(e, out->where, &out->bpe);
    if (text) return fail_absent(e, out->where, plan);
    fprintf(stderr, "%s: notice: no tokenizer at %s, so tokens are printed as ids\n", plan->model,
            out->where);
    out->ids = true;
    return INF_OK;
}

void inf_text_close(InfText *t) { inf_bpe_close(t->bpe); }

/* --- the prompt --- */

static bool is_between(char c) { return c == ' ' || c == ',' || c == '\t' || c == '\n'; }

/* "1,2,3", also with spaces. */
static InfCode read_ids(InfError *e, const InfText *t, const char *text, InfIds *out) {
    const char *at = text;
    while (is_between(*at)) at++;
    while (*at) {
        char *end = NULL;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || (*end && !is_between(*end)))
            return inf_fail(e, INF_USAGE,
                            "--prompt-ids needs whole numbers with commas between them, got '%.20s'"
                            " at character %lld",
                            at, (long long)(at - text) + 1);
        if (errno || id < 0 || id >= t->limit)
            return inf_fail(e, INF_USAGE,
                            "--prompt-ids: %.*s is no token of %s, whose ids are 0 to %lld",
                            (int)(end - at), at, t->plan->model, (long long)t->limit - 1);
        TRY(inf_ids_push(e, out, (int32_t)id));
        for (at = end; is_between(*at);) at++;
    }
    return INF_OK;
}

static InfCode read_text(InfError *e, InfText *t, const char *text, InfIds *out) {
    int32_t *token = NULL;
    size_t count = 0;
    if (!t->bpe) return fail_absent(e, NULL, t->plan);
    InfCode code = inf_bpe_encode_all(e, t->bpe, text, strlen(text), &token, &count);
    for (size_t i = 0; i < count && code == INF_OK; i++)
        code = token[i] < t->limit
                   ? inf_ids_push(e, out, token[i])
                   : inf_fail(e, INF_DATA,
                              "%s: the prompt holds token %d, and those of %s are 0 to %lld; it is "
                              "another model's tokenizer",
                              t->where, token[i], t->plan->model, (long long)t->limit - 1);
    free(token);
    return code;
}

InfCode inf_text_prompt(InfError *e, InfText *t, InfIds *out) {
    const char *ids = inf_option_text(t->options, OPT_prompt_ids, NULL);
    const char *text = inf_option_text(t->options, OPT_prompt, NULL);
    if (ids && text)
        return inf_fail(e, INF_USAGE, "--prompt and --prompt-ids are two ways to say one thing");
    if (!ids && !text)
        return inf_fail(e, INF_USAGE, "generate needs a prompt: %s--prompt-ids 1,2,3",
                        t->where ? "--prompt TEXT, or " : "");
    TRY(ids ? read_ids(e, t, ids, out) : read_text(e, t, text, out));
    if (out->count == 0)
        return inf_fail(e, INF_USAGE, "the prompt is empty: there is nothing to continue");
    return INF_OK;
}

/* --- tokens as they come --- */

/* Bytes of the character that begins with this one; 0: none does. */
static size_t character_bytes(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead < 0xe0) return 2;
    if (lead >= 0xe0 && lead < 0xf0) return 3;
    return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

size_t inf_text_whole(const char *text, size_t bytes) {
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - back];
        if (c >= 0x80 && c < 0xc0) continue; /* goes on */
        return character_bytes(c) > back ? bytes - back : bytes;
    }
    return bytes;
}

static InfCode write_all(InfError *e, const char *text, size_t bytes) {
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return inf_fail_errno(e, "write", "standard output");
    return INF_OK;
}

static InfCode put_text(InfError *e, InfText *t, int32_t id) {
    size_t bytes = 0;
    const char *token = inf_bpe_token(t->bpe, id, &bytes);
    if (bytes == 0) return INF_OK;
    /* The held bytes are less than a character, so a token either ends it or is short itself. */
    while (t->nheld > 0 && bytes > 0) {
        t->held[t->nheld++] = *token++;
        bytes--;
        if (t->nheld < sizeof t->held && inf_text_whole(t->held, t->nheld) < t->nheld) continue;
        TRY(write_all(e, t->held, t->nheld));
        t->nheld = 0;
    }
    size_t whole = inf_text_whole(token, bytes);
    TRY(write_all(e, token, whole));
    memcpy(t->held + t->nheld, token + whole, bytes - whole);
    t->nheld += bytes - whole;
    return INF_OK;
}

InfCode inf_text_put(InfError *e, InfText *t, int32_t id) {
    char number[32];
    if (!t->ids) return put_text(e, t, id);
    int bytes = snprintf(number, sizeof number, "%s%d", t->printed++ > 0 ? " " : "", id);
    return write_all(e, number, (size_t)bytes);
}

InfCode inf_text_end(InfError *e, InfText *t) {
    TRY(write_all(e, t->held, t->nheld));
    t->nheld = 0;
    t->printed = 0;
    return write_all(e, "\n", 1);
}

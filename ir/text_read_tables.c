/* text_read_tables.c - settings, parameters, segments and regions from text; see README.md. */
#include "ir/text_read.h"
#include "ir/text_words.h"

#include <string.h>

enum { PARAMS_MAX = 1 << 20, SCOPES_MAX = 10000, BUCKETS_MAX = 1 << 20 };

int text_read_choice(TextReader *r, int n, const char *const *words, const char *what) {
    for (int i = 0; i < n && r->kind == TOKEN_word; i++)
        if (text_is(r, words[i])) {
            text_next(r);
            return i;
        }
    text_fail_expected(r, what);
    return 0;
}

void text_read_location(TextReader *r, Scope *scope) {
    if (!text_accept(r, "loc")) return;
    Span span = text_span(r);
    const char *path = text_read_string(r);
    if (r->m->nscope >= SCOPES_MAX) {
        text_fail_limit(r, span, "the text has more than %d scopes", SCOPES_MAX);
        return;
    }
    if (!r->failed) *scope = module_scope(r->m, path);
    if (r->kind != TOKEN_string) return;
    text_read_string(r);
    for (int i = 0; i < 2; i++) {
        text_expect(r, ":");
        text_read_int(r, 0, UINT32_MAX);
    }
}

/* ---- settings ----------------------------------------------------------------------------- */

static int count_words(const char *const *words) {
    int n = 0;
    while (words[n] != NULL) n++;
    return n;
}

static void read_setting_value(TextReader *r, const Setting *s, void *at) {
    switch (s->kind) {
    case SETTING_int64: *(int64_t *)at = text_read_int(r, INT64_MIN, INT64_MAX); break;
    case SETTING_int: *(int *)at = (int)text_read_int(r, 0, INT32_MAX); break;
    case SETTING_float: *(double *)at = text_read_float(r); break;
    case SETTING_bool:
        *(bool *)at = text_read_choice(r, 2, (const char *const[]){"false", "true"},
                                       "'true' or 'false'") == 1;
        break;
    case SETTING_string: *(const char **)at = text_read_string(r); break;
    case SETTING_word:
        *(int *)at = text_read_choice(r, count_words(s->words), s->words, "one of its words");
        break;
    }
}

static void read_settings(TextReader *r) {
    text_expect(r, "{");
    while (!r->failed && !text_is(r, "}")) {
        const Setting *s = NULL;
        for (int i = 0; i < text_setting_count && s == NULL; i++)
            if (text_is(r, text_setting[i].key)) s = &text_setting[i];
        if (s == NULL) {
            text_fail_expected(r, "a setting of ir/text_words.c");
            return;
        }
        text_next(r);
        text_expect(r, "=");
        read_setting_value(r, s, (char *)r->m + s->offset);
    }
    text_expect(r, "}");
}

/* ---- parameters --------------------------------------------------------------------------- */

static void read_init(TextReader *r, Param *p) {
    p->init = (InitKind)text_read_choice(r, TEXT_INIT_COUNT, text_init, "an initialiser");
    if (!text_accept(r, "(")) return;
    p->init_a = text_read_float(r);
    text_expect(r, ")");
}

static void read_logical(TextReader *r, Param *p, int ndim) {
    int64_t dim[NDIM_MAX] = {0};
    Span span = text_span(r);
    int n = text_read_ints(r, dim);
    if (!r->failed && n != ndim - p->nstack)
        text_fail(r, span, "the logical shape has %d axes, the stored one %d", n, ndim - p->nstack);
    memcpy(p->logical, dim, sizeof dim);
}

/* "word=" or a bare word, each at most as often as the text has them; the last one counts. */
static bool read_param_field(TextReader *r, Param *p, int ndim) {
    int64_t *logical = p->logical;
    if (text_accept(r, "transposed")) return p->transposed = true;
    if (text_accept(r, "decay")) return p->decay = true;
    if (text_accept(r, "frozen")) {
        p->trainable = false;
        return true;
    }
    if (text_accept(r, "stack")) {
        text_expect(r, "=");
        p->nstack = (int)text_read_int(r, 0, ndim < STACK_MAX ? ndim : STACK_MAX);
        memmove(logical, logical + p->nstack, (size_t)(ndim - p->nstack) * sizeof *logical);
        for (int i = ndim - p->nstack; i < ndim; i++) logical[i] = 0;
        return true;
    }
    if (text_accept(r, "logical")) {
        text_expect(r, "=");
        read_logical(r, p, ndim);
        return true;
    }
    struct {
        const char *word;
        int *small;
        int64_t *large;
        int64_t max;
    } field[] = {{"uses", &p->uses, NULL, 1 << 20},
                 {"first", NULL, &p->first, REPEAT_COUNT_MAX},
                 {"origin", &p->origin, NULL, PARAMS_MAX},
                 {"part", &p->segment, NULL, SEGMENT_MAX - 1},
                 {"offset", NULL, &p->offset_elems, INT64_MAX},
                 {"stride", NULL, &p->stride_elems, INT64_MAX},
                 {"use_offset", NULL, &p->use_offset_elems, INT64_MAX}};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) {
        if (!text_accept(r, field[i].word)) continue;
        text_expect(r, "=");
        int64_t x = text_read_int(r, 0, field[i].max);
        if (field[i].small != NULL)
            *field[i].small = (int)x;
        else
            *field[i].large = x;
        return true;
    }
    return false;
}

static void read_param(TextReader *r) {
    Param p = {.trainable = true, .span = text_span(r)};
    int64_t index = text_read_int(r, 0, PARAMS_MAX);
    if (!r->failed && index != r->m->nparam)
        text_fail(r, p.span, "parameter %d is next, got %lld", r->m->nparam, (long long)index);
    p.name = text_read_string(r);
    p.type = text_read_type(r);
    if (r->failed) return;
    const TypeInfo *info = type_info(r->m->types, p.type);
    memcpy(p.logical, info->dim, sizeof p.logical);
    text_expect(r, "init");
    text_expect(r, "=");
    read_init(r, &p);
    while (read_param_field(r, &p, info->ndim)) continue;
    text_read_location(r, &p.scope);
    if (!r->failed) module_add_param(r->m, p);
}

/* ---- the rest ----------------------------------------------------------------------------- */

static void read_build(TextReader *r) {
    const char *key = text_read_string(r), *value = text_read_string(r);
    if (!r->failed) module_add_build(r->m, key, value);
}

static void read_alias(TextReader *r) {
    const char *name = text_read_string(r);
    int param = (int)text_read_int(r, 0, PARAMS_MAX);
    if (!r->failed) module_add_alias(r->m, name, param);
}

static void read_rank(TextReader *r) {
    Span at = text_span(r);
    int64_t rank = text_read_int(r, 0, CHUNKS_MAX - 1), nrank = text_read_int(r, 1, CHUNKS_MAX);
    if (!r->failed && rank >= nrank)
        text_fail(r, at, "rank %lld of %lld", (long long)rank, (long long)nrank);
    r->m->rank = (int)rank;
    r->m->nrank = (int)nrank;
    if (!r->failed && r->m->chunk == NULL) {
        r->m->chunk = ARENA_ARRAY(r->m->arena, int, CHUNKS_MAX);
        r->m->nchunk = 0;
    }
}

static void read_chunk(TextReader *r) {
    Module *m = r->m;
    Span at = text_span(r);
    int64_t index = text_read_int(r, 0, CHUNKS_MAX - 1),
            whole = text_read_int(r, 0, CHUNKS_MAX - 1);
    if (!r->failed && (m->chunk == NULL || index != m->nchunk))
        text_fail(r, at, "chunk %lld is not the next one of a rank", (long long)index);
    if (r->failed) return;
    m->chunk[m->nchunk++] = (int)whole;
}

static void read_segment(TextReader *r) {
    Segment s = {0};
    if (r->m->nsegment == SEGMENT_MAX) {
        text_fail(r, text_span(r), "there are at most %d segments", SEGMENT_MAX);
        return;
    }
    s.offset_elems = text_read_int(r, 0, INT64_MAX);
    s.elems = text_read_int(r, 0, INT64_MAX);
    s.decay = text_accept(r, "decay");
    s.owned = text_accept(r, "owned");
    if (!r->failed) r->m->segment[r->m->nsegment++] = s;
}

static void read_bucket(TextReader *r) {
    Bucket b = {.local = (int)text_read_int(r, 0, CHUNKS_MAX - 1)};
    Span at = text_span(r);
    if (!r->failed && r->m->nbucket == BUCKETS_MAX)
        text_fail_limit(r, at, "the text has more than %d buckets", BUCKETS_MAX);
    b.offset_elems = text_read_int(r, 0, INT64_MAX);
    b.elems = text_read_int(r, 0, INT64_MAX);
    if (!r->failed) module_add_bucket(r->m, b);
}

static void read_region(TextReader *r) {
    int region = text_read_choice(r, REGION_count, text_region, "a region");
    r->m->region_bytes[region] = text_read_int(r, 0, INT64_MAX);
}

static const struct {
    const char *word;
    void (*read)(TextReader *r);
} item_table[] = {
    {"settings", read_settings}, {"build", read_build},     {"param", read_param},
    {"alias", read_alias},       {"segment", read_segment}, {"region", read_region},
    {"rank", read_rank},         {"chunk", read_chunk},     {"bucket", read_bucket},
};

bool text_read_table(TextReader *r) {
    for (size_t i = 0; i < sizeof item_table / sizeof item_table[0]; i++)
        if (text_accept(r, item_table[i].word)) {
            item_table[i].read(r);
            return true;
        }
    return false;
}

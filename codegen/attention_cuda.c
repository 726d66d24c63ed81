/* attention_cuda.c - see attention_cuda.h.
 *
 * The text is attention_*.cu, readable files that travel inside infinic; a kernel is a struct of
 * constants (the traits S of those files) and a function of one line. How the work is cut depends
 * on the head's width alone: so wide a tile as fits, in tables below.
 */
#include "codegen/attention_cuda.h"
#include "codegen/print.h"

#include <inttypes.h>

/* attention.S */
extern const char attention_cuda_text[], attention_cuda_text_end[];

/* Rows a block keeps, in how many bands; rows of the tiles it walks over, buffers for them.
 * Backward: the rows and bands of blocks of queries, whether the tile of `out` is staged, too, and
 * kinds of blocks of keys. `blocks`: so many shall fit on a multiprocessor where wgmma does the
 * products (elsewhere registers are what they are). Measured on an H200; at 64 columns 168
 * registers are just enough for both kernels. */
typedef struct Cut {
    int dim_max, rows, bands, cols, stages, blocks;
    int query_rows, query_bands, out_tile, key_kinds;
} Cut;

static const Cut forward_bf16[] = {
    {64, 128, 2, 64, 2, 3, .key_kinds = 1},
    {128, 128, 2, 64, 2, 2, .key_kinds = 1},
    {256, 64, 1, 32, 2, 1, .key_kinds = 1},
};
static const Cut backward_bf16[] = {
    {64, 64, 1, 64, 2, 3, 128, 2, 1, 1},
    {128, 64, 1, 64, 2, 2, 64, 1, 1, 1},
    {256, 64, 1, 32, 1, 1, 64, 1, 0, 2},
};
static const Cut both_f32[] = {
    {64, 64, 1, 64, 1, 1, 64, 1, 0, 1},
    {128, 32, 1, 32, 1, 1, 32, 1, 0, 1},
    {256, 16, 1, 16, 1, 1, 16, 1, 0, 1},
};

enum { THREADS_F32 = 256, CACHE_FORWARD = 16 << 20, CACHE_BACKWARD = 8 << 20 };

static Cut cut_of(const AttentionSpec *s, bool backward) {
    const Cut *cut = s->dtype == DT_f32 ? both_f32 : backward ? backward_bf16 : forward_bf16;
    while (s->dim > cut->dim_max) cut++;
    return *cut;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t threads_of(const AttentionSpec *s, const Cut *cut) {
    return s->dtype == DT_f32 ? THREADS_F32 : 2 * cut->rows / cut->bands;
}

/* Bytes of shared memory. */
static int64_t shared_bytes(const AttentionSpec *s, const Cut *cut, bool backward) {
    if (s->dtype == DT_f32)
        return 4 * ((backward ? 4 : 2) * cut->rows * (s->dim + 4) + cut->rows * (cut->rows + 4));
    int64_t row = ceil_div(s->dim, 64) * 128, tile = cut->cols * row;
    if (!backward) return cut->rows * row + cut->stages * 2 * tile;
    int64_t keys = 2 * cut->rows * row + (cut->stages * 2 + cut->out_tile) * tile + cut->cols * 8;
    int64_t queries = 2 * cut->query_rows * row + cut->stages * 2 * tile;
    return keys > queries ? keys : queries;
}

AttentionLaunch attention_cuda_forward(const AttentionSpec *s) {
    Cut cut = cut_of(s, false);
    return (AttentionLaunch){.grid = ceil_div(s->queries, cut.rows) * s->batch * s->heads,
                             .block = (int)threads_of(s, &cut),
                             .shared_bytes = shared_bytes(s, &cut, false)};
}

AttentionLaunch attention_cuda_backward(const AttentionSpec *s) {
    Cut cut = cut_of(s, true);
    int64_t each = ceil_div(s->keys, cut.rows) * cut.key_kinds +
                   ceil_div(s->queries, cut.query_rows) * (s->heads / s->groups);
    return (AttentionLaunch){.grid = each * s->batch * s->groups,
                             .block = (int)threads_of(s, &cut),
                             .shared_bytes = shared_bytes(s, &cut, true)};
}

/* Heads (or groups of them) whose operands fit into the cache together, beside those of the chunks
 * before and after. */
static int64_t chunk_of(const AttentionSpec *s, bool backward) {
    int64_t row = s->dim * dtype_bytes(s->dtype), share = s->heads / s->groups;
    int64_t bytes = 2 * s->keys * row + (backward ? 3 * share * s->queries * row : 0);
    int64_t pairs = s->batch * (backward ? s->groups : s->heads);
    int64_t n = (backward ? CACHE_BACKWARD : CACHE_FORWARD) / (bytes > 0 ? bytes : 1);
    return n < 1 ? 1 : n > pairs ? pairs : n;
}

PlanSizes attention_cuda_sizes(const AttentionSpec *s) {
    return (PlanSizes){.batch = (int32_t)s->batch,
                       .queries = (int32_t)s->queries,
                       .keys = (int32_t)s->keys,
                       .chunk = (int32_t)chunk_of(s, false),
                       .q = s->q.b,
                       .k = s->k.b,
                       .v = s->v.b,
                       .out = s->out.b,
                       .turned = s->turned.b,
                       .lse = s->lse.b,
                       .lse_head = s->lse.h};
}

void attention_cuda_print_prelude(FILE *out) {
    fwrite(attention_cuda_text, 1, (size_t)(attention_cuda_text_end - attention_cuda_text), out);
}

/* --- a kernel --- */

static bool is_loose_view(const AttentionSpec *s, const AttentionView *v) {
    if (v->arg < 0) return false;
    int64_t bits = v->offset | v->b | v->h | v->t;
    return (s->loose >> v->arg & 1) || bits % (16 / dtype_bytes(s->dtype)) != 0;
}

static bool has_turned(const AttentionSpec *s) {
    return s->turn_q.pairs != PAIRS_none && s->turned.arg >= 0;
}

static bool has_loose_table(const AttentionSpec *s, const AttentionTurn *t) {
    return t->pairs != PAIRS_none && (s->loose >> t->cosine & 1 || s->loose >> t->sine & 1);
}

static bool is_loose(const AttentionSpec *s, bool backward) {
    bool loose = is_loose_view(s, &s->q) || is_loose_view(s, &s->k) || is_loose_view(s, &s->v) ||
                 is_loose_view(s, &s->out) || has_loose_table(s, &s->turn_q) ||
                 (has_turned(s) && is_loose_view(s, &s->turned));
    if (!backward) return loose;
    return loose || has_loose_table(s, &s->turn_dq) || has_loose_table(s, &s->turn_dk) ||
           is_loose_view(s, &s->dout) || is_loose_view(s, &s->dq) || is_loose_view(s, &s->dk) ||
           is_loose_view(s, &s->dv);
}

static void print_view(const AttentionSpec *s, const char *name, const AttentionView *v,
                       FILE *out) {
    fputs("        ", out);
    if (!s->any_size) fprintf(out, "%s_B = %" PRId64 ", ", name, v->b);
    fprintf(out, "%s_H = %" PRId64 ", %s_T = %" PRId64 ",\n", name, v->h, name, v->t);
}

static void print_constant(const char *name, double value, FILE *out) {
    fprintf(out, "    static __device__ constexpr float %s() { return %.9ef; }\n", name,
            (double)(float)value);
}

static void print_turn(const char *name, const AttentionTurn *t, FILE *out) {
    fprintf(out, "        PAIRS_%s = %d, BACK_%s = %d,\n", name, t->pairs, name, t->back);
}

/* Which results anybody reads, and which rows are turned. */
static void print_wanted(const AttentionSpec *s, bool backward, FILE *out) {
    if (backward) {
        print_turn("DQ", &s->turn_dq, out);
        print_turn("DK", &s->turn_dk, out);
    } else {
        print_turn("Q", &s->turn_q, out);
        fprintf(out, "        HAS_TURNED = %d,\n", has_turned(s));
    }
    if (backward)
        fprintf(out, "        HAS_DQ = %d, HAS_DK = %d, HAS_DV = %d\n    };\n", s->dq.arg >= 0,
                s->dk.arg >= 0, s->dv.arg >= 0);
    else
        fprintf(out, "        HAS_OUT = %d, HAS_LSE = %d\n    };\n", s->out.arg >= 0,
                s->lse.arg >= 0);
}

static void print_traits(const AttentionSpec *s, bool backward, const char *name, FILE *out) {
    const double log2_e = 1.4426950408889634;
    Cut cut = cut_of(s, backward);
    fprintf(out, "struct %s_traits%s {\n    enum : int {\n", name,
            s->any_size ? " : AttnSizes" : "");
    if (!s->any_size)
        fprintf(out, "        BATCH = %" PRId64 ", QUERIES = %" PRId64 ", KEYS = %" PRId64 ",\n",
                s->batch, s->queries, s->keys);
    fprintf(out, "        HEADS = %" PRId64 ", GROUPS = %" PRId64 ", DIM = %" PRId64 ",\n",
            s->heads, s->groups, s->dim);
    fprintf(out, "        CAUSAL = %d, LOOSE = %d, NEGATIVE = %d,\n", s->causal,
            is_loose(s, backward), s->scale < 0);
    fprintf(out, "        ROWS = %d, BANDS = %d, COLS = %d, STAGES = %d,\n", cut.rows, cut.bands,
            cut.cols, cut.stages);
    fprintf(out, "        QUERY_ROWS = %d, QUERY_BANDS = %d, OUT_TILE = %d, KEY_KINDS = %d,\n",
            cut.query_rows, cut.query_bands, cut.out_tile, cut.key_kinds);
    if (!s->any_size) fprintf(out, "        CHUNK = %" PRId64 ",\n", chunk_of(s, backward));
    print_wanted(s, backward, out);
    fputs("    enum : int64_t {\n", out);
    print_view(s, "Q", &s->q, out);
    print_view(s, "K", &s->k, out);
    print_view(s, "V", &s->v, out);
    print_view(s, "O", &s->out, out);
    if (!backward) print_view(s, "TURNED", &s->turned, out);
    if (backward) print_view(s, "DO", &s->dout, out);
    if (backward) print_view(s, "DQ", &s->dq, out);
    if (backward) print_view(s, "DK", &s->dk, out);
    if (backward) print_view(s, "DV", &s->dv, out);
    if (!s->any_size)
        fprintf(out, "        L_B = %" PRId64 ", L_H = %" PRId64 "\n", s->lse.b, s->lse.h);
    fputs("    };\n", out);
    print_constant("scale", s->scale, out);
    print_constant("slope_log2", s->scale * log2_e, out);
    /* A running maximum needs a slope above 0. */
    double steep = s->scale < 0 ? -s->scale : s->scale;
    print_constant("scale_log2", steep * log2_e > 1e-30 ? steep * log2_e : 1e-30, out);
    fputs("};\n", out);
}

/* The line that opens the kernel: arguments a0, a1, .. with their types. */
static void print_head(const AttentionSpec *s, const Cut *cut, const char *name, FILE *out) {
    fprintf(out, "INF_KERNEL(%" PRId64, threads_of(s, cut));
    if (s->dtype == DT_bf16) fprintf(out, " ATTN_BLOCKS(%d)", cut->blocks);
    fprintf(out, ") %s(", name);
    for (int i = 0; i < s->nargs; i++)
        fprintf(out, "%s%s *a%d, ", i < s->nread ? "const " : "",
                print_memory_type(s->arg_dtype[i]), i);
    fprintf(out, "InfDeviceEnv env%s) {\n", s->any_size ? ", AttnSizes sizes" : "");
}

static void print_pointer(const AttentionView *v, const char *after, FILE *out) {
    if (v->arg < 0)
        fprintf(out, "0%s", after);
    else
        fprintf(out, "a%d + %" PRId64 "%s", v->arg, v->offset, after);
}

/* ", {cosine, sine" with `after`. */
static void print_tables(const AttentionTurn *t, const char *after, FILE *out) {
    if (t->pairs == PAIRS_none)
        fprintf(out, ", {0, 0%s", after);
    else
        fprintf(out, ", {a%d, a%d%s", t->cosine, t->sine, after);
}

void attention_cuda_print_forward(const AttentionSpec *s, const char *name, FILE *out) {
    Cut cut = cut_of(s, false);
    print_traits(s, false, name, out);
    print_head(s, &cut, name, out);
    fprintf(out, "    const %s_traits spec = {%s};\n", name, s->any_size ? "sizes" : "");
    fprintf(out, "    attn_forward_%s(spec, ", dtype_name(s->dtype));
    print_pointer(&s->q, ", ", out);
    print_pointer(&s->k, ", ", out);
    print_pointer(&s->v, ", ", out);
    print_pointer(&s->out, ", ", out);
    print_pointer(&s->lse, "", out);
    print_tables(&s->turn_q, "}, ", out);
    print_pointer(has_turned(s) ? &s->turned : &(AttentionView){.arg = -1}, ");\n}\n", out);
}

void attention_cuda_print_backward(const AttentionSpec *s, const char *name, FILE *out) {
    Cut cut = cut_of(s, true);
    print_traits(s, true, name, out);
    print_head(s, &cut, name, out);
    fprintf(out, "    attn_backward_%s<%s_traits>({", dtype_name(s->dtype), name);
    print_pointer(&s->q, ", ", out);
    print_pointer(&s->k, ", ", out);
    print_pointer(&s->v, ", ", out);
    print_pointer(&s->out, ", ", out);
    print_pointer(&s->dout, ",\n        ", out);
    print_pointer(&s->lse, ", ", out);
    print_pointer(&s->dq, ", ", out);
    print_pointer(&s->dk, ", ", out);
    print_pointer(&s->dv, "", out);
    print_tables(&s->turn_dq, "}", out);
    print_tables(&s->turn_dk, "}});\n}\n", out);
}

/* print_cuda.c - the loop form as CUDA C: one __global__ function a kernel, one temporary an
 * operation.
 *
 * The grid axis is blockIdx.x, the thread axis in it threadIdx.x; indices are int32_t wherever
 * their range is known to fit. A vector loop has four or eight iterations: loads and stores of
 * neighbours whose address is a multiple of that many elements go in accesses of 16 bytes (less
 * where four elements are less) before and after it. Unrolled loops
 * stay loops under #pragma unroll, registers are arrays that the compiler takes apart. Words that
 * are not C++ are macros of prelude_cuda.h, so that tests can run the same text without a device.
 */
#include "codegen/print.h"

#include <inttypes.h>

enum { QUAD = 4, WIDE = 8 };

/* --- buffers --- */

static bool has_number(LoopSpace space) { return space != LOOP_param; }

static void print_name(Printer *p, LoopBuf b) {
    const LoopBufInfo *info = loop_buf_info(p->k, b);
    fputs(info->name, p->out);
    if (has_number(info->space)) fprintf(p->out, "%" PRIu32, b.id);
}

/* Two bytes in memory, a float in a temporary. */
static bool is_half(const LoopBufInfo *b) {
    return b->dtype == DT_bf16 && (b->space == LOOP_param || b->space == LOOP_shared);
}

static void print_access(Printer *p, LoopBuf b, LoopIdx index) {
    print_name(p, b);
    fputc('[', p->out);
    print_index(p, index, print_short(p, index));
    fputc(']', p->out);
}

static void print_buf(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    bool memory = b->space == LOOP_shared;
    print_line(p);
    if (b->dynamic) {
        fprintf(p->out, "INF_DYNAMIC(%s, ", print_memory_type(b->dtype));
        print_name(p, s->buf);
        fprintf(p->out, ", %" PRId64 ")\n", b->elems);
        return;
    }
    fprintf(p->out, "%s%s ", memory ? "INF_SHARED " : "",
            memory ? print_memory_type(b->dtype) : print_scalar_type(b->dtype));
    print_name(p, s->buf);
    fprintf(p->out, "[%" PRId64 "];\n", b->elems > 0 ? b->elems : 1);
}

/* --- four or eight neighbours at once --- */

static int64_t extent_of(const Printer *p, LoopAxis axis) {
    return p->k->axis.data[axis.id].extent;
}

static int term_depth(const Printer *p, const LoopTerm *t) {
    switch (t->kind) {
    case LOOP_TERM_axis: return p->k->axis.data[t->id].depth;
    case LOOP_TERM_val: return p->k->val.data[t->id].depth;
    default: return loop_idx_depth(p->k, (LoopIdx){t->id});
    }
}

/* Whether the index is `axis` plus a multiple of its extent that is known before its loop. */
static bool is_quad_index(const Printer *p, LoopIdx index, LoopAxis axis) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    int64_t extent = extent_of(p, axis);
    bool found = false;
    if (info->constant % extent != 0) return false;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        if (t->kind == LOOP_TERM_axis && t->id == axis.id) {
            if (t->scale != 1) return false;
            found = true;
        } else if (t->scale % extent != 0 || term_depth(p, t) >= p->k->axis.data[axis.id].depth) {
            return false;
        }
    }
    return found;
}

static bool is_quad(const Printer *p, const LoopStmt *s, LoopAxis axis) {
    if (s->kind != LOOP_STMT_load && s->kind != LOOP_STMT_store) return false;
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    bool guarded = s->nargs > (s->kind == LOOP_STMT_store);
    return (b->space == LOOP_param || b->space == LOOP_shared) && !b->loose && !guarded &&
           b->access != LOOP_WORKSPACE && is_quad_index(p, s->index, axis);
}

/* Whether the statement stands in the body of the vector loop being printed and is part of an
 * access of several. */
static bool in_quad(const Printer *p, const LoopStmt *s) {
    if (!p->vector || !is_quad(p, s, p->vector->axis)) return false;
    for (uint32_t i = 0; i < p->vector->body.n; i++)
        if (p->vector->body.data[i] == s) return true;
    return false;
}

static char quad_letter(Dtype d) { return print_is_integer(d) ? 'i' : 'f'; }

/* Loads in front of the loop, room for what it stores. */
static void print_quads_before(Printer *p, const LoopStmt *loop) {
    for (uint32_t i = 0; i < loop->body.n; i++) {
        const LoopStmt *s = loop->body.data[i];
        if (!is_quad(p, s, loop->axis)) continue;
        char letter = quad_letter(loop_buf_info(p->k, s->buf)->dtype);
        int n = (int)extent_of(p, loop->axis);
        print_line(p);
        if (s->kind == LOOP_STMT_store) {
            fprintf(p->out, "inf_%c%d q%" PRIu32 "_%" PRIu32 ";\n", letter, n, s->arg[0].id,
                    s->buf.id);
            continue;
        }
        fprintf(p->out, "const inf_%c%d q%" PRIu32 " = inf_load%d(&", letter, n, s->result.id, n);
        print_access(p, s->buf, s->index);
        fputs(");\n", p->out);
    }
}

static void print_quads_after(Printer *p, const LoopStmt *loop) {
    for (uint32_t i = 0; i < loop->body.n; i++) {
        const LoopStmt *s = loop->body.data[i];
        if (s->kind != LOOP_STMT_store || !is_quad(p, s, loop->axis)) continue;
        print_line(p);
        fprintf(p->out, "inf_store%d(&", (int)extent_of(p, loop->axis));
        print_access(p, s->buf, s->index);
        fprintf(p->out, ", q%" PRIu32 "_%" PRIu32 ");\n", s->arg[0].id, s->buf.id);
    }
}

static bool has_quads(const Printer *p, const LoopStmt *loop) {
    for (uint32_t i = 0; i < loop->body.n; i++)
        if (is_quad(p, loop->body.data[i], loop->axis)) return true;
    return false;
}

/* --- memory --- */

static void print_load(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    bool foreign = b->space == LOOP_param && b->access == LOOP_WORKSPACE;
    print_begin(p, s);
    if (in_quad(p, s)) {
        fprintf(p->out, "q%" PRIu32 ".v[i%" PRIu32 "];\n", s->result.id, p->vector->axis.id);
        return;
    }
    if (s->nargs) fprintf(p->out, "t%" PRIu32 " ? ", s->arg[0].id);
    if (foreign || is_half(b)) fputs(foreign ? "INF_LOAD_SHARED(&" : "inf_from_bf16(", p->out);
    print_access(p, s->buf, s->index);
    if (foreign || is_half(b)) fputc(')', p->out);
    if (s->nargs) {
        fputs(" : ", p->out);
        print_number(p, b->dtype, s->number);
    }
    fputs(";\n", p->out);
}

static void print_store(Printer *p, const LoopStmt *s) {
    bool half = is_half(loop_buf_info(p->k, s->buf)) && !in_quad(p, s);
    print_line(p);
    if (in_quad(p, s)) {
        fprintf(p->out, "q%" PRIu32 "_%" PRIu32 ".v[i%" PRIu32 "]", s->arg[0].id, s->buf.id,
                p->vector->axis.id);
    } else {
        if (s->nargs > 1) fprintf(p->out, "if (t%" PRIu32 ") ", s->arg[1].id);
        print_access(p, s->buf, s->index);
    }
    fprintf(p->out, half ? " = inf_to_bf16(t%" PRIu32 ");\n" : " = t%" PRIu32 ";\n", s->arg[0].id);
}

/* --- operations --- */

static void print_fma(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    fprintf(p->out, "%s(t%" PRIu32 ", t%" PRIu32 ", t%" PRIu32 ");\n", p->words->fma, s->arg[0].id,
            s->arg[1].id, s->arg[2].id);
}

/* Numbers come four at a time where the place of the first is a multiple of four. */
static void print_fill(Printer *p, const LoopStmt *s) {
    const LoopIdxInfo *info = loop_idx_info(p->k, s->index);
    int64_t n = loop_buf_info(p->k, s->buf)->elems;
    bool quad = n % QUAD == 0 && n <= WIDE && info->constant % QUAD == 0;
    for (int i = 0; i < info->nterm; i++) quad &= info->term[i].scale % QUAD == 0;
    bool once = quad && n == QUAD;
    print_line(p);
    if (!once)
        fprintf(p->out, "for (int32_t l = 0; l < %" PRId64 "; l%s) ", n, quad ? " += 4" : "++");
    if (!quad) {
        print_name(p, s->buf);
        fputs("[l] = inf_random1(", p->out);
        print_stream(p, s);
        fputs(" + (uint64_t)l);\n", p->out);
        return;
    }
    fputs("inf_random_quad(", p->out);
    print_stream(p, s);
    fputs(once ? ", " : " + (uint64_t)l, ", p->out);
    print_name(p, s->buf);
    fputs(once ? ");\n" : " + l);\n", p->out);
}

static void print_sync(Printer *p, const LoopStmt *s) {
    (void)s;
    print_line(p);
    fputs("__syncthreads();\n", p->out);
}

static void print_group(Printer *p, const LoopStmt *s) {
    Dtype dtype = loop_val_info(p->k, s->result)->dtype;
    print_line(p);
    fprintf(p->out, "%s t%" PRIu32 " = t%" PRIu32 ";\n", print_scalar_type(dtype), s->result.id,
            s->arg[0].id);
    if (s->low == 1) return;
    print_line(p);
    if (s->low <= 32)
        fprintf(p->out, "INF_FOLD_WARP(t%" PRIu32 ", %" PRId64, s->result.id, s->low);
    else
        fprintf(p->out, "INF_FOLD_BLOCK(t%" PRIu32 ", %" PRId64 ", %d", s->result.id, s->low,
                p->k->threads);
    fprintf(p->out, ", %s, ", print_scalar_type(dtype));
    print_expr(p, s, print_is_integer(dtype), NULL);
    fputs(")\n", p->out);
}

static void print_last(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    fprintf(p->out, "inf_last(&%s_count[", p->name);
    print_index(p, s->index, print_short(p, s->index));
    fprintf(p->out, "], %" PRId64 "u);\n", s->low);
}

/* --- the tensor cores --- */

static void print_tf32(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    fprintf(p->out, "INF_TF32(t%" PRIu32 ");\n", s->arg[0].id);
}

static void print_mma(Printer *p, const LoopStmt *s) {
    const LoopMma *m = s->mma;
    print_line(p);
    fputs("INF_MMA_TF32(&", p->out);
    print_access(p, m->c, m->c_at);
    fputs(", &", p->out);
    print_access(p, m->a, m->a_at);
    fputs(", &", p->out);
    print_access(p, m->b, m->b_at);
    fputs(");\n", p->out);
}

/* --- loops --- */

static const char *axis_type(const Printer *p, LoopAxis axis) {
    return print_axis_is_short(p, axis) ? "int32_t" : "int64_t";
}

static void print_bound(Printer *p, const char *stem, uint32_t id, LoopIdx index, int64_t extent) {
    bool narrow = print_short(p, index);
    print_line(p);
    fprintf(p->out, "const %s %s%" PRIu32 " = ", narrow ? "int32_t" : "int64_t", stem, id);
    if (extent) fprintf(p->out, "INF_MIN(%" PRId64 ", ", extent);
    print_index(p, index, narrow);
    fputs(extent ? ");\n" : ";\n", p->out);
}

static void print_for(Printer *p, const LoopStmt *s) {
    const LoopAxisInfo *a = &p->k->axis.data[s->axis.id];
    uint32_t id = s->axis.id;
    if (a->begin.id) print_bound(p, "b", id, a->begin, 0);
    if (a->bound.id) print_bound(p, "n", id, a->bound, a->extent);
    if (a->kind == LOOP_unroll || a->kind == LOOP_vector) {
        print_line(p);
        fputs("#pragma unroll\n", p->out);
    }
    print_line(p);
    fprintf(p->out, "for (%s i%" PRIu32 " = ", axis_type(p, s->axis), id);
    if (a->begin.id)
        fprintf(p->out, "b%" PRIu32, id);
    else
        fputc('0', p->out);
    fprintf(p->out, "; i%" PRIu32 " < ", id);
    if (a->bound.id)
        fprintf(p->out, "n%" PRIu32, id);
    else
        fprintf(p->out, "%" PRId64, a->extent);
    fprintf(p->out, "; i%" PRIu32 "++) {\n", id);
    print_body(p, &s->body);
}

static void print_vector(Printer *p, const LoopStmt *s) {
    int64_t extent = extent_of(p, s->axis);
    bool quads = (extent == QUAD || extent == WIDE) && has_quads(p, s);
    const LoopStmt *outer = p->vector;
    if (!quads) {
        p->vector = NULL;
        print_for(p, s);
        p->vector = outer;
        return;
    }
    print_line(p);
    fputs("{\n", p->out);
    p->indent++;
    p->known[s->axis.id] = true;
    p->value[s->axis.id] = 0;
    print_quads_before(p, s);
    p->known[s->axis.id] = false;
    p->vector = s;
    print_for(p, s);
    p->vector = outer;
    p->known[s->axis.id] = true;
    print_quads_after(p, s);
    p->known[s->axis.id] = false;
    p->indent--;
    print_line(p);
    fputs("}\n", p->out);
}

static void print_loop(Printer *p, const LoopStmt *s) {
    const LoopAxisInfo *a = &p->k->axis.data[s->axis.id];
    bool fixed = a->kind == LOOP_grid || a->kind == LOOP_thread;
    if (a->extent == 1 && !a->begin.id && !a->bound.id && !fixed) {
        print_block(p, &s->body); /* nothing mentions the axis */
        return;
    }
    if (a->kind == LOOP_vector) {
        print_vector(p, s);
        return;
    }
    if (!fixed) {
        print_for(p, s);
        return;
    }
    LOOP_ASSERT(a->depth == (a->kind == LOOP_grid ? 1 : 2));
    print_line(p);
    fprintf(p->out, "const %s i%" PRIu32 " = (%s)%s.x;\n", axis_type(p, s->axis), s->axis.id,
            axis_type(p, s->axis), a->kind == LOOP_grid ? "blockIdx" : "threadIdx");
    print_block(p, &s->body);
}

static PrintStmt *const print_stmt[LOOP_STMT_COUNT] = {
    [LOOP_STMT_loop] = print_loop,        [LOOP_STMT_if] = print_if_stmt,
    [LOOP_STMT_let] = print_let_stmt,     [LOOP_STMT_buf] = print_buf,
    [LOOP_STMT_const] = print_const_stmt, [LOOP_STMT_index] = print_index_stmt,
    [LOOP_STMT_range] = print_range_stmt, [LOOP_STMT_op] = print_scalar_op,
    [LOOP_STMT_fma] = print_fma,          [LOOP_STMT_load] = print_load,
    [LOOP_STMT_store] = print_store,      [LOOP_STMT_random] = print_random_stmt,
    [LOOP_STMT_fill] = print_fill,        [LOOP_STMT_sync] = print_sync,
    [LOOP_STMT_group] = print_group,      [LOOP_STMT_last] = print_last,
    [LOOP_STMT_tf32] = print_tf32,        [LOOP_STMT_mma] = print_mma,
};

static const PrintWords words = {.nan = "__builtin_nanf(\"\")",
                                 .fma = "INF_FMA",
                                 .env = "env",
                                 .field = "env.",
                                 .short_axes = true,
                                 .stmt = print_stmt};

static void print_param(Printer *p, int i) {
    const LoopBufInfo *b = &p->k->buf.data[i + 1];
    fprintf(p->out, "%s%s *%s%s, ", b->access == LOOP_READ ? "const " : "",
            print_memory_type(b->dtype),
            b->shared || b->access == LOOP_WORKSPACE ? "" : "__restrict__ ", b->name);
}

void loop_print_cuda(const LoopKernel *k, const char *name, FILE *out) {
    if (k->text) {
        k->text->print(k, name, out);
        return;
    }
    Printer p = print_start(k, &words, name, out);
    if (k->counters) fprintf(out, "INF_COUNTERS(%s_count, %" PRId64 ")\n", name, k->counters);
    fprintf(out, "INF_KERNEL(%d) %s(", k->threads ? k->threads : 32, name);
    for (int i = 0; i < k->nparam; i++) print_param(&p, i);
    fputs("InfDeviceEnv env) {\n", out);
    print_block(&p, &k->block[0]);
    fputs("}\n", out);
}

/* prelude.S */
extern const char loop_prelude_cuda_text[], loop_prelude_cuda_text_end[];
extern const char loop_stage_cuda_text[], loop_stage_cuda_text_end[];

void loop_print_cuda_prelude(FILE *out) {
    fwrite(loop_prelude_cuda_text, 1, (size_t)(loop_prelude_cuda_text_end - loop_prelude_cuda_text),
           out);
    print_math(out);
}

void loop_print_cuda_stage(FILE *out) {
    fwrite(loop_stage_cuda_text, 1, (size_t)(loop_stage_cuda_text_end - loop_stage_cuda_text), out);
}

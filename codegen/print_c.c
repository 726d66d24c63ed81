/* print_c.c - the loop form as C: one function a kernel, one temporary an operation.
 *
 * Grid loops become OpenMP loops with a static schedule when the kernel does enough work, vector
 * loops `omp simd`; unrolled loops are written out, each copy in a block of its own, with the axis
 * replaced by its number. The text of an operation is its row of ops.def with operands put in; the
 * vocabulary is defined by prelude.h. bool is one byte in memory and int32_t in a temporary.
 */
#include "codegen/print.h"

#include <inttypes.h>
#include <string.h>

/* Below this many elementary operations a parallel region costs more than it gives. */
enum { PARALLEL_WORK_MIN = 32768 };

const char *const loop_c_flags[] = {
    "-std=gnu17", "-O3", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fwrapv",    "-w",  NULL};

/* --- values --- */

static void print_access(Printer *p, LoopBuf b, LoopIdx index) {
    const LoopBufInfo *info = loop_buf_info(p->k, b);
    if (info->space == LOOP_reg) {
        int64_t at;
        LOOP_ASSERT(print_known_index(p, index, &at) && at >= 0 && at < info->elems);
        fprintf(p->out, "%s%" PRIu32 "_%" PRId64, info->name, b.id, at);
        return;
    }
    fputs(info->name, p->out);
    if (info->space == LOOP_local) fprintf(p->out, "%" PRIu32, b.id);
    fputc('[', p->out);
    print_index(p, index, false);
    fputc(']', p->out);
}

/* --- operations --- */

static void print_op(Printer *p, const LoopStmt *s) {
    const LoopValInfo *v = loop_val_info(p->k, s->result);
    if (v->lanes == 1 || !strpbrk(op_expr(s->op), "ABCDEFGHIJKLMNOPQRSTUVWXYZ<>=!&|")) {
        print_scalar_op(p, s);
        return;
    }
    print_line(p);
    fprintf(p->out, "inf_v16 t%" PRIu32 ";\n", s->result.id);
    print_line(p);
    fprintf(p->out, "for (int l = 0; l < 16; l++)\n");
    p->indent++;
    print_line(p);
    p->indent--;
    fprintf(p->out, "t%" PRIu32 "[l] = ", s->result.id);
    print_expr(p, s, print_is_integer(loop_val_info(p->k, s->arg[s->nargs - 1])->dtype), "[l]");
    fputs(";\n", p->out);
}

static void print_fold(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    if (s->low > 1) {
        print_line(p);
        fprintf(p->out, "INF_FOLD(%s%" PRIu32 ", %" PRId64 ", %s, ", b->name, s->buf.id, s->low,
                print_scalar_type(b->dtype));
        print_expr(p, s, print_is_integer(b->dtype), NULL);
        fputs(")\n", p->out);
    }
    print_begin(p, s);
    print_access(p, s->buf, s->index);
    fputs(";\n", p->out);
}

static void print_fma(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    bool vector = loop_val_info(p->k, s->result)->lanes > 1;
    fprintf(p->out, "%s(t%" PRIu32 ", t%" PRIu32 ", t%" PRIu32 ");\n",
            vector ? "inf_fma16" : p->words->fma, s->arg[0].id, s->arg[1].id, s->arg[2].id);
}

static void print_fill(Printer *p, const LoopStmt *s) {
    const LoopAxisInfo *a = &p->k->axis.data[s->axis.id];
    print_line(p);
    fputs("inf_random_fill(", p->out);
    print_stream(p, s);
    fputs(", ", p->out);
    if (a->bound.id) {
        fprintf(p->out, "INF_MIN(%" PRId64 ", ", a->extent);
        print_index(p, a->bound, false);
        fputs(")", p->out);
    } else {
        fprintf(p->out, "%" PRId64, a->extent);
    }
    if (a->begin.id) {
        fputs(" - (", p->out);
        print_index(p, a->begin, false);
        fputs(")", p->out);
    }
    fprintf(p->out, ", %s%" PRIu32 ");\n", loop_buf_info(p->k, s->buf)->name, s->buf.id);
}

/* --- memory --- */

/* Two bytes in memory, a float in a temporary. */
static bool is_half(const LoopBufInfo *b) { return b->dtype == DT_bf16 && b->space != LOOP_reg; }

static void print_load(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    bool vector = loop_val_info(p->k, s->result)->lanes > 1 && b->space != LOOP_reg;
    bool half = is_half(b);
    print_begin(p, s);
    if (s->nargs) fprintf(p->out, "t%" PRIu32 " ? ", s->arg[0].id);
    if (vector || half) fputs(vector ? "inf_load16(&" : "inf_from_bf16(", p->out);
    print_access(p, s->buf, s->index);
    if (vector || half) fputc(')', p->out);
    if (s->nargs) {
        fputs(" : ", p->out);
        print_number(p, b->dtype, s->number);
    }
    fputs(";\n", p->out);
}

static void print_prefetch(Printer *p, const LoopStmt *s) {
    print_line(p);
    fputs("__builtin_prefetch(&", p->out);
    print_access(p, s->buf, s->index);
    fputs(");\n", p->out);
}

static void print_store(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    print_line(p);
    if (s->nargs > 1) fprintf(p->out, "if (t%" PRIu32 ") ", s->arg[1].id);
    if (loop_val_info(p->k, s->arg[0])->lanes > 1 && b->space != LOOP_reg) {
        fputs("inf_store16(&", p->out);
        print_access(p, s->buf, s->index);
        fprintf(p->out, ", t%" PRIu32 ");\n", s->arg[0].id);
        return;
    }
    print_access(p, s->buf, s->index);
    fprintf(p->out, is_half(b) ? " = inf_to_bf16(t%" PRIu32 ");\n" : " = t%" PRIu32 ";\n",
            s->arg[0].id);
}

static void print_buf(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    print_line(p);
    if (b->space == LOOP_local) {
        fprintf(p->out, "%s %s%" PRIu32 "[%" PRId64 "] __attribute__((aligned(64)));\n",
                print_memory_type(b->dtype), b->name, s->buf.id, b->elems > 0 ? b->elems : 1);
        return;
    }
    fprintf(p->out, "%s", b->lanes > 1 ? "inf_v16" : print_scalar_type(b->dtype));
    for (int64_t i = 0; i < b->elems; i++)
        fprintf(p->out, "%s %s%" PRIu32 "_%" PRId64, i ? "," : "", b->name, s->buf.id, i);
    fputs(";\n", p->out);
}

static void print_gemm(Printer *p, const LoopStmt *s) {
    const LoopGemm *g = s->gemm;
    print_line(p);
    fprintf(p->out, "inf_sgemm(%d, %d, ", g->ta, g->tb);
    print_index(p, g->m, false);
    fputs(", ", p->out);
    print_index(p, g->n, false);
    fputs(", ", p->out);
    print_index(p, g->k, false);
    fputs(", &", p->out);
    print_access(p, g->a, g->a_at);
    fprintf(p->out, ", %" PRId64 ", &", g->lda);
    print_access(p, g->b, g->b_at);
    fprintf(p->out, ", %" PRId64 ", &", g->ldb);
    print_access(p, g->c, g->c_at);
    fprintf(p->out, ", %" PRId64 ", %d);\n", g->ldc, g->accumulate);
}

static void print_transpose(Printer *p, const LoopStmt *s) {
    const LoopTranspose *t = s->transpose;
    print_line(p);
    fputs("inf_transpose(&", p->out);
    print_access(p, t->to, t->to_at);
    fprintf(p->out, ", %" PRId64 ", &", t->to_stride);
    print_access(p, t->from, t->from_at);
    fprintf(p->out, ", %" PRId64 ", ", t->from_stride);
    print_index(p, t->rows, false);
    fputs(", ", p->out);
    print_index(p, t->cols, false);
    fputs(");\n", p->out);
}

/* --- control --- */

static void print_unrolled(Printer *p, const LoopStmt *s, int64_t extent) {
    p->known[s->axis.id] = true;
    for (int64_t i = 0; i < extent; i++) {
        p->value[s->axis.id] = i;
        if (extent > 1) {
            print_line(p);
            fputs("{\n", p->out);
            p->indent++;
        }
        print_block(p, &s->body);
        if (extent > 1) {
            p->indent--;
            print_line(p);
            fputs("}\n", p->out);
        }
    }
    p->known[s->axis.id] = false;
}

static void print_bounds(Printer *p, uint32_t id, const LoopAxisInfo *a) {
    if (a->begin.id) {
        print_line(p);
        fprintf(p->out, "const int64_t b%" PRIu32 " = ", id);
        print_index(p, a->begin, false);
        fputs(";\n", p->out);
    }
    if (a->bound.id) {
        print_line(p);
        fprintf(p->out, "const int64_t n%" PRIu32 " = INF_MIN(%" PRId64 ", ", id, a->extent);
        print_index(p, a->bound, false);
        fputs(");\n", p->out);
    }
}

static void print_loop(Printer *p, const LoopStmt *s) {
    const LoopAxisInfo *a = &p->k->axis.data[s->axis.id];
    if (a->kind == LOOP_unroll || (a->extent == 1 && !a->bound.id && !a->begin.id)) {
        LOOP_ASSERT(!a->bound.id && !a->begin.id);
        print_unrolled(p, s, a->extent);
        return;
    }
    print_bounds(p, s->axis.id, a);
    if (a->kind == LOOP_grid && a->depth == 1 && p->k->work >= PARALLEL_WORK_MIN) {
        print_line(p);
        fputs("#pragma omp parallel for schedule(static) num_threads(env->threads)\n", p->out);
    }
    if (a->kind == LOOP_vector) {
        print_line(p);
        fputs("#pragma omp simd\n", p->out);
    }
    print_line(p);
    fprintf(p->out, "for (int64_t i%" PRIu32 " = ", s->axis.id);
    if (a->begin.id)
        fprintf(p->out, "b%" PRIu32, s->axis.id);
    else
        fputc('0', p->out);
    fprintf(p->out, "; i%" PRIu32 " < ", s->axis.id);
    if (a->bound.id)
        fprintf(p->out, "n%" PRIu32, s->axis.id);
    else
        fprintf(p->out, "%" PRId64, a->extent);
    fprintf(p->out, "; i%" PRIu32 "++) {\n", s->axis.id);
    print_body(p, &s->body);
}

static void print_splat(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    fprintf(p->out, "inf_splat(t%" PRIu32 ");\n", s->arg[0].id);
}

static PrintStmt *const print_stmt[LOOP_STMT_COUNT] = {
    [LOOP_STMT_loop] = print_loop,        [LOOP_STMT_if] = print_if_stmt,
    [LOOP_STMT_let] = print_let_stmt,     [LOOP_STMT_buf] = print_buf,
    [LOOP_STMT_const] = print_const_stmt, [LOOP_STMT_index] = print_index_stmt,
    [LOOP_STMT_range] = print_range_stmt, [LOOP_STMT_op] = print_op,
    [LOOP_STMT_fma] = print_fma,          [LOOP_STMT_splat] = print_splat,
    [LOOP_STMT_load] = print_load,        [LOOP_STMT_prefetch] = print_prefetch,
    [LOOP_STMT_store] = print_store,      [LOOP_STMT_random] = print_random_stmt,
    [LOOP_STMT_fold] = print_fold,        [LOOP_STMT_fill] = print_fill,
    [LOOP_STMT_gemm] = print_gemm,        [LOOP_STMT_transpose] = print_transpose,
};

static const PrintWords words = {.nan = "__builtin_nanf(\"\")",
                                 .fma = "__builtin_fmaf",
                                 .env = "env",
                                 .field = "env->",
                                 .stmt = print_stmt};

static void print_param(Printer *p, int i) {
    const LoopBufInfo *b = &p->k->buf.data[i + 1];
    const char *type = print_memory_type(b->dtype);
    const char *constant = b->access == LOOP_READ ? "const " : "";
    print_line(p);
    fprintf(p->out, "%s%s *%s%s = ", constant, type, b->shared ? "" : "restrict ", b->name);
    if (b->access == LOOP_WORKSPACE)
        fprintf(p->out, "__builtin_assume_aligned(arg[%d], 64);\n", i);
    else
        fprintf(p->out, "arg[%d];\n", i);
}

void loop_print_c(const LoopKernel *k, const char *name, FILE *out) {
    if (k->text) {
        k->text->print(k, name, out);
        return;
    }
    Printer p = print_start(k, &words, name, out);
    fprintf(out, "static void %s(void *const *arg, const InfEnv *env)\n{\n", name);
    for (int i = 0; i < k->nparam; i++) print_param(&p, i);
    print_block(&p, &k->block[0]);
    fputs("}\n", out);
}

/* prelude.S */
extern const char loop_prelude_text[], loop_prelude_text_end[];

void loop_print_c_prelude(FILE *out) {
    fwrite(loop_prelude_text, 1, (size_t)(loop_prelude_text_end - loop_prelude_text), out);
    print_math(out);
}

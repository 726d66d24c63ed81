/* print_c.c - the loop form as C: one function a kernel, one temporary an operation.
 *
 * Grid loops become OpenMP loops with a static schedule when the kernel does enough work, vector
 * loops `omp simd`; unrolled loops are written out, each copy in a block of its own, with the axis
 * replaced by its number. The text of an operation is its row of ops.def with operands put in; the
 * vocabulary is defined by prelude.h. bool is one byte in memory and int32_t in a temporary.
 */
#include "codegen/loop.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Below this many elementary operations a parallel region costs more than it gives. */
enum { PARALLEL_WORK_MIN = 32768 };

const char *const loop_c_flags[] = {
    "-std=gnu17", "-O3", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fwrapv",    "-w",  NULL};

typedef struct Printer {
    const LoopKernel *k;
    FILE *out;
    int indent;
    bool *known; /* by axis: an unrolled axis whose number is being printed */
    int64_t *value;
} Printer;

static void line(Printer *p) { fprintf(p->out, "%*s", 4 * p->indent, ""); }

/* --- indices --- */

static bool constant_index(const Printer *p, LoopIdx index, int64_t *value);

static bool constant_term(const Printer *p, const LoopTerm *t, int64_t *value) {
    int64_t inner = 0;
    switch (t->kind) {
    case LOOP_TERM_axis: *value = p->value[t->id]; return p->known[t->id];
    case LOOP_TERM_div:
    case LOOP_TERM_mod:
        if (!constant_index(p, (LoopIdx){t->id}, &inner)) return false;
        *value = t->kind == LOOP_TERM_div ? inner / t->by : inner % t->by;
        return true;
    case LOOP_TERM_val: break;
    }
    return false;
}

static bool constant_index(const Printer *p, LoopIdx index, int64_t *value) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    *value = info->constant;
    for (int i = 0; i < info->nterm; i++) {
        int64_t x;
        if (!constant_term(p, &info->term[i], &x)) return false;
        *value += x * info->term[i].scale;
    }
    return true;
}

static void print_index(Printer *p, LoopIdx index, bool narrow);

static void print_term(Printer *p, const LoopTerm *t, bool narrow) {
    const char *cast = narrow ? "(int32_t)" : "";
    switch (t->kind) {
    case LOOP_TERM_axis: fprintf(p->out, "%si%" PRIu32, cast, t->id); break;
    case LOOP_TERM_val: fprintf(p->out, "%st%" PRIu32, narrow ? "" : "(int64_t)", t->id); break;
    case LOOP_TERM_div:
    case LOOP_TERM_mod:
        fputc('(', p->out);
        print_index(p, (LoopIdx){t->id}, narrow);
        fprintf(p->out, ") %c %" PRId64, t->kind == LOOP_TERM_div ? '/' : '%', t->by);
        break;
    }
}

/* The sum without parentheses around it. `narrow`: in int32_t, when its range is known to fit. */
static void print_index(Printer *p, LoopIdx index, bool narrow) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    int64_t constant = info->constant;
    bool first = true;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        int64_t x;
        if (constant_term(p, t, &x)) {
            constant += x * t->scale;
            continue;
        }
        bool quotient = t->kind == LOOP_TERM_div || t->kind == LOOP_TERM_mod;
        fputs(t->scale < 0 ? (first ? "-" : " - ") : first ? "" : " + ", p->out);
        int64_t scale = t->scale < 0 ? -t->scale : t->scale;
        if (quotient) fputc('(', p->out);
        print_term(p, t, narrow);
        if (quotient) fputc(')', p->out);
        if (scale != 1) fprintf(p->out, " * %" PRId64, scale);
        first = false;
    }
    if (first)
        fprintf(p->out, "%" PRId64, constant);
    else if (constant)
        fprintf(p->out, " %c %" PRId64, constant < 0 ? '-' : '+',
                constant < 0 ? -constant : constant);
}

static bool fits_narrow(const Printer *p, LoopIdx index) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    if (info->low < INT32_MIN || info->high > INT32_MAX) return false;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        bool quotient = t->kind == LOOP_TERM_div || t->kind == LOOP_TERM_mod;
        if (t->scale > INT32_MAX || t->scale < INT32_MIN) return false;
        if (quotient && (t->by > INT32_MAX || !fits_narrow(p, (LoopIdx){t->id}))) return false;
    }
    return true;
}

/* --- values --- */

static bool is_integer(Dtype d) { return d != DT_f32 && d != DT_bf16; }

static const char *temp_type(const LoopValInfo *v) {
    return v->lanes > 1 ? "inf_v16" : is_integer(v->dtype) ? "int32_t" : "float";
}

static const char *memory_type(Dtype d) {
    switch (d) {
    case DT_f32: return "float";
    case DT_i32: return "int32_t";
    case DT_u8:
    case DT_bool: return "uint8_t";
    default: loop_broken(__FILE__, __LINE__, "dtype without a C type");
    }
}

static void print_number(Printer *p, Dtype dtype, double number) {
    float f = (float)number;
    if (is_integer(dtype))
        fprintf(p->out, "%" PRId64, (int64_t)number);
    else if (isnan(f))
        fputs("__builtin_nanf(\"\")", p->out);
    else if (isinf(f))
        fputs(f < 0 ? "-INFINITY" : "INFINITY", p->out);
    else {
        char text[40];
        snprintf(text, sizeof text, "%.9g", (double)f);
        fprintf(p->out, "%s%sf", text, strpbrk(text, ".e") ? "" : ".0");
    }
}

static void begin(Printer *p, const LoopStmt *s) {
    const LoopValInfo *v = loop_val_info(p->k, s->result);
    line(p);
    fprintf(p->out, "const %s t%" PRIu32 " = ", temp_type(v), s->result.id);
}

static void print_access(Printer *p, LoopBuf b, LoopIdx index) {
    const LoopBufInfo *info = loop_buf_info(p->k, b);
    if (info->space == LOOP_reg) {
        int64_t at;
        LOOP_ASSERT(constant_index(p, index, &at) && at >= 0 && at < info->elems);
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

/* The row's expression with a, b, c replaced; over integers the vocabulary gets the suffix I and
 * quotients go through double, so that no quotient traps. `lane` is "" or "[l]",
 * or NULL to leave a, b, c as they are. */
static void print_expr(Printer *p, const LoopStmt *s, bool integer, const char *lane) {
    for (const char *c = op_expr(s->op); *c;) {
        if (isalpha((unsigned char)*c)) {
            size_t n = 1;
            while (isalnum((unsigned char)c[n]) || c[n] == '_') n++;
            if (n == 1 && *c >= 'a' && *c <= 'c' && lane)
                fprintf(p->out, "t%" PRIu32 "%s", s->arg[*c - 'a'].id, lane);
            else
                fprintf(p->out, "%.*s%s", (int)n, c, integer && c[n] == '(' ? "I" : "");
            c += n;
        } else if (isdigit((unsigned char)*c)) {
            size_t n = strspn(c, "0123456789.e");
            fprintf(p->out, "%.*s", (int)n, c);
            c += n;
        } else {
            fputc(*c, p->out);
            if (*c == '/' && integer) fputs(" (double)", p->out);
            c++;
        }
    }
}

static void print_cast(Printer *p, const LoopStmt *s) {
    Dtype from = loop_val_info(p->k, s->arg[0])->dtype, to = loop_val_info(p->k, s->result)->dtype;
    uint32_t a = s->arg[0].id;
    begin(p, s);
    if (to == DT_bool && from != DT_bool)
        fprintf(p->out, "t%" PRIu32 " != 0;\n", a);
    else if (to == DT_u8)
        fprintf(p->out, "(uint8_t)(int32_t)t%" PRIu32 ";\n", a);
    else
        fprintf(p->out, "(%s)t%" PRIu32 ";\n", is_integer(to) ? "int32_t" : "float", a);
}

static void print_op(Printer *p, const LoopStmt *s) {
    const LoopValInfo *v = loop_val_info(p->k, s->result);
    if (s->op == OP_cast) {
        print_cast(p, s);
        return;
    }
    bool integer = is_integer(loop_val_info(p->k, s->arg[s->nargs - 1])->dtype);
    if (v->lanes > 1 && strpbrk(op_expr(s->op), "ABCDEFGHIJKLMNOPQRSTUVWXYZ<>=!&|")) {
        line(p);
        fprintf(p->out, "inf_v16 t%" PRIu32 ";\n", s->result.id);
        line(p);
        fprintf(p->out, "for (int l = 0; l < 16; l++)\n");
        p->indent++;
        line(p);
        p->indent--;
        fprintf(p->out, "t%" PRIu32 "[l] = ", s->result.id);
        print_expr(p, s, integer, "[l]");
    } else {
        begin(p, s);
        print_expr(p, s, integer, "");
    }
    fputs(";\n", p->out);
}

static void print_fold(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    if (s->low > 1) {
        line(p);
        fprintf(p->out, "INF_FOLD(%s%" PRIu32 ", %" PRId64 ", %s, ", b->name, s->buf.id, s->low,
                is_integer(b->dtype) ? "int32_t" : "float");
        print_expr(p, s, is_integer(b->dtype), NULL);
        fputs(")\n", p->out);
    }
    begin(p, s);
    print_access(p, s->buf, s->index);
    fputs(";\n", p->out);
}

static void print_fma(Printer *p, const LoopStmt *s) {
    begin(p, s);
    bool vector = loop_val_info(p->k, s->result)->lanes > 1;
    fprintf(p->out, "%s(t%" PRIu32 ", t%" PRIu32 ", t%" PRIu32 ");\n",
            vector ? "inf_fma16" : "__builtin_fmaf", s->arg[0].id, s->arg[1].id, s->arg[2].id);
}

static void print_range(Printer *p, const LoopStmt *s) {
    const LoopIdxInfo *info = loop_idx_info(p->k, s->index);
    bool narrow = fits_narrow(p, s->index) && s->low >= INT32_MIN && s->high <= INT32_MAX;
    bool low = info->low < s->low, high = info->high >= s->high;
    begin(p, s);
    if (!low && !high) fputc('1', p->out);
    if (low) {
        fputc('(', p->out);
        print_index(p, s->index, narrow);
        fprintf(p->out, " >= %" PRId64 ")", s->low);
    }
    if (low && high) fputs(" & ", p->out);
    if (high) {
        fputc('(', p->out);
        print_index(p, s->index, narrow);
        fprintf(p->out, " < %" PRId64 ")", s->high);
    }
    fputs(";\n", p->out);
}

/* Stream and iteration: the iterations of all enclosing repeats as one number. */
static void print_stream(Printer *p, const LoopStmt *s) {
    fprintf(p->out, "env, %" PRId64 "u, ", s->stream);
    for (int i = 0; i + 1 < p->k->iter_depth; i++) fputc('(', p->out);
    for (int i = 0; i < p->k->iter_depth; i++) {
        if (i > 0) fprintf(p->out, ") * %" PRId64 "u + ", p->k->iter_count[i]);
        fprintf(p->out, "(uint32_t)env->iter[%d]", i);
    }
    fputs(p->k->iter_depth ? ", (uint64_t)(" : "0, (uint64_t)(", p->out);
    print_index(p, s->index, false);
    fputs(")", p->out);
}

static void print_random(Printer *p, const LoopStmt *s) {
    begin(p, s);
    fputs("inf_random1(", p->out);
    print_stream(p, s);
    fputs(");\n", p->out);
}

static void print_fill(Printer *p, const LoopStmt *s) {
    const LoopAxisInfo *a = &p->k->axis.data[s->axis.id];
    line(p);
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

static void print_load(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    bool vector = loop_val_info(p->k, s->result)->lanes > 1 && b->space != LOOP_reg;
    begin(p, s);
    if (s->nargs) fprintf(p->out, "t%" PRIu32 " ? ", s->arg[0].id);
    if (vector) fputs("inf_load16(&", p->out);
    print_access(p, s->buf, s->index);
    if (vector) fputc(')', p->out);
    if (s->nargs) {
        fputs(" : ", p->out);
        print_number(p, b->dtype, s->number);
    }
    fputs(";\n", p->out);
}

static void print_store(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    line(p);
    if (s->nargs > 1) fprintf(p->out, "if (t%" PRIu32 ") ", s->arg[1].id);
    if (loop_val_info(p->k, s->arg[0])->lanes > 1 && b->space != LOOP_reg) {
        fputs("inf_store16(&", p->out);
        print_access(p, s->buf, s->index);
        fprintf(p->out, ", t%" PRIu32 ");\n", s->arg[0].id);
        return;
    }
    print_access(p, s->buf, s->index);
    fprintf(p->out, " = t%" PRIu32 ";\n", s->arg[0].id);
}

static void print_buf(Printer *p, const LoopStmt *s) {
    const LoopBufInfo *b = loop_buf_info(p->k, s->buf);
    line(p);
    if (b->space == LOOP_local) {
        fprintf(p->out, "%s %s%" PRIu32 "[%" PRId64 "] __attribute__((aligned(64)));\n",
                memory_type(b->dtype), b->name, s->buf.id, b->elems > 0 ? b->elems : 1);
        return;
    }
    fprintf(p->out, "%s", b->lanes > 1 ? "inf_v16" : is_integer(b->dtype) ? "int32_t" : "float");
    for (int64_t i = 0; i < b->elems; i++)
        fprintf(p->out, "%s %s%" PRIu32 "_%" PRId64, i ? "," : "", b->name, s->buf.id, i);
    fputs(";\n", p->out);
}

static void print_gemm(Printer *p, const LoopStmt *s) {
    const LoopGemm *g = s->gemm;
    line(p);
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
    line(p);
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

static void print_block(Printer *p, const LoopBlock *block);

static void print_unrolled(Printer *p, const LoopStmt *s, int64_t extent) {
    p->known[s->axis.id] = true;
    for (int64_t i = 0; i < extent; i++) {
        p->value[s->axis.id] = i;
        if (extent > 1) {
            line(p);
            fputs("{\n", p->out);
            p->indent++;
        }
        print_block(p, &s->body);
        if (extent > 1) {
            p->indent--;
            line(p);
            fputs("}\n", p->out);
        }
    }
    p->known[s->axis.id] = false;
}

static void print_bounds(Printer *p, uint32_t id, const LoopAxisInfo *a) {
    if (a->begin.id) {
        line(p);
        fprintf(p->out, "const int64_t b%" PRIu32 " = ", id);
        print_index(p, a->begin, false);
        fputs(";\n", p->out);
    }
    if (a->bound.id) {
        line(p);
        fprintf(p->out, "const int64_t n%" PRIu32 " = INF_MIN(%" PRId64 ", ", id, a->extent);
        print_index(p, a->bound, false);
        fputs(");\n", p->out);
    }
}

static void print_let(Printer *p, const LoopStmt *s) {
    line(p);
    fprintf(p->out, "const int64_t i%" PRIu32 " = ", s->axis.id);
    print_index(p, p->k->axis.data[s->axis.id].begin, false);
    fputs(";\n", p->out);
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
        line(p);
        fputs("#pragma omp parallel for schedule(static) num_threads(env->threads)\n", p->out);
    }
    if (a->kind == LOOP_vector) {
        line(p);
        fputs("#pragma omp simd\n", p->out);
    }
    line(p);
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
    p->indent++;
    print_block(p, &s->body);
    p->indent--;
    line(p);
    fputs("}\n", p->out);
}

static void print_if(Printer *p, const LoopStmt *s) {
    line(p);
    fprintf(p->out, "if (t%" PRIu32 ") {\n", s->arg[0].id);
    p->indent++;
    print_block(p, &s->body);
    p->indent--;
    line(p);
    fputs("}\n", p->out);
}

static void print_const(Printer *p, const LoopStmt *s) {
    begin(p, s);
    print_number(p, loop_val_info(p->k, s->result)->dtype, s->number);
    fputs(";\n", p->out);
}

static void print_index_value(Printer *p, const LoopStmt *s) {
    bool narrow = fits_narrow(p, s->index);
    begin(p, s);
    fputs(narrow ? "" : "(int32_t)(", p->out);
    print_index(p, s->index, narrow);
    fputs(narrow ? ";\n" : ");\n", p->out);
}

static void print_splat(Printer *p, const LoopStmt *s) {
    begin(p, s);
    fprintf(p->out, "inf_splat(t%" PRIu32 ");\n", s->arg[0].id);
}

typedef void PrintStmt(Printer *p, const LoopStmt *s);

static PrintStmt *const print_stmt[] = {
    [LOOP_STMT_loop] = print_loop,
    [LOOP_STMT_if] = print_if,
    [LOOP_STMT_let] = print_let,
    [LOOP_STMT_buf] = print_buf,
    [LOOP_STMT_const] = print_const,
    [LOOP_STMT_index] = print_index_value,
    [LOOP_STMT_range] = print_range,
    [LOOP_STMT_op] = print_op,
    [LOOP_STMT_fma] = print_fma,
    [LOOP_STMT_splat] = print_splat,
    [LOOP_STMT_load] = print_load,
    [LOOP_STMT_store] = print_store,
    [LOOP_STMT_random] = print_random,
    [LOOP_STMT_fold] = print_fold,
    [LOOP_STMT_fill] = print_fill,
    [LOOP_STMT_gemm] = print_gemm,
    [LOOP_STMT_transpose] = print_transpose,
};

static void print_block(Printer *p, const LoopBlock *block) {
    for (uint32_t i = 0; i < block->n; i++) print_stmt[block->data[i]->kind](p, block->data[i]);
}

static void print_param(Printer *p, int i) {
    const LoopBufInfo *b = &p->k->buf.data[i + 1];
    const char *type = memory_type(b->dtype);
    const char *constant = b->access == LOOP_READ ? "const " : "";
    line(p);
    fprintf(p->out, "%s%s *%s%s = ", constant, type, b->shared ? "" : "restrict ", b->name);
    if (b->access == LOOP_WORKSPACE)
        fprintf(p->out, "__builtin_assume_aligned(arg[%d], 64);\n", i);
    else
        fprintf(p->out, "arg[%d];\n", i);
}

void loop_print_c(const LoopKernel *k, const char *name, FILE *out) {
    LOOP_ASSERT(k->depth == 0);
    Printer p = {.k = k, .out = out};
    p.known = ARENA_ARRAY(k->arena, bool, k->axis.n);
    p.value = ARENA_ARRAY(k->arena, int64_t, k->axis.n);
    fprintf(out, "static void %s(void *const *arg, const InfEnv *env)\n{\n", name);
    p.indent = 1;
    for (int i = 0; i < k->nparam; i++) print_param(&p, i);
    print_block(&p, &k->block[0]);
    fputs("}\n", out);
}

/* prelude.S */
extern const char loop_prelude_text[], loop_prelude_text_end[];

void loop_print_c_prelude(FILE *out) {
    fwrite(loop_prelude_text, 1, (size_t)(loop_prelude_text_end - loop_prelude_text), out);
}

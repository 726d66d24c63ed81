/* print_text.c - the part of printing that C and CUDA C share; see print.h. */
#include "codegen/print.h"

#include "ir/bf16.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

Printer print_start(const LoopKernel *k, const PrintWords *words, const char *name, FILE *out) {
    LOOP_ASSERT(k->depth == 0);
    return (Printer){.k = k,
                     .words = words,
                     .out = out,
                     .name = name,
                     .indent = 1,
                     .known = ARENA_ARRAY(k->arena, bool, k->axis.n),
                     .value = ARENA_ARRAY(k->arena, int64_t, k->axis.n)};
}

void print_line(Printer *p) { fprintf(p->out, "%*s", 4 * p->indent, ""); }

void print_block(Printer *p, const LoopBlock *block) {
    for (uint32_t i = 0; i < block->n; i++) {
        PrintStmt *print = p->words->stmt[block->data[i]->kind];
        LOOP_ASSERT(print);
        print(p, block->data[i]);
    }
}

void print_body(Printer *p, const LoopBlock *block) {
    p->indent++;
    print_block(p, block);
    p->indent--;
    print_line(p);
    fputs("}\n", p->out);
}

/* --- indices --- */

static bool constant_term(const Printer *p, const LoopTerm *t, int64_t *value) {
    int64_t inner = 0;
    switch (t->kind) {
    case LOOP_TERM_axis: *value = p->value[t->id]; return p->known[t->id];
    case LOOP_TERM_div:
    case LOOP_TERM_mod:
        if (!print_known_index(p, (LoopIdx){t->id}, &inner)) return false;
        *value = t->kind == LOOP_TERM_div ? inner / t->by : inner % t->by;
        return true;
    case LOOP_TERM_val: break;
    }
    return false;
}

bool print_known_index(const Printer *p, LoopIdx index, int64_t *value) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    *value = info->constant;
    for (int i = 0; i < info->nterm; i++) {
        int64_t x;
        if (!constant_term(p, &info->term[i], &x)) return false;
        *value += x * info->term[i].scale;
    }
    return true;
}

static void print_quotient(Printer *p, const LoopTerm *t, bool narrow) {
    const char operation = t->kind == LOOP_TERM_div ? '/' : '%';
    bool cheap = narrow && p->words->short_axes; /* unsigned division is shorter */
    fputs(cheap ? "(int32_t)((uint32_t)(" : "((", p->out);
    print_index(p, (LoopIdx){t->id}, narrow);
    fprintf(p->out, ") %c %" PRId64 "%s)", operation, t->by, cheap ? "u" : "");
}

static void print_term(Printer *p, const LoopTerm *t, bool narrow) {
    const char *cast = narrow ? "(int32_t)" : "";
    if (t->kind == LOOP_TERM_axis && print_axis_is_short(p, (LoopAxis){t->id}))
        cast = narrow ? "" : "(int64_t)";
    switch (t->kind) {
    case LOOP_TERM_axis: fprintf(p->out, "%si%" PRIu32, cast, t->id); break;
    case LOOP_TERM_val: fprintf(p->out, "%st%" PRIu32, narrow ? "" : "(int64_t)", t->id); break;
    case LOOP_TERM_div:
    case LOOP_TERM_mod: print_quotient(p, t, narrow); break;
    }
}

bool print_axis_is_short(const Printer *p, LoopAxis axis) {
    return p->words->short_axes && p->k->axis.data[axis.id].extent <= INT32_MAX;
}

void print_index(Printer *p, LoopIdx index, bool narrow) {
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
        fputs(t->scale < 0 ? (first ? "-" : " - ") : first ? "" : " + ", p->out);
        int64_t scale = t->scale < 0 ? -t->scale : t->scale;
        print_term(p, t, narrow);
        if (scale != 1) fprintf(p->out, " * %" PRId64, scale);
        first = false;
    }
    if (first)
        fprintf(p->out, "%" PRId64, constant);
    else if (constant)
        fprintf(p->out, " %c %" PRId64, constant < 0 ? '-' : '+',
                constant < 0 ? -constant : constant);
}

bool print_fits_narrow(const Printer *p, LoopIdx index) {
    const LoopIdxInfo *info = loop_idx_info(p->k, index);
    if (info->low < INT32_MIN || info->high > INT32_MAX) return false;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        bool quotient = t->kind == LOOP_TERM_div || t->kind == LOOP_TERM_mod;
        if (t->scale > INT32_MAX || t->scale < INT32_MIN) return false;
        if (quotient && (t->by > INT32_MAX || !print_fits_narrow(p, (LoopIdx){t->id})))
            return false;
    }
    return true;
}

bool print_short(const Printer *p, LoopIdx index) {
    return p->words->short_axes && print_fits_narrow(p, index);
}

/* --- values --- */

bool print_is_integer(Dtype d) { return d != DT_f32 && d != DT_bf16; }

const char *print_scalar_type(Dtype d) { return print_is_integer(d) ? "int32_t" : "float"; }

const char *print_memory_type(Dtype d) {
    switch (d) {
    case DT_f32: return "float";
    case DT_bf16: return "inf_bf16";
    case DT_i32: return "int32_t";
    case DT_u8:
    case DT_bool: return "uint8_t";
    default: loop_broken(__FILE__, __LINE__, "dtype without a C type");
    }
}

void print_number(Printer *p, Dtype dtype, double number) {
    float f = dtype == DT_bf16 ? bf16_round((float)number) : (float)number;
    if (print_is_integer(dtype))
        fprintf(p->out, "%" PRId64, (int64_t)number);
    else if (isnan(f))
        fputs(p->words->nan, p->out);
    else if (isinf(f))
        fputs(f < 0 ? "-INFINITY" : "INFINITY", p->out);
    else {
        char text[40];
        snprintf(text, sizeof text, "%.9g", (double)f);
        fprintf(p->out, "%s%sf", text, strpbrk(text, ".e") ? "" : ".0");
    }
}

void print_begin(Printer *p, const LoopStmt *s) {
    const LoopValInfo *v = loop_val_info(p->k, s->result);
    print_line(p);
    fprintf(p->out, "const %s t%" PRIu32 " = ",
            v->lanes > 1 ? "inf_v16" : print_scalar_type(v->dtype), s->result.id);
}

/* --- operations --- */

void print_expr(Printer *p, const LoopStmt *s, bool integer, const char *lane) {
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
    print_begin(p, s);
    if (to == DT_bf16 && from != DT_bf16)
        fprintf(p->out, "inf_round_bf16((float)t%" PRIu32 ");\n", a);
    else if (to == DT_bool && from != DT_bool)
        fprintf(p->out, "t%" PRIu32 " != 0;\n", a);
    else if (to == DT_u8)
        fprintf(p->out, "(uint8_t)(int32_t)t%" PRIu32 ";\n", a);
    else
        fprintf(p->out, "(%s)t%" PRIu32 ";\n", print_scalar_type(to), a);
}

void print_scalar_op(Printer *p, const LoopStmt *s) {
    if (s->op == OP_cast) {
        print_cast(p, s);
        return;
    }
    print_begin(p, s);
    print_expr(p, s, print_is_integer(loop_val_info(p->k, s->arg[s->nargs - 1])->dtype), "");
    fputs(";\n", p->out);
}

void print_const_stmt(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    print_number(p, loop_val_info(p->k, s->result)->dtype, s->number);
    fputs(";\n", p->out);
}

void print_index_stmt(Printer *p, const LoopStmt *s) {
    bool narrow = print_fits_narrow(p, s->index);
    print_begin(p, s);
    fputs(narrow ? "" : "(int32_t)(", p->out);
    print_index(p, s->index, narrow);
    fputs(narrow ? ";\n" : ");\n", p->out);
}

void print_range_stmt(Printer *p, const LoopStmt *s) {
    const LoopIdxInfo *info = loop_idx_info(p->k, s->index);
    bool narrow = print_fits_narrow(p, s->index) && s->low >= INT32_MIN && s->high <= INT32_MAX;
    bool low = info->low < s->low, high = info->high >= s->high;
    print_begin(p, s);
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
void print_stream(Printer *p, const LoopStmt *s) {
    fprintf(p->out, "%s, %" PRId64 "u, ", p->words->env, s->stream);
    for (int i = 0; i + 1 < p->k->iter_depth; i++) fputc('(', p->out);
    for (int i = 0; i < p->k->iter_depth; i++) {
        if (i > 0) fprintf(p->out, ") * %" PRId64 "u + ", p->k->iter_count[i]);
        fprintf(p->out, "(uint32_t)%siter[%d]", p->words->field, i);
    }
    fputs(p->k->iter_depth ? ", (uint64_t)(" : "0, (uint64_t)(", p->out);
    print_index(p, s->index, print_short(p, s->index));
    fputs(")", p->out);
}

void print_random_stmt(Printer *p, const LoopStmt *s) {
    print_begin(p, s);
    fputs("inf_random1(", p->out);
    print_stream(p, s);
    fputs(");\n", p->out);
}

/* --- control --- */

void print_let_stmt(Printer *p, const LoopStmt *s) {
    LoopIdx value = p->k->axis.data[s->axis.id].begin;
    print_line(p);
    fprintf(p->out, "const %s i%" PRIu32 " = ",
            print_axis_is_short(p, s->axis) ? "int32_t" : "int64_t", s->axis.id);
    print_index(p, value, print_short(p, value));
    fputs(";\n", p->out);
}

void print_if_stmt(Printer *p, const LoopStmt *s) {
    print_line(p);
    fprintf(p->out, "if (t%" PRIu32 ") {\n", s->arg[0].id);
    print_body(p, &s->body);
}

/* prelude.S */
extern const char loop_prelude_math_text[], loop_prelude_math_text_end[];

void print_math(FILE *out) {
    fwrite(loop_prelude_math_text, 1, (size_t)(loop_prelude_math_text_end - loop_prelude_math_text),
           out);
}

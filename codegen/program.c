/* program.c - the generated program: kernels lowered once each, tables, and the C file.
 *
 * Kernels with equal bodies share one function: the key is the body's text, plus the enclosing
 * repeats where the body draws random numbers (their iterations are part of the counter). Names
 * are the fused node's name and four hex digits of the key's hash, so they stay the same from
 * build to build and from layout to layout.
 */
#include "codegen/program.h"
#include "codegen/lower.h"
#include "ir/cost.h"
#include "ir/panic.h"
#include "ir/split.h"
#include "ir/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool draws_random(const Graph *body) {
    for (int i = 0; i < body->nnode; i++)
        if (body->node[i]->op == OP_random_uniform) return true;
    return false;
}

/* Whether the address is a multiple of 16 bytes in every iteration of the repeats around. */
static bool is_tight(const Program *p, const Addr *at) {
    int64_t bits = at->offset_bytes;
    for (int i = 0; i < p->repeat_depth; i++) bits |= at->stride_bytes[i];
    return bits % 16 == 0;
}

/* Bit i: argument i may lie at an odd address. */
static uint64_t loose_arguments(const Program *p, const Graph *g, const Node *n) {
    uint64_t loose = 0;
    for (int i = 0; i < n->nin && i < 64; i++)
        if (!is_tight(p, &g->val[n->in[i].id].addr)) loose |= UINT64_C(1) << i;
    for (int i = 0; i < n->nout && n->nin + i < 64; i++)
        if (!is_tight(p, &g->val[node_out(n, i).id].addr)) loose |= UINT64_C(1) << (n->nin + i);
    return loose;
}

/* Kernels that write less in place, because the rest is there already: see lower_put.c. */
static bool writes_in_place(const Graph *g, const Node *n) {
    const Graph *body = n->body;
    if (strcmp(node_attr(n, ATTR_form)->s, "put") != 0) return false;
    const Node *put = val_node(body, body->out[0]);
    const Addr *to = &g->val[n->out.id].addr;
    if (node_int(put, ATTR_axis, 0) + 1 >= val_info(body, put->out)->ndim) return false;
    for (int i = 0; i < n->nin; i++)
        if (body->in[i].id == put->in[0].id)
            return memcmp(&g->val[n->in[i].id].addr, to, sizeof *to) == 0;
    return false;
}

static const char *kernel_key(Program *p, const Graph *g, const Node *n) {
    const char *key = arena_printf(p->arena, "%s %s", node_attr(n, ATTR_form)->s,
                                   text_graph_string(n->body, p->arena));
    uint64_t loose = p->mod->target == TARGET_cuda ? loose_arguments(p, g, n) : 0;
    if (loose) key = arena_printf(p->arena, "%s loose %llx", key, (unsigned long long)loose);
    if (writes_in_place(g, n)) key = arena_printf(p->arena, "%s in place", key);
    if (!draws_random(n->body)) return key;
    for (int i = 0; i < p->repeat_depth; i++)
        key = arena_printf(p->arena, "%s x %lld", key, (long long)p->repeat_count[i]);
    return key;
}

static bool name_taken(const Program *p, const char *name) {
    for (uint32_t i = 0; i < p->kernels.n; i++)
        if (strcmp(p->kernels.data[i].name, name) == 0) return true;
    return false;
}

/* A C identifier from the node's name and the key; lengthened while it is taken. */
static const char *kernel_name(Program *p, const Node *n, const char *key) {
    char *stem = arena_strdup(p->arena, node_attr(n, ATTR_name)->s);
    uint64_t hash = XXH64(key, strlen(key), 0);
    for (char *c = stem; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '_';
    for (int digits = 4;; digits++) {
        int shown = digits < 16 ? digits : 16;
        const char *name = arena_printf(p->arena, "k_%s_%0*llx", stem, shown,
                                        (unsigned long long)(hash >> (64 - 4 * shown)));
        if (!name_taken(p, name)) return name;
        if (digits >= 16) stem = arena_printf(p->arena, "%s_", stem);
    }
}

static int place_compare(Place a, Place b) {
    if (a.line != b.line) return a.line < b.line ? -1 : 1;
    return a.column < b.column ? -1 : a.column > b.column;
}

/* Keeps the places of a kernel ascending and without repeats. */
static void kernel_add_place(Program *p, KernelRow *row, Span span) {
    if (span.file == 0) return;
    Place place = source_place(p->mod->sources, span);
    uint32_t at = 0;
    while (at < row->places.n && place_compare(row->places.data[at], place) < 0) at++;
    if (at < row->places.n && place_compare(row->places.data[at], place) == 0) return;
    vec_push(p->arena, &row->places, place);
    for (uint32_t i = row->places.n - 1; i > at; i--) row->places.data[i] = row->places.data[i - 1];
    row->places.data[at] = place;
}

static FILE *memory_stream(char **text, size_t *bytes) {
    FILE *f = open_memstream(text, bytes);
    if (!f) panic_graph(NULL, (Span){0}, "out of memory while writing the program");
    return f;
}

static const char *kernel_text(Program *p, const LoopKernel *k, const char *name) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = memory_stream(&text, &bytes);
    if (p->mod->target == TARGET_cuda)
        loop_print_cuda(k, name, f);
    else
        loop_print_c(k, name, f);
    fclose(f);
    const char *kept = arena_strndup(p->arena, text, bytes);
    free(text);
    return kept;
}

static const Node *matmul_of(const Graph *body) {
    int i = 0;
    while (body->node[i]->op != OP_matmul) i++;
    return body->node[i];
}

/* A product of the device's library has a row in its table instead of a function. */
static bool is_library_product(const Program *p, const Node *n) {
    return p->mod->target == TARGET_cuda && strcmp(node_attr(n, ATTR_form)->s, "matmul") == 0 &&
           split_cuda_library(n->body, matmul_of(n->body));
}

static void row_set_library(Program *p, KernelRow *row, const Node *n) {
    PlanMatmul m = plan_matmul(n->body);
    row->kind = PLAN_KERNEL_matmul;
    row->matmul = p->matmuls.n;
    row->math = m.dtype == PLAN_bf16 ? PLAN_MATH_bf16 : m.tf32 ? PLAN_MATH_tf32 : PLAN_MATH_f32;
    row->text = arena_printf(p->arena, "/* %s: %lld x %lld x %lld by the device's library */\n",
                             row->name, (long long)m.m, (long long)m.n, (long long)m.k);
    vec_push(p->arena, &p->matmuls, m);
}

/* Takes the function of an earlier row that differs in its sizes alone. */
static void row_share_function(Program *p, KernelRow *row, const LoopKernel *k) {
    uint32_t i = 0;
    row->sizes = k->text->sizes;
    row->nameless = kernel_text(p, k, "");
    while (i < p->kernels.n && (!p->kernels.data[i].nameless || p->kernels.data[i].shares ||
                                strcmp(p->kernels.data[i].nameless, row->nameless) != 0))
        i++;
    if (i == p->kernels.n) return;
    row->shares = i + 1;
    row->weight = 0;
    row->prelude = NULL;
    row->text = arena_printf(p->arena, "/* %s: %s, told other sizes */\n", row->name,
                             p->kernels.data[i].name);
}

static void row_set_function(Program *p, KernelRow *row, const LoopKernel *k) {
    row->kind = p->mod->target == TARGET_cuda ? PLAN_KERNEL_cuda : PLAN_KERNEL_c;
    row->math = (PlanMath)k->math;
    row->grid = k->blocks;
    row->block = k->threads;
    row->shared_bytes = k->shared_bytes;
    row->prelude = k->text ? k->text->prelude : NULL;
    row->text = kernel_text(p, k, row->name);
    row->weight = k->text ? k->text->weight : (int64_t)strlen(row->text);
    if (k->text && k->text->sizes) row_share_function(p, row, k);
}

static uint32_t kernel_add(Program *p, const Graph *g, const Node *n, const char *key) {
    uint32_t at = p->kernels.n;
    LowerContext ctx = {.arena = p->arena,
                        .target = p->mod->target,
                        .loose = loose_arguments(p, g, n),
                        .in_place = writes_in_place(g, n),
                        .any_size = p->any_size,
                        .repeat_depth = p->repeat_depth};
    memcpy(ctx.repeat_count, p->repeat_count, sizeof ctx.repeat_count);
    KernelCost cost = cost_kernel(n);
    KernelRow row = {.name = kernel_name(p, n, key),
                     .key = key,
                     .form = node_attr(n, ATTR_form)->s,
                     .launches = 1,
                     .bytes = cost.bytes,
                     .flops = cost.flops};
    if (is_library_product(p, n)) {
        row_set_library(p, &row, n);
        vec_push(p->arena, &p->kernels, row);
        return at;
    }
    LoopKernel *k = lower_kernel(&ctx, g, n);
    for (int launch = 1; k; k = k->next, launch++) {
        if (p->options->threads_always) k->work = INT64_MAX;
        if (launch > 1)
            row.name = arena_printf(p->arena, "%s_%d", p->kernels.data[at].name, launch);
        if (launch > 1) row.key = "", row.bytes = row.flops = 0;
        row_set_function(p, &row, k);
        vec_push(p->arena, &p->kernels, row);
        p->kernels.data[at].launches = launch;
    }
    return at;
}

uint32_t program_kernel(Program *p, const Graph *g, const Node *n) {
    const char *key = kernel_key(p, g, n);
    uint32_t at = 0;
    while (at < p->kernels.n && strcmp(p->kernels.data[at].key, key) != 0) at++;
    if (at == p->kernels.n) at = kernel_add(p, g, n, key);
    kernel_add_place(p, &p->kernels.data[at], n->span);
    for (int i = 0; i < n->body->nnode; i++)
        kernel_add_place(p, &p->kernels.data[at], n->body->node[i]->span);
    return at;
}

Program *codegen_build(Module *const *rank, int nrank, const struct Table *table,
                       const CodegenOptions *options, Arena *arena) {
    Program *p = ARENA_NEW(arena, Program);
    p->mod = rank[0];
    p->rank = rank;
    p->nrank = nrank;
    p->table = table;
    p->options = options;
    p->arena = arena;
    plan_build(p);
    return p;
}

const struct Plan *codegen_plan(const Program *p) { return p->plans.data; }

/* A comment must not end early: a file name may hold anything. */
static void print_comment_name(const char *name, FILE *out) {
    for (; *name; name++)
        fputc(isalnum((unsigned char)*name) || strchr("._-", *name) ? *name : '_', out);
}

static void print_kernel(const Program *p, uint32_t i, FILE *out) {
    const KernelRow *row = &p->kernels.data[i];
    fputs("/* from ", out);
    print_comment_name(p->mod->file, out);
    fputc(':', out);
    for (uint32_t j = 0; j < row->places.n; j++)
        fprintf(out, " %u:%u", row->places.data[j].line, row->places.data[j].column);
    fprintf(out, " */\n%s\n", row->text);
}

enum { ALL_PARTS = PLAN_PARTS_MAX };

static bool is_in_part(const KernelRow *row, uint32_t part) {
    return part == ALL_PARTS || (row->part == part && row->kind == PLAN_KERNEL_cuda);
}

/* Templates that kernels of text are made of, each once. */
static void print_preludes(const Program *p, uint32_t part, FILE *out) {
    const KernelRow *row = p->kernels.data;
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        uint32_t first = 0;
        if (!row[i].prelude || !is_in_part(&row[i], part)) continue;
        while (row[first].prelude != row[i].prelude || !is_in_part(&row[first], part)) first++;
        if (first == i) row[i].prelude(out);
    }
}

void program_print_part(const Program *p, uint32_t part, FILE *out) {
    print_preludes(p, part, out);
    const KernelRow *row = p->kernels.data;
    for (uint32_t i = 0; i < p->kernels.n; i++)
        if (is_in_part(&row[i], part)) print_kernel(p, i, out);
}

void codegen_print_kernels(const Program *p, FILE *out) { program_print_part(p, ALL_PARTS, out); }

/* Of the plan and the kernels: what an executable is known by. */
static uint64_t program_hash(const Program *p) {
    char *tables = NULL;
    size_t bytes = 0;
    FILE *f = memory_stream(&tables, &bytes);
    plan_print(p, 0, f);
    codegen_print_kernels(p, f);
    fclose(f);
    uint64_t hash = XXH64(tables, bytes, 0);
    free(tables);
    return hash;
}

void codegen_print_plan(const Program *p, FILE *out) { plan_print(p, program_hash(p), out); }

void codegen_print_c(const Program *p, FILE *out) {
    fputs("/* ", out);
    print_comment_name(p->mod->file, out);
    fprintf(out, ", compiled by infinic %s: kernels and plan. */\n", p->options->version);
    fputs("#include \"runtime/plan.h\"\n\n", out);
    if (p->mod->target == TARGET_cuda) {
        image_print_c(p, out);
    } else {
        loop_print_c_prelude(out);
        fputc('\n', out);
        codegen_print_kernels(p, out);
    }
    plan_print(p, program_hash(p), out);
    fputs("\nint main(int argc, char **argv) { return inf_main(plans, argc, argv); }\n", out);
}

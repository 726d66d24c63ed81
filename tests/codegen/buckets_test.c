/* buckets_test.c - buckets are refused when anything about them is wrong: ranges of the layout, and
 * the steps of the plan that begin their sums. What the compiler makes is right until it is
 * changed. */
#include "codegen/program.h"
#include "passes/schedule.h"
#include "tests/passes/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char layers[] =
    "settings { name = \"layers\" train.batch = 8 train.microbatches = 2 train.optimizer.lr = 0.1\n"
    "  parallel.dp = 2 parallel.bucket_bytes = 2000 }\n"
    "param 0 \"h.*.w\" f32[4,16,16] init=ones stack=1\n"
    "param 1 \"h.*.b\" f32[4,16] init=zeros stack=1\n"
    "param 2 \"wte\" f32[32,16] init=ones\n"
    "param 3 \"fixed\" f32[16] init=ones frozen\n"
    "graph train(%0: i32[8] data(0, \"tokens\"), %1: i32[8] data(1, \"targets\"),\n"
    "    %2: f32[4,16,16] weight(0), %3: f32[4,16] weight(1), %4: f32[32,16] weight(2),\n"
    "    %5: f32[16] weight(3)) {\n"
    "  %6 = gather %4, %0 : f32[8,16]\n"
    "  %7 = broadcast %5 {axes=[1]} : f32[8,16]\n"
    "  %8 = add %6, %7 : f32[8,16]\n"
    "  %9 = repeat %8, %2, %3 {count=4, ncarry=1, nconst=0, reverse=0} : f32[8,16] {\n"
    "    graph body(%0: f32[8,16], %1: f32[16,16], %2: f32[16]) {\n"
    "      %3 = matmul %0, %1 {ta=0, tb=1} : f32[8,16]\n"
    "      %4 = broadcast %2 {axes=[1]} : f32[8,16]\n"
    "      %5 = add %3, %4 : f32[8,16]\n"
    "      %6 = gelu %5 : f32[8,16]\n"
    "      %7 = add %0, %6 : f32[8,16]\n"
    "      return %7\n"
    "    }\n"
    "  }\n"
    "  %10 = matmul %9, %4 {ta=0, tb=1} : f32[8,32]\n"
    "  %11, %12 = cross_entropy %10, %1 {ignore=-1} : f32[], f32[]\n"
    "  return %11 loss_sum, %12 loss_count\n"
    "}\n";

typedef struct Built {
    Check c;
    Program *program;
    const PlanChunk *last; /* what the last task runs */
} Built;

static void build(Built *b) {
    static const PassOptions options = {0};
    static const CodegenOptions codegen = {.version = "test"};
    *b = (Built){0};
    check_read(&b->c, layers);
    PassContext ctx = {.mod = b->c.m, .scratch = &b->c.scratch, .options = &options};
    assert_true(passes_run(&ctx));
    b->program = codegen_build(&b->c.m, 1, ctx.table, &codegen, &b->c.arena);
    for (uint32_t i = 0; i < b->program->chunks.n; i++)
        if (strcmp(b->program->chunks.data[i].name, "backward+") == 0)
            b->last = &b->program->chunks.data[i];
    assert_non_null(b->last);
}

static void expect_word(const char *why, const char *word) {
    assert_non_null(why);
    if (strstr(why, word) == NULL) fail_msg("'%s' does not say '%s'", why, word);
}

/* ---- the layout ------------------------------------------------------------------------- */

typedef void Breaker(Module *m);

static void break_gone(Module *m) { m->bucket[0] = m->bucket[--m->nbucket]; }
static void break_short(Module *m) { m->bucket[1].elems -= 256; }
static void break_odd(Module *m) { m->bucket[1].elems -= 128; }
static void break_twice(Module *m) { m->bucket[m->nbucket - 1] = m->bucket[0]; }
static void break_outside(Module *m) { m->bucket[0].offset_elems = m->grad_elems; }
static void break_chunk(Module *m) { m->bucket[0].local = 1; }
static void break_piece(Module *m) { m->param[1].offset_elems += 128; }
static void break_stride(Module *m) { m->param[0].stride_elems = 128; }
static void break_frozen(Module *m) {
    for (int i = 0; i < m->nbucket; i++)
        if (m->bucket[i].offset_elems + m->bucket[i].elems == m->param[3].offset_elems)
            m->bucket[i].elems += 256;
}

static void test_layouts(void **state) {
    (void)state;
    static const struct {
        Breaker *breaker;
        const char *word;
    } broken[] = {
        {break_gone, "not in a bucket"}, {break_short, "not in a bucket"},
        {break_odd, "whole blocks"},     {break_twice, "overlap"},
        {break_outside, "outside"},      {break_chunk, "not in a bucket of chunk 0"},
        {break_piece, "overlap"},        {break_stride, "overlap"},
        {break_frozen, "not trained"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        Built b;
        build(&b);
        assert_null(prove_layout(&b.c.arena, b.c.m));
        broken[i].breaker(b.c.m);
        expect_word(prove_layout(&b.c.arena, b.c.m), broken[i].word);
        check_free(&b.c);
    }
}

/* ---- the steps -------------------------------------------------------------------------- */

static const char *replayed(const Built *b) {
    return plan_replay(b->program, 0, b->last->begin, b->last->end);
}

/* The first or last step of a kind in what the last task runs. */
static PlanStep *find_step(const Built *b, StepKind kind, bool last) {
    PlanStep *found = NULL;
    for (uint32_t s = b->last->begin; s < b->last->end; s++)
        if (b->program->steps.data[s].kind == kind && (last || found == NULL))
            found = &b->program->steps.data[s];
    assert_non_null(found);
    return found;
}

static void test_steps(void **state) {
    (void)state;
    Built b;
    build(&b);
    assert_null(replayed(&b));
    assert_true(b.program->buckets.n > 4);
    /* The sum that begins last begins with the task. */
    PlanStep *last = find_step(&b, STEP_REDUCE, true), kept = *last;
    PlanStep *first = &b.program->steps.data[b.last->begin], swapped = *first;
    *first = kept, *last = swapped;
    expect_word(replayed(&b), "has begun");
    *first = swapped, *last = (PlanStep){.kind = STEP_POLL};
    expect_word(replayed(&b), "does not begin");
    *last = kept;
    assert_null(replayed(&b));
    /* Layers in another order. */
    PlanReady *ready = b.program->ready.data;
    uint32_t layer = 0;
    while (layer + 1 < b.program->ready.n &&
           (ready[layer].iteration < 0 || ready[layer + 1].iteration != ready[layer].iteration - 1))
        layer++;
    assert_true(layer + 1 < b.program->ready.n);
    ready[layer].iteration--, ready[layer + 1].iteration++;
    expect_word(replayed(&b), "has begun");
    ready[layer].iteration++;
    expect_word(replayed(&b), "has begun");
    ready[layer + 1] = ready[layer];
    expect_word(replayed(&b), "begins twice");
    check_free(&b.c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

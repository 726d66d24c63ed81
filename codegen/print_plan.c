/* print_plan.c - the tables of a plan as C initialisers.
 *
 * Writes one const array a table, then `static const Plan plans`. Rows are positional where they
 * are many (arguments, steps) and designated where they are few, so that the file stays readable.
 * Floats are written in hexadecimal and read back to the same bits.
 */
#include "codegen/program.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A C string literal, "NULL" for NULL. Everything unusual is written as three octal digits. */
static void print_string(FILE *out, const char *s) {
    if (!s) {
        fputs("0", out);
        return;
    }
    fputc('"', out);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 32 || c > 126 || c == '?')
            fprintf(out, "\\%03o", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_i64(FILE *out, int64_t v) {
    if (v == INT64_MIN)
        fputs("INT64_MIN", out);
    else if (v == INT64_MAX)
        fputs("INT64_MAX", out);
    else
        fprintf(out, "%" PRId64, v);
}

static void print_double(FILE *out, double v) {
    if (isinf(v))
        fputs(v > 0 ? "__builtin_inf()" : "-__builtin_inf()", out);
    else if (isnan(v))
        fputs("__builtin_nan(\"\")", out);
    else
        fprintf(out, "%a", v);
}

static void print_dims(FILE *out, int n, const int64_t *dim) {
    fputc('{', out);
    for (int i = 0; i < n; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", dim[i]);
    fputs(n == 0 ? "0}" : "}", out);
}

static void print_arg(FILE *out, const PlanArg *a) {
    fprintf(out, "{%" PRId64 ", %u, %u, %u", a->offset, a->stride, a->nstride, a->region);
    if (a->bytes) fprintf(out, ", %u, %" PRId64, a->written, a->bytes);
    if (a->shard) fprintf(out, ", .shard = %" PRId64, a->shard);
    fputc('}', out);
}

static void print_params(const Program *p, FILE *out) {
    if (p->params.n == 0) return;
    fputs("static const PlanParam params[] = {\n", out);
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *r = &p->params.data[i];
        fputs("    {.name = ", out);
        print_string(out, r->name);
        fprintf(out, ", .offset = %" PRId64, r->offset);
        if (r->stride) fprintf(out, ", .stride = %" PRId64, r->stride);
        if (r->first) fprintf(out, ", .first = %" PRId64, r->first);
        fprintf(out, ", .nstack = %d, .ndim = %d, .stack = ", r->nstack, r->ndim);
        print_dims(out, r->nstack, r->stack);
        fputs(", .dim = ", out);
        print_dims(out, r->ndim, r->dim);
        fputs(", .stored = ", out);
        print_dims(out, r->ndim, r->stored);
        fprintf(out,
                ",\n     .init = %u, .transposed = %u, .trainable = %u, .decay = %u, .init_a = ",
                r->init, r->transposed, r->trainable, r->decay);
        print_double(out, r->init_a);
        if (r->copied) fputs(", .copied = 1", out);
        if (r->owned) fputs(", .owned = 1", out);
        fprintf(out,
                ", .uses = %d, .use_offset = %" PRId64 ", .use_stride = %" PRId64 ", .place = ",
                r->uses, r->use_offset, r->use_stride);
        print_string(out, r->place);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_names(const Program *p, FILE *out) {
    if (p->aliases.n) {
        fputs("static const PlanAlias aliases[] = {\n", out);
        for (uint32_t i = 0; i < p->aliases.n; i++) {
            fputs("    {", out);
            print_string(out, p->aliases.data[i].name);
            fprintf(out, ", %d},\n", p->aliases.data[i].param);
        }
        fputs("};\n\n", out);
    }
    if (p->settings.n) {
        fputs("static const PlanSetting settings[] = {\n", out);
        for (uint32_t i = 0; i < p->settings.n; i++) {
            fputs("    {", out);
            print_string(out, p->settings.data[i].key);
            fputs(", ", out);
            print_string(out, p->settings.data[i].value);
            fputs("},\n", out);
        }
        fputs("};\n\n", out);
    }
}

static void print_sizes(const PlanSizes *s, FILE *out) {
    fprintf(out, ",\n     .sizes = &(const PlanSizes){%d, %d, %d, %d, ", s->batch, s->queries,
            s->keys, s->chunk);
    const int64_t apart[] = {s->q, s->k, s->v, s->out, s->turned, s->lse, s->lse_head};
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        fprintf(out, "%s%" PRId64, i ? ", " : "", apart[i]);
    fputc('}', out);
}

static void print_kernels(const Program *p, FILE *out) {
    fputs("static const PlanKernel kernels[] = {\n", out);
    for (uint32_t i = 0; i < p->plan_kernels.n; i++) {
        const PlanKernel *r = &p->plan_kernels.data[i];
        fprintf(out, "    {.name = \"%s\", .fn = %s, .form = \"%s\", .lines = \"%s\", ", r->name,
                r->kind == PLAN_KERNEL_c ? r->name : "0", r->form, r->lines);
        fprintf(out, ".bytes = %" PRId64 ", .flops = %" PRId64, r->bytes, r->flops);
        if (r->math) fprintf(out, ", .math = %u", r->math);
        if (r->kind == PLAN_KERNEL_cuda)
            fprintf(out, ",\n     .kind = PLAN_KERNEL_cuda, .grid = %u, .block = %u", r->grid,
                    r->block);
        if (r->part) fprintf(out, ", .part = %u", r->part);
        if (r->shared_bytes) fprintf(out, ", .shared_bytes = %u", r->shared_bytes);
        if (r->function) fprintf(out, ", .function = \"%s\"", r->function);
        if (r->sizes) print_sizes(r->sizes, out);
        if (r->kind == PLAN_KERNEL_matmul)
            fprintf(out, ",\n     .kind = PLAN_KERNEL_matmul, .matmul = %u", r->matmul);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_matmuls(const Program *p, FILE *out) {
    if (p->matmuls.n == 0) return;
    fputs("static const PlanMatmul matmuls[] = {\n", out);
    for (uint32_t i = 0; i < p->matmuls.n; i++) {
        const PlanMatmul *r = &p->matmuls.data[i];
        fprintf(out, "    {.m = %" PRId64 ", .n = %" PRId64 ", .k = %" PRId64, r->m, r->n, r->k);
        fprintf(out, ", .batch = %" PRId64 ", .ta = %u, .tb = %u, .dtype = %u, .out_dtype = %u",
                r->batch, r->ta, r->tb, r->dtype, r->out_dtype);
        fprintf(out, ", .tf32 = %u,\n", r->tf32);
        fprintf(out, "     .epilogue = %u, .beta = %u, .a = %u, .b = %u, .bias = %u, .old = %u",
                r->epilogue, r->beta, r->a, r->b, r->bias, r->old);
        fprintf(out, ", .out = %u,\n     .lda = %" PRId64 ", .ldb = %" PRId64 ", .ldc = %" PRId64,
                r->out, r->lda, r->ldb, r->ldc);
        fprintf(out, ", .a_stride = %" PRId64 ", .b_stride = %" PRId64 ", .c_stride = %" PRId64,
                r->a_stride, r->b_stride, r->c_stride);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_args(const Program *p, FILE *out) {
    fputs("static const PlanArg args[] = {\n", out);
    for (uint32_t i = 0; i < p->args.n; i++) {
        fputs(i % 4 ? " " : "    ", out);
        print_arg(out, &p->args.data[i]);
        fputs(i % 4 == 3 || i + 1 == p->args.n ? ",\n" : ",", out);
    }
    fputs("};\n\n", out);
    if (p->strides.n == 0) return;
    fputs("static const int64_t strides[] = ", out);
    print_dims(out, (int)p->strides.n, p->strides.data);
    fputs(";\n\n", out);
}

static void print_time(FILE *out, const char *field, double value) {
    if (value == 0) return;
    fputs(field, out);
    print_double(out, value);
}

static void print_steps(const Program *p, FILE *out) {
    fputs("static const PlanStep steps[] = {\n", out);
    for (uint32_t i = 0; i < p->steps.n; i++) {
        const PlanStep *r = &p->steps.data[i];
        if (r->kind == STEP_LAUNCH)
            fprintf(out, "    {.kind = STEP_LAUNCH, .kernel = %u, .arg = %u, .narg = %u, .scope = ",
                    r->kernel, r->arg, r->narg);
        else if (r->kind == STEP_POLL)
            fprintf(out, "    {.kind = STEP_POLL, .count = %" PRId64 ", .scope = ", r->count);
        else if (r->kind == STEP_REDUCE)
            fprintf(out,
                    "    {.kind = STEP_REDUCE, .count = %" PRId64 ", .first = %" PRId64
                    ", .scope = ",
                    r->count, r->first);
        else
            fprintf(out,
                    "    {.kind = STEP_REPEAT, .nbody = %u, .reverse = %u, .count = %" PRId64
                    ", .first = %" PRId64 ", .scope = ",
                    r->nbody, r->reverse, r->count, r->first);
        print_string(out, r->scope);
        fputs("},\n", out);
    }
    fputs("};\n\nstatic const PlanChunk chunks[] = {\n", out);
    for (uint32_t i = 0; i < p->chunks.n; i++)
        fprintf(out, "    {\"%s\", %u, %u},\n", p->chunks.data[i].name, p->chunks.data[i].begin,
                p->chunks.data[i].end);
    fputs("};\n\nstatic const PlanTask tasks[] = {\n", out);
    for (uint32_t i = 0; i < p->tasks.n; i++) {
        const PlanTask *r = &p->tasks.data[i];
        fprintf(out, "    {%u, %d, %d, %d, %u, %d, %d", r->kind, r->chunk, r->local, r->microbatch,
                r->program, r->slot, r->message);
        int used = PLAN_WINDOW_COUNT;
        while (used > 0 && r->window[used - 1] == 0) used--;
        if (used > 0) {
            fputs(", ", out);
            print_dims(out, used, r->window);
        }
        print_time(out, ", .start = ", r->start);
        print_time(out, ", .length = ", r->length);
        print_time(out, ", .done = ", r->done);
        if (r->last) fputs(", .last = 1", out);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_stages(const Program *p, FILE *out) {
    if (p->stages.n == 0) return;
    fputs("static const PlanStage stages[] = {\n", out);
    for (uint32_t i = 0; i < p->stages.n; i++) {
        const PlanStage *r = &p->stages.data[i];
        fprintf(out, "    {%d, %d, ", r->rank, r->local);
        print_string(out, r->first);
        fputs(", ", out);
        print_string(out, r->last);
        fprintf(out, ", %" PRId64 ", ", r->parameters);
        print_double(out, r->flops);
        fputs(", ", out);
        print_double(out, r->cost);
        fputs(", ", out);
        print_double(out, r->share);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
    if (p->units.n == 0) return;
    fputs("static const PlanUnit units[] = {\n", out);
    for (uint32_t i = 0; i < p->units.n; i++) {
        fputs("    {", out);
        print_string(out, p->units.data[i].name);
        fprintf(out, ", %d},\n", p->units.data[i].layers);
    }
    fputs("};\n\n", out);
}

static void print_messages(const Program *p, FILE *out) {
    if (p->messages.n == 0) return;
    fputs("static const PlanMessage messages[] = {\n", out);
    for (uint32_t i = 0; i < p->messages.n; i++) {
        const PlanMessage *r = &p->messages.data[i];
        fprintf(out, "    {%u, %d, %d, %d, %d, %d, %d, ", r->gradient, r->from, r->to, r->from_rank,
                r->to_rank, r->microbatch, r->slot);
        fprintf(out, "%" PRId64 ", %" PRId64 ", %" PRId64 "},\n", r->bytes, r->from_at, r->to_at);
    }
    fputs("};\n\n", out);
}

static void print_shares(const Program *p, FILE *out) {
    if (p->shares.n == 0) return;
    fputs("static const PlanShare shares[] = {\n", out);
    for (uint32_t i = 0; i < p->shares.n; i++) {
        const PlanShare *r = &p->shares.data[i];
        fprintf(out, "    {%d, %d, %" PRId64 ", %" PRId64 ", %" PRId64 "},\n", r->from_rank,
                r->to_rank, r->bytes, r->from_at, r->to_at);
    }
    fputs("};\n\n", out);
}

static void print_buckets(const Program *p, FILE *out) {
    if (p->buckets.n == 0) return;
    fputs("static const PlanBucket buckets[] = {\n", out);
    for (uint32_t i = 0; i < p->buckets.n; i++) {
        const PlanBucket *r = &p->buckets.data[i];
        fprintf(out, "    {%d, %" PRId64 ", %" PRId64 "},\n", r->local, r->at, r->bytes);
    }
    if (p->shards.n > 0) fputs("};\n\nstatic const PlanShard shards[] = {\n", out);
    for (uint32_t i = 0; i < p->shards.n; i++) {
        const PlanShard *r = &p->shards.data[i];
        fprintf(out, "    {%d, %" PRId64 ", %" PRId64 ", %" PRId64, r->local, r->at, r->bytes,
                r->state_at);
        if (r->owned) fprintf(out, ", .owned = 1, .master_at = %" PRId64, r->master_at);
        fputs("},\n", out);
    }
    fputs("};\n\nstatic const PlanReady ready[] = {\n", out);
    for (uint32_t i = 0; i < p->ready.n; i++)
        fprintf(out, "    {%u, %" PRId64 "},\n", p->ready.data[i].bucket,
                p->ready.data[i].iteration);
    fputs("};\n\n", out);
}

/* The program's name in identifiers: prefill.64 is prefill_64; of rank 1 of several, eval_1. */
static const char *program_word(const Program *p, uint32_t i) {
    uint32_t rank = 0;
    while (rank + 1 < p->rows.n && p->rows.data[rank + 1].program <= i) rank++;
    const PlanProgram *g = &p->programs.data[i];
    char *word = p->nrank > 1
                     ? arena_strdup(p->arena, arena_printf(p->arena, "%s_%u", g->name, rank))
                     : arena_strdup(p->arena, g->name);
    for (char *c = word; *c; c++)
        if (*c == '.') *c = '_';
    return word;
}

static void print_inputs(const PlanProgram *g, const char *word, FILE *out) {
    if (g->ninput == 0) return;
    fprintf(out, "static const PlanInput %s_inputs[] = {\n", word);
    for (uint32_t i = 0; i < g->ninput; i++) {
        const PlanInput *r = &g->input[i];
        fputs("    {.name = ", out);
        print_string(out, r->name);
        fprintf(out, ", .kind = %u, .dtype = %u, .ndim = %d, .dim = ", r->kind, r->dtype, r->ndim);
        print_dims(out, r->ndim, r->dim);
        fputs(", .limit = ", out);
        print_i64(out, r->limit);
        fputs(", .ignore = ", out);
        print_i64(out, r->ignore);
        if (r->local) fprintf(out, ", .local = %d", r->local);
        fputs(", .at = ", out);
        print_arg(out, &r->at);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_metrics(const PlanProgram *g, const char *word, FILE *out) {
    if (g->nmetric == 0) return;
    fprintf(out, "static const PlanMetric %s_metrics[] = {\n", word);
    for (uint32_t i = 0; i < g->nmetric; i++) {
        fputs("    {", out);
        print_string(out, g->metric[i].name);
        fprintf(out, ", %" PRId64 ", %" PRId64 "},\n", g->metric[i].sum, g->metric[i].count);
    }
    fputs("};\n\n", out);
}

static void print_outputs(const PlanProgram *g, const char *word, FILE *out) {
    if (g->noutput == 0) return;
    fprintf(out, "static const PlanOutput %s_outputs[] = {\n", word);
    for (uint32_t i = 0; i < g->noutput; i++) {
        const PlanOutput *r = &g->output[i];
        fputs("    {.name = ", out);
        print_string(out, r->name);
        fprintf(out, ", .dtype = %u, .ndim = %d, .dim = ", r->dtype, r->ndim);
        print_dims(out, r->ndim, r->dim);
        fputs(", .at = ", out);
        print_arg(out, &r->at);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
}

static void print_programs(const Program *p, FILE *out) {
    for (uint32_t i = 0; i < p->programs.n; i++) {
        const PlanProgram *g = &p->programs.data[i];
        const char *word = program_word(p, i);
        print_inputs(g, word, out);
        print_metrics(g, word, out);
        print_outputs(g, word, out);
        bool all = g->rank == p->train_rank || g->rank == p->eval_rank;
        fprintf(out, "static const PlanRank %s_ranks[] = {", word);
        for (int r = 0; r < (all ? p->table->ranks : 1); r++)
            fprintf(out, "%s{%u, %u}", r ? ", " : "", g->rank[r].task, g->rank[r].ntask);
        fputs("};\n\n", out);
    }
    fputs("static const PlanProgram programs[] = {\n", out);
    for (uint32_t i = 0; i < p->programs.n; i++) {
        const PlanProgram *g = &p->programs.data[i];
        const char *word = program_word(p, i);
        fprintf(out, "    {.name = \"%s\", .batch = %" PRId64 ", .microbatches = %" PRId64 ",\n",
                g->name, g->batch, g->microbatches);
        if (g->scratch) fprintf(out, "     .scratch = %" PRId64 ",\n", g->scratch);
        if (g->ninput) fprintf(out, "     .input = %s_inputs, .ninput = %u,\n", word, g->ninput);
        if (g->noutput)
            fprintf(out, "     .output = %s_outputs, .noutput = %u,\n", word, g->noutput);
        if (g->nmetric)
            fprintf(out, "     .metric = %s_metrics, .nmetric = %u, .rank = %s_ranks},\n", word,
                    g->nmetric, word);
        else
            fprintf(out, "     .rank = %s_ranks},\n", word);
    }
    fputs("};\n\n", out);
}

static void print_buffers(const Program *p, FILE *out) {
    if (p->buffers.n == 0) return;
    fputs("static const PlanBuffer buffers[] = {\n", out);
    for (uint32_t i = 0; i < p->buffers.n; i++) {
        const PlanBuffer *r = &p->buffers.data[i];
        fputs("    {", out);
        print_string(out, r->what);
        fputs(", ", out);
        print_string(out, r->place);
        fprintf(out, ", %u, %" PRId64 "},\n", r->region, r->bytes);
    }
    fputs("};\n\n", out);
}

static void print_data(FILE *out, const char *field, const PlanData *d) {
    fprintf(out, "        .%s = {%u, ", field, d->kind);
    print_string(out, d->path);
    fputs(", ", out);
    print_string(out, d->split);
    fputs("},\n", out);
}

static void print_train(const PlanTrain *t, FILE *out) {
    fputs("    .train = {\n", out);
    print_data(out, "data", &t->data);
    print_data(out, "eval_data", &t->eval_data);
    fprintf(out, "        .eval_present = %u, .eval_every = %" PRId64 ", .steps = %" PRId64,
            t->eval_present, t->eval_every, t->steps);
    fprintf(out, ", .epochs = %" PRId64 ", .seed = %" PRId64 ",\n", t->epochs, t->seed);
    fprintf(out, "        .optimizer = %u, .schedule = %u, .warmup = %" PRId64, t->optimizer,
            t->schedule, t->warmup);
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"lr", t->lr},
                   {"beta1", t->beta1},
                   {"beta2", t->beta2},
                   {"decay", t->decay},
                   {"clip", t->clip},
                   {"floor", t->floor},
                   {"decay_share", t->decay_share}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        fprintf(out, ",%s.%s = ", i % 4 ? " " : "\n        ", numbers[i].name);
        print_double(out, numbers[i].value);
    }
    fputs(",\n        .dtype = ", out);
    print_string(out, t->dtype);
    fputs("},\n", out);
}

static void print_generate(const PlanGenerate *g, FILE *out) {
    if (!g->present) return;
    fprintf(out, "    .generate = {.present = 1, .batch = %" PRId64 ", .context = %" PRId64,
            g->batch, g->context);
    fputs(", .tokenizer = ", out);
    print_string(out, g->tokenizer);
    fputs(",\n        .temperature = ", out);
    print_double(out, g->temperature);
    fprintf(out, ", .top_k = %" PRId64 ", .length = %" PRId64 "},\n", g->top_k, g->length);
}

/* A table from row `first` on. */
static void print_rows_field(FILE *out, const char *field, const char *array, uint32_t first,
                             uint32_t n) {
    if (n == 0) return;
    fprintf(out, "        .%s = %s", field, array);
    if (first > 0) fprintf(out, " + %u", first);
    fprintf(out, ", .n%s = %u,\n", field, n);
}

static void print_table_field(FILE *out, const char *field, const char *array, uint32_t n) {
    if (n > 0) fprintf(out, "        .%s = %s,\n", field, array);
}

static void print_strings(const Plan *plan, FILE *out) {
    const struct {
        const char *field, *value;
    } strings[] = {{"model", plan->model},
                   {"file", plan->file},
                   {"target", plan->target},
                   {"compiler", plan->compiler},
                   {"pipeline", plan->pipeline},
                   {"schedule_summary", plan->schedule_summary},
                   {"schedule_estimate", plan->schedule_estimate},
                   {"checkpoint_prefix", plan->checkpoint_prefix},
                   {"checkpoint_skip", plan->checkpoint_skip}};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        fprintf(out, "        .%s = ", strings[i].field);
        print_string(out, strings[i].value);
        fputs(",\n", out);
    }
}

static void print_finish(const PlanFinish *f, FILE *out) {
    fprintf(out, "        .finish = {.loss_rank = %d", f->loss_rank);
    fprintf(out, ", .loss = %" PRId64 ", .loss_bytes = %" PRId64 ", .norm = %d", f->loss,
            f->loss_bytes, f->norm);
    fprintf(out, ", .blocks_program = %d, .blocks = %" PRId64 ", .nblocks = %" PRId64,
            f->blocks_program, f->blocks, f->nblocks);
    fprintf(out, ", .squares = %" PRId64 ", .nsquares = %" PRId64 "},\n", f->squares, f->nsquares);
}

static void print_plan(const Program *p, uint32_t rank, uint64_t hash, FILE *out) {
    const Plan *plan = &p->plans.data[rank];
    const RankRows *at = &p->rows.data[rank];
    fprintf(out, "    {\n        .version = PLAN_VERSION, .rank = %d, .ranks = %d,\n", plan->rank,
            plan->ranks);
    print_strings(plan, out);
    fprintf(out, "        .cpu_features = cpu_features,\n        .hash = 0x%016" PRIx64 "u,\n",
            hash);
    fprintf(out,
            "        .dp = %d, .tp = %d, .pp = %d, .vpp = %d,\n        .region_bytes = ", plan->dp,
            plan->tp, plan->pp, plan->vpp);
    print_dims(out, PLAN_REGION_count, plan->region_bytes);
    fprintf(out, ",\n        .flat_bytes = %" PRId64, plan->flat_bytes);
    fprintf(out, ", .state_bytes = %" PRId64 ", .nstate = %d,\n", plan->state_bytes, plan->nstate);
    fprintf(out, "        .grad_norm = %" PRId64 ", .update_ok = %" PRId64 ", ", plan->grad_norm,
            plan->update_ok);
    fputs(".makespan = ", out);
    print_double(out, plan->makespan);
    fputs(", .bubble = ", out);
    print_double(out, plan->bubble);
    fprintf(out, ",\n        .attention_width = %" PRId64 ",\n", plan->attention_width);
    print_rows_field(out, "param", "params", at->param, plan->nparam);
    print_rows_field(out, "alias", "aliases", at->alias, plan->nalias);
    print_rows_field(out, "kernel", "kernels", 0, plan->nkernel);
    print_table_field(out, "arg", "args", p->args.n);
    print_table_field(out, "stride", "strides", p->strides.n);
    print_table_field(out, "step", "steps", p->steps.n);
    print_rows_field(out, "chunk", "chunks", at->chunk, plan->nchunk);
    print_table_field(out, "task", "tasks", p->tasks.n);
    print_rows_field(out, "message", "messages", 0, plan->nmessage);
    print_rows_field(out, "share", "shares", 0, plan->nshare);
    print_rows_field(out, "bucket", "buckets", at->bucket, plan->nbucket);
    if (plan->nbucket) fprintf(out, "        .ready = ready + %u,\n", at->ready);
    print_rows_field(out, "shard", "shards", at->shard, plan->nshard);
    if (plan->ordered) fprintf(out, "        .ordered = &ordered_%u,\n", rank);
    print_rows_field(out, "stage", "stages", 0, plan->nstage);
    print_rows_field(out, "unit", "units", 0, plan->nunit);
    print_rows_field(out, "program", "programs", at->program, plan->nprogram);
    print_rows_field(out, "setting", "settings", 0, plan->nsetting);
    print_rows_field(out, "buffer", "buffers", at->buffer, plan->nbuffer);
    print_rows_field(out, "matmul", "matmuls", 0, plan->nmatmul);
    print_rows_field(out, "image", "images", 0, plan->nimage);
    if (program_is_joint(p)) fputs("        .transport = &inf_transport_mpi,\n", out);
    if (program_exchanges(p)) print_finish(&plan->finish, out);
    print_train(&plan->train, out);
    print_generate(&plan->generate, out);
    fputs("    },\n", out);
}

/* The instruction sets that the C compiler was allowed to use, by their names in
 * __builtin_cpu_supports: the preprocessor knows them. */
static void print_cpu_features(FILE *out) {
    static const char *const features[][2] = {
        {"SSE4_2", "sse4.2"},
        {"AVX", "avx"},
        {"AVX2", "avx2"},
        {"FMA", "fma"},
        {"BMI", "bmi"},
        {"BMI2", "bmi2"},
        {"AVX512F", "avx512f"},
        {"AVX512CD", "avx512cd"},
        {"AVX512BW", "avx512bw"},
        {"AVX512DQ", "avx512dq"},
        {"AVX512VL", "avx512vl"},
        {"AVX512VBMI", "avx512vbmi"},
        {"AVX512IFMA", "avx512ifma"},
        {"AVX512VNNI", "avx512vnni"},
    };
    fputs("static const char cpu_features[] = \"\"\n", out);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        fprintf(out, "#ifdef __%s__\n    \"%s,\"\n#endif\n", features[i][0], features[i][1]);
    fputs("    ;\n\n", out);
}

void plan_print(const Program *p, uint64_t hash, FILE *out) {
    print_cpu_features(out);
    print_params(p, out);
    print_names(p, out);
    print_kernels(p, out);
    print_matmuls(p, out);
    print_args(p, out);
    print_steps(p, out);
    print_messages(p, out);
    print_shares(p, out);
    print_buckets(p, out);
    print_stages(p, out);
    print_programs(p, out);
    print_buffers(p, out);
    for (uint32_t r = 0; r < p->plans.n; r++) plan_print_ordered(p, r, out);
    fputs("static const Plan plans[] = {\n", out);
    for (uint32_t r = 0; r < p->plans.n; r++) print_plan(p, r, hash, out);
    fputs("};\n", out);
}

/* generate.c - continues a text, token by token.
 *
 * The prompt goes through the program of the shortest length that holds it; what is longer than the
 * longest goes on through the program that takes one token. From then on each drawn token is fed
 * back. With B > 1 all texts continue the same prompt: the first is printed as it comes, the others
 * after it.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/sample.h"
#include "runtime/session.h"
#include "runtime/signals.h"
#include "runtime/text.h"

/* Where a program takes and gives. */
typedef struct Call {
    uint32_t program;
    int64_t length;                            /* tokens */
    const PlanInput *tokens, *position, *last; /* last: NULL in decode */
    const PlanOutput *logits;
} Call;

typedef struct Generate {
    InfSession s;
    const Plan *plan;
    const InfOptions *options;
    InfSampler sampler;
    Call decode, *prefill; /* ascending lengths */
    int nprefill;
    int64_t batch, context, vocabulary;
    InfText io;
    InfIds prompt;
    InfIds *text;   /* by text of the batch: what was made */
    int64_t wanted; /* tokens to make */
    float *logits;
    int32_t *order;
    double prompt_ms, made_ms;
} Generate;

/* --- programs --- */

static const PlanInput *find_input(const PlanProgram *p, PlanInputKind kind) {
    for (uint32_t i = 0; i < p->ninput; i++)
        if (p->input[i].kind == kind) return &p->input[i];
    return NULL;
}

static Call open_call(const Plan *plan, uint32_t program) {
    const PlanProgram *p = &plan->program[program];
    Call c = {.program = program,
              .tokens = find_input(p, PLAN_INPUT_tokens),
              .position = find_input(p, PLAN_INPUT_position),
              .last = find_input(p, PLAN_INPUT_last)};
    INF_ASSERT(c.tokens && c.tokens->ndim == 2 && c.position && p->noutput == 1);
    c.length = c.tokens->dim[1];
    c.logits = &p->output[0];
    return c;
}

InfCode inf_generate_ready(InfError *e, const Plan *plan) {
    if (!plan->generate.present)
        return inf_fail(e, INF_USAGE,
                        "%s was built without a section generate\n"
                        "  = hint: add generate { B = 1; T = 64 } to %s: T is the lengths of "
                        "prompts",
                        plan->model, plan->file);
    if (inf_program_find(plan, "decode")) return INF_OK;
    return inf_fail(e, INF_USAGE,
                    "a model that is cut into chunks (pp %d, vpp %d) does not generate\n"
                    "  = hint: compile it in one piece, infinic %s -D parallel.pp=1 -D "
                    "parallel.vpp=1 -o %s-text, and give it the same --weights",
                    plan->pp, plan->vpp, plan->file, plan->model);
}

static InfCode open_programs(InfError *e, Generate *g) {
    const Plan *plan = g->plan;
    const PlanProgram *decode = inf_program_find(plan, "decode");
    TRY(inf_generate_ready(e, plan));
    g->prefill = calloc(plan->nprogram, sizeof *g->prefill);
    if (!g->prefill) return inf_fail(e, INF_IO, "out of memory");
    for (uint32_t i = 0; i < plan->nprogram; i++)
        if (strncmp(plan->program[i].name, "prefill.", 8) == 0)
            g->prefill[g->nprefill++] = open_call(plan, i);
    g->decode = open_call(plan, (uint32_t)(decode - plan->program));
    INF_ASSERT(g->nprefill > 0 && g->decode.logits->ndim == 2);
    g->batch = plan->generate.batch;
    g->context = plan->generate.context;
    g->vocabulary = g->decode.logits->dim[1];
    /* A logit without a row in the table of tokens cannot be fed back. */
    if (g->decode.tokens->limit < g->vocabulary) g->vocabulary = g->decode.tokens->limit;
    return INF_OK;
}

/* --- the prompt --- */

static InfCode read_prompt(InfError *e, Generate *g) {
    int64_t limit = g->decode.tokens->limit < INT32_MAX ? g->decode.tokens->limit : INT32_MAX;
    TRY(inf_text_open(e, g->plan, g->options, limit, &g->io));
    TRY(inf_text_prompt(e, &g->io, &g->prompt));
    if (g->prompt.count >= g->context)
        return inf_fail(e, INF_USAGE,
                        "the prompt has %lld tokens, and the context of %s holds %lld: %s",
                        (long long)g->prompt.count, g->plan->model, (long long)g->context,
                        g->prompt.count == g->context ? "nothing can follow" : "it is too long");
    return INF_OK;
}

static InfCode read_settings(InfError *e, Generate *g) {
    const PlanGenerate *p = &g->plan->generate;
    int64_t length = inf_option_whole(g->options, OPT_length, p->length);
    uint64_t bytes = 0;
    g->sampler =
        (InfSampler){.temperature = inf_option_real(g->options, OPT_temperature, p->temperature),
                     .top_k = inf_option_whole(g->options, OPT_top_k, p->top_k),
                     .seed = (uint64_t)inf_option_whole(g->options, OPT_seed, g->plan->train.seed)};
    g->wanted = g->context - g->prompt.count;
    if (length > 0 && length < g->wanted) g->wanted = length;
    g->text = calloc((size_t)g->batch, sizeof *g->text);
    if (inf_mul((uint64_t)g->vocabulary, sizeof *g->order, &bytes))
        g->order = malloc((size_t)bytes);
    return g->text && g->order ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

/* --- one call --- */

static int32_t *input_at(Generate *g, const PlanInput *in) {
    return inf_engine_at(&g->s.engine, in->at.region, in->at.offset);
}

static void push_input(Generate *g, const PlanInput *in) {
    int64_t count = 1;
    for (int i = 0; i < in->ndim; i++) count *= in->dim[i];
    inf_engine_push(&g->s.engine, in->at.region, in->at.offset, count * (int64_t)sizeof(int32_t));
}

static void set_index(Generate *g, const PlanInput *in, int64_t value) {
    *input_at(g, in) = (int32_t)value;
    push_input(g, in);
}

/* Runs a program behind `position` tokens. Its tokens are there; the logits of each text's token
 * `last` come back. */
static InfCode run_call(InfError *e, Generate *g, const Call *c, int64_t position, int64_t last) {
    InfEngine *m = &g->s.engine;
    const PlanArg *at = &c->logits->at;
    push_input(g, c->tokens);
    set_index(g, c->position, position);
    if (c->last) set_index(g, c->last, last);
    inf_forward(m, c->program);
    inf_engine_fetch(m, at->region, at->offset,
                     g->batch * c->logits->dim[1] * (int64_t)sizeof(float));
    TRY(m->table->finish(e, m->device));
    g->logits = inf_engine_at(m, at->region, at->offset);
    return INF_OK;
}

/* The prompt's tokens [0, count) in one call, all texts alike, padded with token 0. */
static InfCode run_prefill(InfError *e, Generate *g, const Call *c, int64_t count) {
    int32_t *to = input_at(g, c->tokens);
    for (int64_t b = 0; b < g->batch; b++)
        for (int64_t i = 0; i < c->length; i++)
            to[b * c->length + i] = i < count ? g->prompt.id[i] : 0;
    return run_call(e, g, c, 0, count - 1);
}

static InfCode check_signal(InfError *e, const Generate *g) {
    if (inf_signals_pending() == 0) return INF_OK;
    return inf_fail(e, INF_STOPPED, "stopped by %s after %lld tokens",
                    inf_signal_name(inf_signals_pending()), (long long)g->text[0].count);
}

static InfCode run_prompt(InfError *e, Generate *g) {
    int which = 0;
    while (which + 1 < g->nprefill && g->prefill[which].length < g->prompt.count) which++;
    const Call *c = &g->prefill[which];
    int64_t done = c->length < g->prompt.count ? c->length : g->prompt.count;
    TRY(run_prefill(e, g, c, done));
    for (; done < g->prompt.count; done++) {
        TRY(check_signal(e, g));
        for (int64_t b = 0; b < g->batch; b++)
            input_at(g, g->decode.tokens)[b] = g->prompt.id[done];
        TRY(run_call(e, g, &g->decode, done, 0));
    }
    return INF_OK;
}

/* --- output --- */

/* The first text was printed as it came. */
static InfCode print_rest(InfError *e, Generate *g) {
    TRY(inf_text_end(e, &g->io));
    for (int64_t b = 1; b < g->batch; b++) {
        for (int64_t i = 0; i < g->text[b].count; i++)
            TRY(inf_text_put(e, &g->io, g->text[b].id[i]));
        TRY(inf_text_end(e, &g->io));
    }
    return INF_OK;
}

static void print_notices(const Generate *g) {
    int64_t made = g->text[0].count, asked = inf_option_whole(g->options, OPT_length, -1);
    if (asked < 0) asked = g->plan->generate.length;
    if (made + g->prompt.count == g->context && (asked < 0 || asked > made))
        fprintf(stderr, "%s: notice: stopped after %lld tokens: the context of %lld is full\n",
                g->plan->model, (long long)made, (long long)g->context);
    if (inf_option_given(g->options, OPT_quiet)) return;
    fprintf(stderr, "prompt of %lld tokens in %.1f ms", (long long)g->prompt.count, g->prompt_ms);
    if (made > 1)
        fprintf(stderr, ", then %.2f ms a token (%.0f tokens/s)", g->made_ms / (double)(made - 1),
                (double)(made - 1) * 1e3 / g->made_ms);
    fputc('\n', stderr);
}

/* --- the loop --- */

/* Draws the next token of every text and lays it out for decode. */
static InfCode draw(InfError *e, Generate *g) {
    for (int64_t b = 0; b < g->batch; b++) {
        int64_t place = g->prompt.count + g->text[b].count;
        int64_t id = inf_sample(&g->sampler, g->logits + b * g->decode.logits->dim[1],
                                g->vocabulary, g->order, (uint32_t)b, (uint64_t)place);
        if (id < 0)
            return inf_fail(e, INF_NONFINITE, "the logits of token %lld are not finite numbers",
                            (long long)place);
        TRY(inf_ids_push(e, &g->text[b], (int32_t)id));
    }
    for (int64_t b = 0; b < g->batch; b++)
        input_at(g, g->decode.tokens)[b] = g->text[b].id[g->text[b].count - 1];
    return INF_OK;
}

static InfCode run(InfError *e, Generate *g) {
    double start = inf_clock_ms();
    TRY(run_prompt(e, g));
    g->prompt_ms = inf_clock_ms() - start;
    start = inf_clock_ms();
    for (int64_t i = 0; i < g->wanted; i++) {
        if (i > 0) TRY(run_call(e, g, &g->decode, g->prompt.count + i - 1, 0));
        TRY(draw(e, g));
        TRY(inf_text_put(e, &g->io, g->text[0].id[i]));
        TRY(check_signal(e, g));
    }
    g->made_ms = inf_clock_ms() - start;
    TRY(print_rest(e, g));
    print_notices(g);
    return INF_OK;
}

static InfCode generate(InfError *e, Generate *g) {
    TRY(open_programs(e, g));
    TRY(read_prompt(e, g));
    TRY(read_settings(e, g));
    TRY(inf_session_open_generate(e, g->plan, g->options, &g->s));
    InfCode code = run(e, g);
    inf_session_close(&g->s);
    return code;
}

InfCode inf_generate(InfError *e, const Plan *plan, const InfOptions *o) {
    Generate g = {.plan = plan, .options = o};
    TRY(inf_signals_install(e));
    InfCode code = generate(e, &g);
    for (int64_t b = 0; g.text && b < g.batch; b++) free(g.text[b].id);
    free(g.text);
    free(g.order);
    free(g.prompt.id);
    free(g.prefill);
    inf_text_close(&g.io);
    return code;
}

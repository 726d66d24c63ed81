/* loader.c - opens data sets and stages batches. */
#include "runtime/loader.h"

#include <string.h>
#include <xxhash.h>

#include "runtime/check.h"
#include "runtime/file.h"
#include "runtime/philox.h"

const PlanInput *inf_input_find(const PlanProgram *program, PlanInputKind kind) {
    for (uint32_t i = 0; i < program->ninput; i++)
        if (program->input[i].kind == kind) return &program->input[i];
    return NULL;
}

int64_t inf_input_elements(const PlanInput *input) {
    int64_t total = 1;
    for (int i = 1; i < input->ndim; i++) total *= input->dim[i];
    return total;
}

static InfCode check_images(InfError *e, const PlanProgram *program, InfLoader *l) {
    const PlanInput *image = inf_input_find(program, PLAN_INPUT_image);
    const PlanInput *label = inf_input_find(program, PLAN_INPUT_label);
    const InfImages *im = &l->images;
    if (image) {
        int64_t rows = image->ndim >= 3 ? image->dim[image->ndim - 2] : 1;
        int64_t columns = image->dim[image->ndim - 1];
        int64_t elements = inf_input_elements(image);
        bool flat = image->ndim < 3 && elements == (int64_t)im->rows * im->columns;
        bool fits = rows == im->rows && columns == im->columns && elements == rows * columns;
        if (!flat && !fits)
            return inf_fail(e, INF_DATA,
                            "%s: images are %u x %u, one channel; the model's '%s' "
                            "takes %lld values, %lld x %lld",
                            l->path, im->rows, im->columns, image->name, (long long)elements,
                            (long long)rows, (long long)columns);
    }
    if (label && label->limit > 0 && label->limit < 256)
        TRY(inf_images_check_labels(e, im, l->path, (uint32_t)label->limit));
    return INF_OK;
}

const char *inf_unit_name(const PlanProgram *program) {
    return inf_input_find(program, PLAN_INPUT_tokens) ? "tokens" : "samples";
}

uint64_t inf_units(const PlanProgram *program) {
    const PlanInput *tokens = inf_input_find(program, PLAN_INPUT_tokens);
    return tokens ? (uint64_t)inf_input_elements(tokens) : 1;
}

bool inf_has_perplexity(const PlanProgram *program) {
    return inf_input_find(program, PLAN_INPUT_tokens) &&
           inf_input_find(program, PLAN_INPUT_targets);
}

/* What lies in memory, as rows. */
static void use_images(InfLoader *l) {
    const InfImages *im = &l->images;
    l->rows = im->pixels;
    l->labels = im->labels;
    l->row_bytes = (uint64_t)im->rows * im->columns;
    l->count = im->count;
    l->bytes = im->pixel_bytes + im->label_bytes;
}

static void use_tokens(InfLoader *l) {
    const InfTokens *t = &l->tokens;
    l->rows = t->rows;
    l->row_bytes = (t->length + 1) * t->width;
    l->count = t->samples;
    l->bytes = t->bytes;
}

static InfCode open_images(InfError *e, const PlanData *what, const PlanProgram *program,
                           InfLoader *l, bool *absent, char **why) {
    TRY(inf_images_read(e, l->path, what->split ? what->split : "train", &l->images, absent, why));
    if (*absent) return INF_OK;
    use_images(l);
    return check_images(e, program, l);
}

/* The smallest range of the program's token inputs. */
static int64_t vocabulary(const PlanProgram *program) {
    int64_t limit = INT32_MAX;
    for (uint32_t i = 0; i < program->ninput; i++)
        if (program->input[i].kind != PLAN_INPUT_valid && program->input[i].limit < limit)
            limit = program->input[i].limit;
    return limit;
}

/* Tokens and targets are [B, T] of i32. */
static InfCode check_token_inputs(InfError *e, const PlanProgram *program) {
    const PlanInput *tokens = inf_input_find(program, PLAN_INPUT_tokens);
    for (uint32_t i = 0; i < program->ninput; i++) {
        const PlanInput *input = &program->input[i];
        if (input->kind == PLAN_INPUT_valid) continue;
        bool fits = input->dtype == PLAN_i32 && input->ndim == 2 && tokens &&
                    input->dim[1] == tokens->dim[1];
        if (!fits)
            return inf_fail(e, INF_USAGE,
                            "tokens(file) fills inputs of i32[B, T], the tokens and their targets; "
                            "the model's '%s' is something else",
                            input->name);
    }
    return tokens ? INF_OK
                  : inf_fail(e, INF_USAGE, "tokens(file) is given, but the model takes no tokens");
}

static InfCode open_tokens(InfError *e, const PlanProgram *program, InfLoader *l, bool *absent,
                           char **why) {
    TRY(check_token_inputs(e, program));
    TRY(inf_tokens_read(e, l->path, inf_units(program), vocabulary(program), &l->tokens, absent,
                        why));
    use_tokens(l);
    return INF_OK;
}

InfCode inf_loader_open(InfError *e, const PlanData *what, const PlanProgram *program,
                        const char *path, InfLoader *out, bool *absent, char **why) {
    *out = (InfLoader){.kind = (PlanDataKind)what->kind, .path = path ? path : what->path};
    *absent = false;
    *why = NULL;
    switch (out->kind) {
    case PLAN_DATA_mnist: return open_images(e, what, program, out, absent, why);
    case PLAN_DATA_tokens: return open_tokens(e, program, out, absent, why);
    default:
        return inf_fail(e, INF_USAGE,
                        "the model names no data for this; add data = mnist(\"DIR\") or data = "
                        "tokens(\"FILE\")");
    }
}

static uint64_t bench_key(uint64_t seed, uint64_t id) {
    return inf_random_fold((InfRandomKey){.seed = seed, .purpose = INF_PURPOSE_BENCH, .id = id});
}

static InfCode make_tokens(InfError *e, const PlanProgram *program, uint64_t count, uint64_t seed,
                           InfLoader *l) {
    uint32_t most = (uint32_t)vocabulary(program);
    uint64_t key = bench_key(seed, 0), wide = inf_units(program) + 1, total = 0;
    TRY(check_token_inputs(e, program));
    l->tokens = (InfTokens){
        .samples = count, .length = wide - 1, .width = inf_token_width(most), .files = 0};
    if (!inf_mul(count, wide, &total) || !inf_mul(total, l->tokens.width, &l->tokens.bytes))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    TRY(inf_map_memory(e, l->tokens.bytes, "synthetic data", &l->tokens.rows));
    for (uint64_t i = 0; i < total; i++) {
        uint32_t token = inf_random_block(key, i / 4).v[i % 4] % most;
        if (l->tokens.width == 2)
            ((uint16_t *)l->tokens.rows)[i] = (uint16_t)token;
        else
            ((uint32_t *)l->tokens.rows)[i] = token;
    }
    use_tokens(l);
    return INF_OK;
}

static InfCode make_images(InfError *e, const PlanProgram *program, uint64_t count, uint64_t seed,
                           InfLoader *l) {
    const PlanInput *image = inf_input_find(program, PLAN_INPUT_image);
    const PlanInput *label = inf_input_find(program, PLAN_INPUT_label);
    uint64_t pixels = image ? (uint64_t)inf_input_elements(image) : 1, total = count * pixels;
    void *at = NULL, *labels = NULL;
    TRY(inf_map_memory(e, total, "synthetic data", &at));
    l->images = (InfImages){
        .count = count, .rows = 1, .columns = (uint32_t)pixels, .pixels = at, .pixel_bytes = total};
    TRY(inf_map_memory(e, count, "synthetic data", &labels));
    l->images.labels = labels;
    l->images.label_bytes = count;

    uint64_t key = bench_key(seed, 0);
    for (uint64_t i = 0; i < total; i++)
        l->images.pixels[i] = (uint8_t)(inf_random_block(key, i / 4).v[i % 4] >> 24);
    uint32_t classes = label && label->limit > 0 && label->limit < 256 ? (uint32_t)label->limit : 2;
    key = bench_key(seed, 1);
    for (uint64_t i = 0; i < count; i++)
        l->images.labels[i] = (uint8_t)(inf_random_block(key, i / 4).v[i % 4] % classes);
    use_images(l);
    return INF_OK;
}

InfCode inf_loader_synthetic(InfError *e, const PlanProgram *program, uint64_t count, uint64_t seed,
                             InfLoader *out) {
    bool tokens = inf_input_find(program, PLAN_INPUT_tokens) != NULL;
    *out =
        (InfLoader){.kind = tokens ? PLAN_DATA_tokens : PLAN_DATA_mnist, .path = "synthetic data"};
    return tokens ? make_tokens(e, program, count, seed, out)
                  : make_images(e, program, count, seed, out);
}

void inf_loader_close(InfLoader *l) {
    inf_images_free(&l->images);
    inf_tokens_free(&l->tokens);
    l->count = 0;
}

uint64_t inf_loader_hash(const InfLoader *l) {
    uint64_t bytes = 0, hash;
    if (l->hash != 0) return l->hash;
    if (l->count == 0 || !inf_mul(l->count, l->row_bytes, &bytes)) return 0;
    hash = XXH3_64bits_withSeed(l->rows, bytes, l->count);
    if (l->labels) hash = XXH3_64bits_withSeed(l->labels, l->count, hash);
    return hash | 1; /* not 0 */
}

void inf_loader_begin(InfLoader *l, uint64_t epoch) {
    l->epoch = epoch;
    if (l->shuffle && l->count > 0) l->order = inf_permutation_make(l->count, l->seed, epoch);
}

uint64_t inf_loader_sample(const InfLoader *l, uint64_t position) {
    return l->shuffle ? inf_permutation_at(&l->order, position) : position;
}

/* One row of the batch; `from` is the sample's, NULL beyond the end of the set. */
static void stage_image(const uint8_t *from, float *to, int64_t n) {
    if (!from) memset(to, 0, (size_t)n * sizeof *to);
    for (int64_t i = 0; from && i < n; i++) to[i] = (float)from[i] / 255.0f;
}

static void stage_tokens(const InfLoader *l, const void *from, const PlanInput *input, int32_t *to,
                         int64_t n) {
    bool targets = input->kind == PLAN_INPUT_targets;
    for (int64_t i = 0; i < n; i++)
        to[i] = from      ? inf_token_at(&l->tokens, from, (uint64_t)(i + targets))
                : targets ? INF_TARGET_PAD
                          : 0;
}

static void stage_row(const InfLoader *l, const PlanInput *input, void *to, int64_t row,
                      uint64_t position, uint64_t end) {
    int64_t n = inf_input_elements(input);
    uint64_t sample = position < end ? inf_loader_sample(l, position) : 0;
    const unsigned char *from = position < end ? l->rows + sample * l->row_bytes : NULL;
    switch (input->kind) {
    case PLAN_INPUT_image: stage_image(from, (float *)to + row * n, n); break;
    case PLAN_INPUT_valid: ((float *)to)[row] = from ? 1.0f : 0.0f; break;
    case PLAN_INPUT_label: ((int32_t *)to)[row] = from ? l->labels[sample] : INF_TARGET_PAD; break;
    default: stage_tokens(l, from, input, (int32_t *)to + row * n, n); break;
    }
}

void inf_loader_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program, int32_t local,
                      uint64_t position, uint64_t end) {
    for (uint32_t k = 0; k < program->ninput; k++) {
        const PlanInput *input = &program->input[k];
        if (input->local != local) continue;
        void *to = inf_engine_at(m, input->at.region, input->at.offset);
        int64_t batch = input->dim[0];
#pragma omp parallel for schedule(static) if (batch * inf_input_elements(input) > 16384)
        for (int64_t row = 0; row < batch; row++)
            stage_row(l, input, to, row, position + (uint64_t)row, end);
    }
}

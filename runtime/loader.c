/* loader.c - opens data sets and stages batches. */
#include "runtime/loader.h"

#include <string.h>

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

InfCode inf_loader_open(InfError *e, const PlanData *what, const PlanProgram *program,
                        const char *path, InfLoader *out, bool *absent, char **why) {
    *out = (InfLoader){.path = path ? path : what->path};
    *absent = false;
    *why = NULL;
    if (what->kind == PLAN_DATA_none)
        return inf_fail(e, INF_USAGE,
                        "the model names no data for this; add data = mnist(\"DIR\")");
    if (what->kind != PLAN_DATA_mnist)
        return inf_fail(e, INF_USAGE, "this version reads images (mnist) only");
    TRY(inf_images_read(e, out->path, what->split ? what->split : "train", &out->images, absent,
                        why));
    if (*absent) return INF_OK;
    out->count = out->images.count;
    out->bytes = out->images.pixel_bytes + out->images.label_bytes;
    return check_images(e, program, out);
}

InfCode inf_loader_synthetic(InfError *e, const PlanProgram *program, uint64_t count, uint64_t seed,
                             InfLoader *out) {
    *out = (InfLoader){.path = "synthetic data", .count = count};
    const PlanInput *image = inf_input_find(program, PLAN_INPUT_image);
    const PlanInput *label = inf_input_find(program, PLAN_INPUT_label);
    uint64_t pixels = image ? (uint64_t)inf_input_elements(image) : 1, total = count * pixels;
    void *at = NULL, *labels = NULL;
    TRY(inf_map_memory(e, total, "synthetic data", &at));
    out->images = (InfImages){
        .count = count, .rows = 1, .columns = (uint32_t)pixels, .pixels = at, .pixel_bytes = total};
    TRY(inf_map_memory(e, count, "synthetic data", &labels));
    out->images.labels = labels;
    out->images.label_bytes = count;
    out->bytes = total + count;

    uint64_t key = inf_random_fold((InfRandomKey){.seed = seed, .purpose = INF_PURPOSE_BENCH});
    for (uint64_t i = 0; i < total; i++)
        out->images.pixels[i] = (uint8_t)(inf_random_block(key, i / 4).v[i % 4] >> 24);
    uint32_t classes = label && label->limit > 0 && label->limit < 256 ? (uint32_t)label->limit : 2;
    key = inf_random_fold((InfRandomKey){.seed = seed, .purpose = INF_PURPOSE_BENCH, .id = 1});
    for (uint64_t i = 0; i < count; i++)
        out->images.labels[i] = (uint8_t)(inf_random_block(key, i / 4).v[i % 4] % classes);
    return INF_OK;
}

void inf_loader_close(InfLoader *l) {
    inf_images_free(&l->images);
    l->count = 0;
}

void inf_loader_begin(InfLoader *l, uint64_t epoch) {
    l->epoch = epoch;
    if (l->shuffle && l->count > 0) l->order = inf_permutation_make(l->count, l->seed, epoch);
}

uint64_t inf_loader_sample(const InfLoader *l, uint64_t position) {
    return l->shuffle ? inf_permutation_at(&l->order, position) : position;
}

static void stage_image(const InfLoader *l, const PlanInput *input, float *to, int64_t row,
                        uint64_t position, uint64_t end) {
    int64_t n = inf_input_elements(input);
    to += row * n;
    if (position >= end) {
        memset(to, 0, (size_t)n * sizeof *to);
        return;
    }
    const uint8_t *from = l->images.pixels + inf_loader_sample(l, position) * (uint64_t)n;
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i] / 255.0f;
}

static void stage_row(const InfLoader *l, const PlanInput *input, void *to, int64_t row,
                      uint64_t position, uint64_t end) {
    bool real = position < end;
    switch (input->kind) {
    case PLAN_INPUT_image: stage_image(l, input, to, row, position, end); break;
    case PLAN_INPUT_valid: ((float *)to)[row] = real ? 1.0f : 0.0f; break;
    default:
        ((int32_t *)to)[row] =
            real ? l->images.labels[inf_loader_sample(l, position)] : INF_TARGET_PAD;
        break;
    }
}

void inf_loader_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program,
                      uint64_t position, uint64_t end) {
    for (uint32_t k = 0; k < program->ninput; k++) {
        const PlanInput *input = &program->input[k];
        void *to = inf_engine_at(m, input->at.region, input->at.offset);
        int64_t batch = input->dim[0];
#pragma omp parallel for schedule(static) if (batch * inf_input_elements(input) > 16384)
        for (int64_t row = 0; row < batch; row++)
            stage_row(l, input, to, row, position + (uint64_t)row, end);
    }
}

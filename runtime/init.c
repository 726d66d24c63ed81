/* init.c - initial weights: a function of the seed, the parameter's name and the element. */
#include <math.h>
#include <string.h>

#include "runtime/params.h"
#include "runtime/philox.h"

/* FNV-1a, so that a parameter draws the same numbers wherever it lies. */
static uint64_t hash_name(const char *name) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    return h;
}

/* Two normal values from two words (Box-Muller, in f64). */
static void normal_pair(uint32_t a, uint32_t b, double out[2]) {
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-32));
    double angle = 6.283185307179586 * (((double)b + 0.5) * 0x1p-32);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

static float draw(uint64_t key, const PlanParam *block, int64_t element) {
    InfRandom4 r = inf_random_block(key, (uint64_t)element / 4);
    int lane = (int)(element % 4);
    if (block->init == PLAN_INIT_uniform)
        return (float)(block->init_a * (2.0 * (double)inf_unit_float(r.v[lane]) - 1.0));
    double pair[2];
    normal_pair(r.v[lane & 2], r.v[(lane & 2) + 1], pair);
    return (float)(block->init_a * pair[lane & 1]);
}

/* Values that are made at a time. */
enum { PIECE = 256 };

static void init_param(const InfParam *p, InfEngine *m, uint64_t seed) {
    InfRandomKey key = {.seed = seed, .purpose = INF_PURPOSE_INIT, .id = hash_name(p->name)};
    uint64_t folded = inf_random_fold(key);
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    bool random = p->block->init == PLAN_INIT_normal || p->block->init == PLAN_INIT_uniform;
    float constant = p->block->init == PLAN_INIT_ones ? 1.0f : 0.0f;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float piece[PIECE];
        for (int64_t done = 0, n; done < length; done += n) {
            n = length - done < PIECE ? length - done : PIECE;
            for (int64_t i = 0; i < n; i++)
                piece[i] = random ? draw(folded, p->block, row * length + done + i) : constant;
            inf_param_put(p, m, inf_param_row_at(p, row) + done, piece, n);
        }
    }
}

void inf_params_init(const InfParams *all, InfEngine *m, uint64_t seed) {
    memset(m->base[PLAN_REGION_param], 0, (size_t)m->plan->region_bytes[PLAN_REGION_param]);
    for (int i = 0; i < all->count; i++)
        if (all->param[i].here) init_param(&all->param[i], m, seed);
}

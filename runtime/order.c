/* order.c - finds dependencies between launches from the memory they use. */
#include "runtime/order.h"

#include <stdlib.h>

/* What has to lie beside the main lane for a second one to pay for its edges. */
static const double beside_us_min = 4.0;

InfCode inf_order_open(InfError *e, uint32_t launches, uint32_t reaches, InfOrder *out) {
    *out = (InfOrder){.reach_most = reaches, .words = launches / 64 + 1};
    if (launches > INF_ORDER_MOST) return INF_OK;
    out->reach = calloc((size_t)reaches + 1, sizeof *out->reach);
    out->launch = calloc((size_t)launches + 2, sizeof *out->launch);
    out->waits = calloc((size_t)launches + 1, sizeof *out->waits);
    out->behind = calloc(((size_t)launches + 1) * out->words, sizeof *out->behind);
    if (!out->reach || !out->launch || !out->waits || !out->behind)
        return inf_fail(e, INF_IO, "out of memory");
    out->on = out->surveying = true;
    return INF_OK;
}

void inf_order_close(InfOrder *o) {
    free(o->reach);
    free(o->launch);
    free(o->waits);
    free(o->behind);
    *o = (InfOrder){0};
}

void inf_order_use(InfOrder *o, uint64_t begin, uint64_t bytes, bool written) {
    INF_ASSERT(o->reach_count < o->reach_most);
    uint64_t end = bytes > UINT64_MAX - begin ? UINT64_MAX : begin + bytes;
    if (bytes > 0) o->reach[o->reach_count++] = (InfReach){begin, end, written};
}

void inf_order_end(InfOrder *o, double cost_us) {
    INF_ASSERT(o->count / 64 < o->words);
    o->launch[o->count].cost_us = cost_us;
    o->launch[++o->count].first = o->reach_count;
}

static bool clash(const InfOrder *o, uint32_t a, uint32_t b) {
    for (uint32_t i = o->launch[a].first; i < o->launch[a + 1].first; i++)
        for (uint32_t k = o->launch[b].first; k < o->launch[b + 1].first; k++) {
            const InfReach *x = &o->reach[i], *y = &o->reach[k];
            if ((x->written || y->written) && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

/* Of the launches that wait for `i`, the one with the longest chain from there; count: none. */
static uint32_t longest_behind(const InfOrder *o, uint32_t i) {
    uint32_t best = o->count;
    for (uint32_t k = i + 1; k < o->count; k++)
        if ((best == o->count || o->launch[k].rest_us > o->launch[best].rest_us) && clash(o, i, k))
            best = k;
    return best;
}

void inf_order_plan(InfOrder *o) {
    double beside_us = 0;
    o->surveying = false;
    for (uint32_t i = o->count; i-- > 0;) {
        uint32_t next = longest_behind(o, i);
        o->launch[i].rest_us = o->launch[i].cost_us;
        if (next < o->count) o->launch[i].rest_us += o->launch[next].rest_us;
        o->launch[i].beside = true;
        beside_us += o->launch[i].cost_us;
    }
    for (uint32_t i = 0; i < o->count; i = longest_behind(o, i)) {
        o->launch[i].beside = false;
        beside_us -= o->launch[i].cost_us;
    }
    for (uint32_t i = 0; i < o->count && beside_us < beside_us_min; i++)
        o->launch[i].beside = false;
}

/* From the latest launch back: what one of the found ones waits for needs no look. */
uint32_t inf_order_next(InfOrder *o, const uint32_t **waits) {
    uint32_t now = o->at++, found = 0;
    uint64_t *behind = o->behind + (uint64_t)now * o->words;
    uint32_t *lane = &o->lane[o->launch[now].beside];
    INF_ASSERT(now < o->count);
    for (uint32_t i = now; i-- > 0;) {
        if (behind[i / 64] >> i % 64 & 1 || (i + 1 != *lane && !clash(o, i, now))) continue;
        const uint64_t *its = o->behind + (uint64_t)i * o->words;
        for (uint32_t w = 0; w < o->words; w++) behind[w] |= its[w];
        behind[i / 64] |= UINT64_C(1) << i % 64;
        o->waits[found++] = i;
    }
    *lane = now + 1;
    *waits = o->waits;
    return found;
}

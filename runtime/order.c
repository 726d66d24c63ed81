/* order.c - finds dependencies between launches from the memory they use. */
#include "runtime/order.h"

#include <stdlib.h>

InfCode inf_order_open(InfError *e, uint32_t launches, uint32_t reaches, InfOrder *out) {
    *out = (InfOrder){.reach_most = reaches, .words = launches / 64 + 1};
    if (launches > INF_ORDER_MOST) return INF_OK;
    out->reach = calloc((size_t)reaches + 1, sizeof *out->reach);
    out->first = calloc((size_t)launches + 2, sizeof *out->first);
    out->waits = calloc((size_t)launches + 1, sizeof *out->waits);
    out->behind = calloc(((size_t)launches + 1) * out->words, sizeof *out->behind);
    if (!out->reach || !out->first || !out->waits || !out->behind)
        return inf_fail(e, INF_IO, "out of memory");
    out->on = true;
    return INF_OK;
}

void inf_order_close(InfOrder *o) {
    free(o->reach);
    free(o->first);
    free(o->waits);
    free(o->behind);
    *o = (InfOrder){0};
}

void inf_order_use(InfOrder *o, uint64_t begin, uint64_t bytes, bool written) {
    INF_ASSERT(o->reach_count < o->reach_most);
    uint64_t end = bytes > UINT64_MAX - begin ? UINT64_MAX : begin + bytes;
    if (bytes > 0) o->reach[o->reach_count++] = (InfReach){begin, end, written};
}

static bool clash(const InfOrder *o, uint32_t a, uint32_t b) {
    for (uint32_t i = o->first[a]; i < o->first[a + 1]; i++)
        for (uint32_t k = o->first[b]; k < o->first[b + 1]; k++) {
            const InfReach *x = &o->reach[i], *y = &o->reach[k];
            if ((x->written || y->written) && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

/* From the latest launch back: what one of the found ones waits for needs no look. */
uint32_t inf_order_end(InfOrder *o, const uint32_t **waits) {
    uint32_t now = o->count++, found = 0;
    uint64_t *behind = o->behind + (uint64_t)now * o->words;
    INF_ASSERT(now / 64 < o->words);
    o->first[now + 1] = o->reach_count;
    for (uint32_t i = now; i-- > 0;) {
        if (behind[i / 64] >> i % 64 & 1 || !clash(o, i, now)) continue;
        const uint64_t *its = o->behind + (uint64_t)i * o->words;
        for (uint32_t w = 0; w < o->words; w++) behind[w] |= its[w];
        behind[i / 64] |= UINT64_C(1) << i % 64;
        o->waits[found++] = i;
    }
    *waits = o->waits;
    return found;
}

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
    free(o->wait);
    free(o->waits);
    free(o->behind);
    *o = (InfOrder){0};
}

void inf_order_use(InfOrder *o, uint64_t begin, uint64_t bytes, bool written) {
    INF_ASSERT(o->reach_count < o->reach_most);
    uint64_t end = bytes > UINT64_MAX - begin ? UINT64_MAX : begin + bytes;
    if (bytes > 0) o->reach[o->reach_count++] = (InfReach){begin, end, written};
}

void inf_order_end(InfOrder *o, double cost_us, InfLane lane) {
    INF_ASSERT(o->count / 64 < o->words);
    o->launch[o->count].cost_us = cost_us;
    o->launch[o->count].lane = inf_lane_is_joint(lane) ? lane : INF_LANE_beside;
    o->launch[++o->count].first = o->reach_count;
}

/* --- which launches clash most directly --- */

/* All ranges' ends, in order, cut memory into cells; each remembers who wrote it last and who has
 * read it since. Clashes through these reach all others: what was read or written before the last
 * write has to be done before that write is. */
typedef struct Cells {
    uint64_t *edge;
    uint32_t count;
    uint32_t *writer; /* by cell: 1 + the last launch that wrote it; 0: none */
    uint32_t *reader; /* by cell: 1 + the latest of its Reads; 0: none */
    struct Read {
        uint32_t launch, before; /* 1 + the Read before it; 0: none */
    } * read;
    uint32_t reads, reads_most;
    uint32_t *seen; /* by launch: 1 + the last one that was found to wait for it */
} Cells;

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool cells_open(const InfOrder *o, Cells *c) {
    size_t n = 2 * (size_t)o->reach_count;
    *c = (Cells){.edge = calloc(n + 1, sizeof *c->edge)};
    c->writer = calloc(n + 1, sizeof *c->writer);
    c->reader = calloc(n + 1, sizeof *c->reader);
    c->seen = calloc((size_t)o->count + 1, sizeof *c->seen);
    if (!c->edge || !c->writer || !c->reader || !c->seen) return false;
    for (uint32_t i = 0; i < o->reach_count; i++) {
        c->edge[2 * i] = o->reach[i].begin;
        c->edge[2 * i + 1] = o->reach[i].end;
    }
    qsort(c->edge, n, sizeof *c->edge, by_value);
    for (size_t i = 0; i < n; i++)
        if (c->count == 0 || c->edge[c->count - 1] != c->edge[i]) c->edge[c->count++] = c->edge[i];
    return true;
}

static void cells_close(Cells *c) {
    free(c->edge);
    free(c->writer);
    free(c->reader);
    free(c->read);
    free(c->seen);
}

static uint32_t cell_of(const Cells *c, uint64_t address) {
    const uint64_t *at = bsearch(&address, c->edge, c->count, sizeof *c->edge, by_value);
    INF_ASSERT(at);
    return (uint32_t)(at - c->edge);
}

/* Room for one more in a list that grows by half. */
static bool grow(void **list, uint32_t count, uint32_t *most, size_t bytes) {
    if (count < *most) return true;
    uint32_t more = *most + *most / 2 + 64;
    void *grown = realloc(*list, more * bytes);
    if (!grown) return false;
    *list = grown;
    *most = more;
    return true;
}

/* Notes that launch `now` waits for launch `other` - 1. */
static bool add_wait(InfOrder *o, Cells *c, uint32_t now, uint32_t other) {
    if (other == 0 || other == now + 1 || c->seen[other - 1] == now + 1) return true;
    void *list = o->wait;
    bool room = grow(&list, o->wait_count, &o->wait_most, sizeof *o->wait);
    o->wait = list;
    if (!room) return false;
    c->seen[other - 1] = now + 1;
    o->wait[o->wait_count++] = other - 1;
    return true;
}

static bool read_cell(InfOrder *o, Cells *c, uint32_t now, uint32_t cell) {
    void *list = c->read;
    bool room = grow(&list, c->reads, &c->reads_most, sizeof *c->read);
    c->read = list;
    if (!room || !add_wait(o, c, now, c->writer[cell])) return false;
    c->read[c->reads] = (struct Read){now, c->reader[cell]};
    c->reader[cell] = ++c->reads;
    return true;
}

static bool write_cell(InfOrder *o, Cells *c, uint32_t now, uint32_t cell) {
    for (uint32_t r = c->reader[cell]; r > 0; r = c->read[r - 1].before)
        if (!add_wait(o, c, now, c->read[r - 1].launch + 1)) return false;
    if (!add_wait(o, c, now, c->writer[cell])) return false;
    c->writer[cell] = now + 1;
    c->reader[cell] = 0;
    return true;
}

static int latest_first(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* A launch sees what it reads before it writes. */
static bool find_waits(InfOrder *o, Cells *c, uint32_t now) {
    InfOrderLaunch *l = &o->launch[now];
    l->wait = o->wait_count;
    for (int written = 0; written < 2; written++)
        for (uint32_t i = l->first; i < l[1].first; i++) {
            const InfReach *r = &o->reach[i];
            if (r->written != (written == 1)) continue;
            uint32_t end = cell_of(c, r->end);
            for (uint32_t cell = cell_of(c, r->begin); cell < end; cell++)
                if (!(written ? write_cell : read_cell)(o, c, now, cell)) return false;
        }
    l[1].wait = o->wait_count;
    if (o->wait_count > l->wait)
        qsort(o->wait + l->wait, o->wait_count - l->wait, sizeof *o->wait, latest_first);
    return true;
}

static bool find_all_waits(InfOrder *o) {
    Cells c;
    bool done = cells_open(o, &c);
    for (uint32_t i = 0; done && i < o->count; i++) done = find_waits(o, &c, i);
    cells_close(&c);
    return done;
}

/* --- lanes --- */

/* From the last launch back: by then a launch has heard from all that wait for it. Of chains of
 * equal length the one through the earliest launch counts. Returns what all but those with
 * a lane of their own take. */
static double find_chains(InfOrder *o) {
    double sum_us = 0;
    for (uint32_t i = 0; i < o->count; i++) {
        o->launch[i].next = o->count;
        if (!inf_lane_is_joint(o->launch[i].lane)) sum_us += o->launch[i].cost_us;
    }
    for (uint32_t i = o->count; i-- > 0;) {
        InfOrderLaunch *l = &o->launch[i];
        l->rest_us = l->cost_us + (l->next < o->count ? o->launch[l->next].rest_us : 0);
        for (uint32_t w = l->wait; w < l[1].wait; w++) {
            InfOrderLaunch *before = &o->launch[o->wait[w]];
            if (before->next == o->count || l->rest_us >= o->launch[before->next].rest_us)
                before->next = i;
        }
    }
    return sum_us;
}

void inf_order_plan(InfOrder *o) {
    o->surveying = false;
    o->on = find_all_waits(o);
    if (!o->on) return;
    double beside_us = find_chains(o);
    for (uint32_t i = 0; i < o->count; i = o->launch[i].next) {
        if (inf_lane_is_joint(o->launch[i].lane)) continue;
        o->launch[i].lane = INF_LANE_main;
        beside_us -= o->launch[i].cost_us;
    }
    for (uint32_t i = 0; i < o->count && beside_us < beside_us_min; i++)
        if (o->launch[i].lane == INF_LANE_beside) o->launch[i].lane = INF_LANE_main;
}

/* From the latest launch back: what one of the found ones waits for needs no look. */
static void wait_for(InfOrder *o, uint32_t now, uint32_t other, uint32_t *found) {
    uint64_t *behind = o->behind + (uint64_t)now * o->words;
    const uint64_t *its = o->behind + (uint64_t)other * o->words;
    if (behind[other / 64] >> other % 64 & 1) return;
    for (uint32_t w = 0; w <= other / 64; w++) behind[w] |= its[w];
    behind[other / 64] |= UINT64_C(1) << other % 64;
    o->waits[(*found)++] = other;
}

uint32_t inf_order_next(InfOrder *o, const uint32_t **waits) {
    uint32_t now = o->at++, found = 0;
    INF_ASSERT(now < o->count);
    const InfOrderLaunch *l = &o->launch[now];
    uint32_t *lane = &o->lane[l->lane], w = l->wait;
    for (; w < l[1].wait && o->wait[w] + 1 > *lane; w++) wait_for(o, now, o->wait[w], &found);
    if (*lane > 0) wait_for(o, now, *lane - 1, &found);
    for (; w < l[1].wait; w++) wait_for(o, now, o->wait[w], &found);
    *lane = now + 1;
    *waits = o->waits;
    return found;
}

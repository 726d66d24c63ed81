/* sums.c - see sums.h. */
#include "runtime/sums.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"

/* Pieces on their way at a time, and what a part has to be a multiple of in memory. */
enum { SLOTS = 4, ALIGN_ELEMS = 16 };

/* What is sent to be added, and what has been. */
enum { TAG_parts = INF_TAG_MAX - 2, TAG_sums = INF_TAG_MAX - 1 };

typedef struct Sum {
    InfSummand all;
    uint64_t each; /* elements of a part */
    InfRequest *out;
} Sum;

typedef enum Stage { STAGE_parts, STAGE_sums, STAGE_over } Stage;

/* One piece of every part: elements [first, first + piece) of each. */
typedef struct Round {
    const Sum *sum;
    uint64_t first;
    Stage stage;
    InfRequest *sent, *got; /* by replica */
} Round;

struct InfSums {
    InfSumsOf of;
    Sum *sum;              /* those that have begun, in order */
    uint32_t begun, taken; /* how many, and how many are all in rounds */
    uint64_t first;        /* where the next round begins in sum[taken] */
    Round round[SLOTS];
    uint64_t started, over; /* rounds; number n is round[n % SLOTS] */
    InfRequest *request;
    float *stage;   /* [SLOTS][replicas - 1][piece] */
    uint64_t piece; /* elements */
};

InfCode inf_sums_open(InfError *e, const InfSumsOf *of, InfSums **out) {
    size_t replicas = (size_t)of->replicas;
    InfSums *s = *out = calloc(1, sizeof *s);
    if (!s) return inf_fail(e, INF_IO, "out of memory");
    s->of = *of;
    s->sum = calloc((size_t)of->most + 1, sizeof *s->sum);
    s->request = calloc(2 * SLOTS * replicas, sizeof *s->request);
    if (!s->sum || !s->request) return inf_fail(e, INF_IO, "out of memory");
    for (size_t i = 0; i < SLOTS; i++) {
        s->round[i].sent = s->request + 2 * i * replicas;
        s->round[i].got = s->round[i].sent + replicas;
    }
    return INF_OK;
}

void inf_sums_close(InfSums *s) {
    if (!s) return;
    free(s->sum);
    free(s->request);
    free(s);
}

void inf_sums_place(InfSums *s, void *memory, uint64_t bytes) {
    uint64_t pieces = SLOTS * ((uint64_t)s->of.replicas - 1);
    s->stage = memory;
    s->piece = bytes / sizeof(float) / pieces / ALIGN_ELEMS * ALIGN_ELEMS;
}

/* ---- a round --- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A replica's part in a round. */
typedef struct Piece {
    float *at;
    uint64_t count;
} Piece;

static Piece piece_of(const InfSums *s, const Round *r, int replica) {
    const Sum *sum = r->sum;
    uint64_t begin = least((uint64_t)replica * sum->each, sum->all.count);
    uint64_t end = least(begin + sum->each, sum->all.count);
    uint64_t from = least(begin + r->first, end);
    return (Piece){sum->all.at + from, least(s->piece, end - from)};
}

/* Where another replica's numbers arrive. */
static float *stage_of(const InfSums *s, const Round *r, int replica) {
    uint64_t slot = (uint64_t)(r - s->round), others = (uint64_t)s->of.replicas - 1;
    uint64_t number = (uint64_t)(replica < s->of.replica ? replica : replica - 1);
    return s->stage + (slot * others + number) * s->piece;
}

static InfCode send(InfError *e, const InfSums *s, int replica, int tag, Piece p, InfRequest *out) {
    if (p.count == 0) return INF_OK;
    return s->of.transport->send(e, s->of.first + replica, tag, p.at, p.count * sizeof(float), out);
}

static InfCode recv(InfError *e, const InfSums *s, int replica, int tag, Piece p, InfRequest *out) {
    if (p.count == 0) return INF_OK;
    return s->of.transport->recv(e, s->of.first + replica, tag, p.at, p.count * sizeof(float), out);
}

/* Everyone's numbers go to the owners of the parts. */
static InfCode send_parts(InfError *e, InfSums *s, Round *r) {
    Piece own = piece_of(s, r, s->of.replica);
    r->stage = STAGE_parts;
    for (int k = 0; k < s->of.replicas; k++) {
        if (k == s->of.replica) continue;
        TRY(recv(e, s, k, TAG_parts, (Piece){stage_of(s, r, k), own.count}, &r->got[k]));
        TRY(send(e, s, k, TAG_parts, piece_of(s, r, k), &r->sent[k]));
    }
    return INF_OK;
}

/* Elements that are added at a time, in registers and the nearest cache. */
enum { BLOCK = 1024 };

static void add(const InfSums *s, const Round *r) {
    Piece own = piece_of(s, r, s->of.replica);
#pragma omp parallel for schedule(static)
    for (uint64_t at = 0; at < own.count; at += BLOCK) {
        float sum[BLOCK];
        uint64_t n = least(BLOCK, own.count - at);
        for (int k = 0; k < s->of.replicas; k++) {
            const float *from = (k == s->of.replica ? own.at : stage_of(s, r, k)) + at;
            if (k == 0) memcpy(sum, from, n * sizeof *sum);
            for (uint64_t i = 0; k > 0 && i < n; i++) sum[i] += from[i];
        }
        memcpy(own.at + at, sum, n * sizeof *sum);
    }
}

/* The owners' sums go to everyone. */
static InfCode send_sums(InfError *e, InfSums *s, Round *r) {
    r->stage = r->sum->all.scatter ? STAGE_over : STAGE_sums;
    for (int k = 0; k < s->of.replicas && r->stage == STAGE_sums; k++) {
        if (k == s->of.replica) continue;
        TRY(recv(e, s, k, TAG_sums, piece_of(s, r, k), &r->got[k]));
        TRY(send(e, s, k, TAG_sums, piece_of(s, r, s->of.replica), &r->sent[k]));
    }
    return INF_OK;
}

static InfCode test(InfError *e, const InfSums *s, InfRequest *request, bool *over) {
    for (int k = 0; k < s->of.replicas && *over; k++) {
        if (request[k].busy) TRY(s->of.transport->test(e, &request[k]));
        *over = !request[k].busy;
    }
    return INF_OK;
}

/* ---- all of them --- */

static InfCode start_rounds(InfError *e, InfSums *s, bool *moved) {
    while (s->taken < s->begun && s->started - s->over < SLOTS) {
        const Sum *sum = &s->sum[s->taken];
        Round *r = &s->round[s->started++ % SLOTS];
        r->sum = sum;
        r->first = s->first;
        s->first += s->piece;
        if (s->first >= sum->each) s->first = 0, s->taken++;
        *moved = true;
        TRY(send_parts(e, s, r));
    }
    return INF_OK;
}

/* Rounds are added in order, so that messages of one tag are. */
static InfCode advance_rounds(InfError *e, InfSums *s, bool *moved) {
    for (uint64_t n = s->over; n < s->started; n++) {
        Round *r = &s->round[n % SLOTS];
        Stage before = r->stage;
        bool over = before != STAGE_over;
        TRY(test(e, s, r->got, &over));
        TRY(test(e, s, r->sent, &over));
        if (!over && before == STAGE_parts) break;
        if (!over) continue;
        *moved = true;
        if (before == STAGE_parts) {
            add(s, r);
            TRY(send_sums(e, s, r));
        } else {
            r->stage = STAGE_over;
        }
    }
    for (; s->over < s->started; s->over++) {
        const Round *r = &s->round[s->over % SLOTS];
        if (r->stage != STAGE_over) break;
        if (r->first + s->piece >= r->sum->each) r->sum->out->busy = false;
    }
    return INF_OK;
}

static bool any_left(const InfSums *s) { return s->taken < s->begun || s->over < s->started; }

static InfCode advance(InfError *e, InfSums *s, bool *any) {
    for (bool moved = any_left(s); moved; *any = *any || moved) {
        moved = false;
        TRY(start_rounds(e, s, &moved));
        TRY(advance_rounds(e, s, &moved));
    }
    return INF_OK;
}

InfCode inf_sums_begin(InfError *e, InfSums *s, const InfSummand *all, InfRequest *out) {
    uint64_t replicas = (uint64_t)s->of.replicas;
    if (!any_left(s)) s->begun = s->taken = 0;
    INF_ASSERT(s->piece > 0 && all->count > 0 && !out->busy && s->begun < s->of.most);
    uint64_t each = all->count / replicas + (all->count % replicas > 0);
    s->sum[s->begun++] = (Sum){*all, each, out};
    out->busy = true;
    return inf_sums_poll(e, s);
}

InfCode inf_sums_poll(InfError *e, InfSums *s) {
    bool any = false;
    return advance(e, s, &any);
}

InfCode inf_sums_wait(InfError *e, InfSums *s, const InfRequest *r) {
    for (int turn = 0; r->busy;) {
        bool any = false;
        TRY(advance(e, s, &any));
        turn = any ? 0 : turn + (turn < INT32_MAX);
        if (r->busy && !any) s->of.transport->rest(turn);
    }
    return INF_OK;
}

InfCode inf_sums_add(InfError *e, InfSums *s, float *at, uint64_t count) {
    InfRequest request = {.busy = false};
    const InfSummand all = {at, count, false};
    TRY(inf_sums_begin(e, s, &all, &request));
    return inf_sums_wait(e, s, &request);
}

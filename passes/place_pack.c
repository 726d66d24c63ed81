/* place_pack.c - buffers into offsets.
 *
 * Greedy by size: the largest buffer first, each at the lowest place where the gap between the
 * buffers that live at the same time fits best. Ties go to the earlier buffer, so the result is one
 * function of the graph.
 *
 * Where the step has one microbatch, a gradient's place is free until the gradient is written: what
 * is dead by then may lie there (logits, for example, over the gradients of layers). Bytes between
 * gradients stay zero for the update, so nobody lies there.
 */
#include "passes/place.h"

#include <limits.h>
#include <stdlib.h>

static int64_t align_up(int64_t bytes) {
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static int by_size(const void *x, const void *y) {
    const PlaceBuffer *a = *(const PlaceBuffer *const *)x, *b = *(const PlaceBuffer *const *)y;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a < b ? -1 : a > b;
}

static int by_offset(const void *x, const void *y) {
    const PlaceBuffer *a = *(const PlaceBuffer *const *)x, *b = *(const PlaceBuffer *const *)y;
    if (a->offset_bytes != b->offset_bytes) return a->offset_bytes < b->offset_bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool live_together(const PlaceBuffer *a, const PlaceBuffer *b) {
    return a->begin <= b->end && b->begin <= a->end;
}

/* The smallest gap that holds b between `n` buffers in order of offset; when none does, the end. */
static int64_t best_offset(const PlaceBuffer *b, PlaceBuffer *const *other, int n) {
    int64_t end = 0, best = -1, best_gap = 0;
    for (int i = 0; i < n; i++) {
        int64_t gap = other[i]->offset_bytes - end;
        if (gap >= align_up(b->bytes) && (best < 0 || gap < best_gap)) {
            best = end;
            best_gap = gap;
        }
        int64_t after = other[i]->offset_bytes + align_up(other[i]->bytes);
        if (after > end) end = after;
    }
    return best >= 0 ? best : end;
}

static int64_t pack_region(PlaceBuffer **list, int n, RegionId region, bool no_reuse,
                           Arena *arena) {
    int64_t total = 0;
    PlaceBuffer **other = ARENA_ARRAY(arena, PlaceBuffer *, n);
    qsort(list, (size_t)n, sizeof *list, by_size);
    for (int i = 0; i < n; i++) {
        PlaceBuffer *b = list[i];
        int nother = 0;
        for (int k = 0; k < i && !no_reuse; k++)
            if (live_together(list[k], b)) other[nother++] = list[k];
        qsort(other, (size_t)nother, sizeof *other, by_offset);
        b->offset_bytes = no_reuse ? total : best_offset(b, other, nother);
        b->region = region;
        int64_t end = b->offset_bytes + align_up(b->bytes);
        if (end > total) total = end;
    }
    return total;
}

/* ---- places of gradients ---------------------------------------------------------------- */

typedef struct Lent {
    PlaceBuffer **list; /* gradients, the bytes between them and the end, then what lies there */
    int n, ngrad;       /* the first ngrad are gradients */
    PlaceBuffer **other;
} Lent;

/* Pieces of a buffer that lie apart. */
static int64_t pieces_of(const PlaceBuffer *b) {
    return b->pitch_bytes > 0 ? (b->bytes + b->pitch_bytes - 1) / b->pitch_bytes : 1;
}

static void list_pieces(Lent *l, PlaceBuffer *b, Arena *arena) {
    int64_t n = pieces_of(b);
    for (int64_t i = 0; i < n; i++) {
        PlaceBuffer *piece = n > 1 ? ARENA_NEW(arena, PlaceBuffer) : b;
        *piece = *b;
        piece->bytes -= (n - 1) * b->pitch_bytes;
        piece->offset_bytes += i * b->pitch_bytes;
        l->list[l->ngrad++] = piece;
    }
}

/* The gradients that this graph writes, and as buffers that never die all bytes that are not of
 * one. */
static Lent lent_new(Placed *placed, Arena *arena) {
    int nbuffer = (int)placed->buffers.list.n;
    size_t most = (size_t)nbuffer + 2;
    for (int i = 0; i < nbuffer; i++)
        if (placed->buffers.list.data[i].region == REGION_grad)
            most += 2 * (size_t)pieces_of(&placed->buffers.list.data[i]);
    Lent l = {.list = ARENA_ARRAY(arena, PlaceBuffer *, most),
              .other = ARENA_ARRAY(arena, PlaceBuffer *, most)};
    for (int i = 0; i < nbuffer; i++)
        if (placed->buffers.list.data[i].region == REGION_grad)
            list_pieces(&l, &placed->buffers.list.data[i], arena);
    qsort(l.list, (size_t)l.ngrad, sizeof *l.list, by_offset);
    l.n = l.ngrad;
    for (int i = -1; i < l.ngrad && l.ngrad > 0; i++) {
        PlaceBuffer *gap = ARENA_NEW(arena, PlaceBuffer);
        int64_t end =
            i < 0 ? 0 : (l.list[i]->offset_bytes + l.list[i]->bytes) / PLACE_ALIGN * PLACE_ALIGN;
        int64_t next = i + 1 < l.ngrad ? l.list[i + 1]->offset_bytes : INT64_MAX / 2;
        *gap = (PlaceBuffer){.offset_bytes = end, .bytes = next - end, .end = INT_MAX};
        if (gap->bytes > 0) l.list[l.n++] = gap;
    }
    return l;
}

/* Whether b lies where a gradient will be. */
static bool lend(Lent *l, PlaceBuffer *b) {
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        const PlaceBuffer *o = l->list[i];
        if (i < l->ngrad ? o->begin <= b->end : live_together(o, b)) l->other[n++] = l->list[i];
    }
    qsort(l->other, (size_t)n, sizeof *l->other, by_offset);
    int64_t at = n > 0 ? best_offset(b, l->other, n) : INT64_MAX;
    if (n == 0 || at >= l->other[n - 1]->offset_bytes) return false;
    b->offset_bytes = at;
    b->region = REGION_grad;
    l->list[l->n++] = b;
    return true;
}

/* Who lives longest first: what dies early finds a place elsewhere. */
static int by_life(const void *x, const void *y) {
    const PlaceBuffer *a = *(const PlaceBuffer *const *)x, *b = *(const PlaceBuffer *const *)y;
    int life = (b->end - b->begin) - (a->end - a->begin);
    return life != 0 ? life : by_size(x, y);
}

/* Takes from `list` what finds such a place; returns how many are left. */
static int lend_places(Placed *placed, PlaceBuffer **list, int n, Arena *arena) {
    Lent l = lent_new(placed, arena);
    int left = 0;
    if (l.ngrad == 0) return n;
    qsort(list, (size_t)n, sizeof *list, by_life);
    for (int i = 0; i < n; i++)
        if (!lend(&l, list[i])) list[left++] = list[i];
    return left;
}

/* ---- the regions ------------------------------------------------------------------------ */

void place_pack(Placed *placed, const PlaceOptions *options, Arena *arena) {
    int n = (int)placed->buffers.list.n, nslot = 0, nscratch = 0;
    PlaceBuffer **slot = ARENA_ARRAY(arena, PlaceBuffer *, n);
    PlaceBuffer **scratch = ARENA_ARRAY(arena, PlaceBuffer *, n);
    for (int i = 0; i < n; i++) {
        PlaceBuffer *b = &placed->buffers.list.data[i];
        if (b->region != REGION_none) continue;
        b->is_slot = options->slots && (b->tasks & (b->tasks - 1)) != 0;
        if (b->is_slot)
            slot[nslot++] = b;
        else
            scratch[nscratch++] = b;
    }
    if (options->lend && !options->no_reuse)
        nscratch = lend_places(placed, scratch, nscratch, arena);
    placed->slot_bytes = pack_region(slot, nslot, REGION_slot, options->no_reuse, arena);
    placed->scratch_bytes =
        pack_region(scratch, nscratch, REGION_scratch, options->no_reuse, arena);
}

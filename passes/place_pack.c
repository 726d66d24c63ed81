/* place_pack.c - buffers into offsets.
 *
 * Greedy by size: the largest buffer first, each at the lowest place where the gap between the
 * buffers that live at the same time fits best. Ties go to the earlier buffer, so the result is one
 * function of the graph.
 */
#include "passes/place.h"

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

/* The smallest gap that holds b between `n` buffers in order of offset; the end when none does. */
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

void place_pack(Placed *placed, const PlaceOptions *options, Arena *arena) {
    int n = (int)placed->buffers.list.n, nslot = 0, nscratch = 0;
    PlaceBuffer **slot = ARENA_ARRAY(arena, PlaceBuffer *, n);
    PlaceBuffer **scratch = ARENA_ARRAY(arena, PlaceBuffer *, n);
    for (int i = 0; i < n; i++) {
        PlaceBuffer *b = &placed->buffers.list.data[i];
        if (b->region != REGION_none) continue;
        b->is_slot = options->slots && b->in_forward && b->in_backward;
        if (b->is_slot)
            slot[nslot++] = b;
        else
            scratch[nscratch++] = b;
    }
    placed->slot_bytes = pack_region(slot, nslot, REGION_slot, options->no_reuse, arena);
    placed->scratch_bytes =
        pack_region(scratch, nscratch, REGION_scratch, options->no_reuse, arena);
}

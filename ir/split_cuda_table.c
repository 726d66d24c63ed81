/* split_cuda_table.c - how the gradient of a table is cut for CUDA; see split.h. */
#include "ir/module.h"
#include "ir/split.h"

enum {
    WALKED_MAX = 1 << 22, /* comparisons that walking all indices for each row may take */
    BUCKETS_MIN = 256,
    BUCKETS_MAX = 1024, /* one thread of a block each */
    LOCAL_MAX = 256,    /* rows of a bucket, where there may be more buckets */
    THREADS = 512,
    WARP = 32,
    CHUNK = 1024,
    COLUMNS = 256, /* of a tile */
    QUAD = 4,
    LONG_LIST = 64
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t power_of_two(int64_t n, int64_t most) {
    int64_t p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

/* As many neighbours as make 16 bytes of the narrowest float that the kernel reads. */
static int64_t vector_of(const Graph *body, int64_t width) {
    bool half = false;
    for (int i = 0; i < body->nin; i++) half |= val_info(body, body->in[i])->dtype == DT_bf16;
    if (half && width % (2 * QUAD) == 0) return 2 * QUAD;
    return width % QUAD == 0 ? QUAD : 1;
}

CudaTable split_cuda_table(const Graph *body, const Node *n) {
    const TypeTable *types = body->mod->types;
    CudaTable s = {.rows = val_info(body, n->out)->dim[0],
                   .indices = type_elems(types, val_type(body, n->in[0]))};
    int64_t elems = type_elems(types, val_type(body, n->out));
    s.sorted = elems > 0 && s.indices > WALKED_MAX / elems;
    if (!s.sorted) return s;
    s.width = elems / s.rows;
    int64_t buckets = ceil_div(s.rows, LOCAL_MAX);
    s.buckets =
        power_of_two(min64(s.rows, buckets > BUCKETS_MIN ? buckets : BUCKETS_MIN), BUCKETS_MAX);
    s.local = ceil_div(s.rows, s.buckets);
    s.sorted = s.local <= THREADS && s.indices <= INT32_MAX;
    s.threads = THREADS;
    s.chunk = CHUNK;
    s.chunks = ceil_div(s.indices, s.chunk);
    s.count_threads = (int)(s.buckets > BUCKETS_MIN ? s.buckets : BUCKETS_MIN);
    s.vector = vector_of(body, s.width);
    s.units = s.width / s.vector;
    s.each = COLUMNS / (WARP * s.vector);
    while (s.each > 1 && s.units <= WARP * s.each / 2) s.each /= 2;
    s.tiles = ceil_div(s.units, WARP * s.each);
    s.longest = LONG_LIST;
    s.first_at = s.chunks * s.buckets;
    s.list_at = s.first_at + s.buckets + 1;
    s.sorted_at = s.list_at + s.indices;
    s.ints = s.sorted_at + s.tiles * s.indices;
    return s;
}

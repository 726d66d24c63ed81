/* attention_places.cu - which block of a launch does what, for traits S.
 *
 * Heads come in chunks of CHUNK, whose operands stay in the cache meanwhile; within a chunk the
 * longest work comes first, so that short blocks fill the end.
 */
/* PlanSizes of runtime/plan.h: what traits of a kernel for any size are told. */
struct AttnSizes {
    int BATCH, QUERIES, KEYS, CHUNK;
    int64_t Q_B, K_B, V_B, O_B, TURNED_B, L_B, L_H;
};

struct AttnPlace {
    int batch, head, tile;
};

/* The first ROWS rows of a tile of queries of a head. */
template <class S> INF_INLINE AttnPlace attn_forward_place(const S spec) {
    const int tiles = (spec.QUERIES + S::ROWS - 1) / S::ROWS, heads = spec.BATCH * S::HEADS;
    const int block = (int)blockIdx.x, chunk = block / (spec.CHUNK * tiles);
    const int in = block % (spec.CHUNK * tiles), first = chunk * spec.CHUNK;
    const int pairs = INF_MIN(heads - first, (int)spec.CHUNK), pair = first + in % pairs;
    return {pair / S::HEADS, pair % S::HEADS, tiles - 1 - in / pairs};
}

/* Blocks of keys (KEY_KINDS kinds: two when registers hold only one of dk and dv) keep ROWS of
 * them, blocks of queries QUERY_ROWS. A block of keys meets the queries of all heads that share
 * them: when there are several, those blocks are the longest. */
struct AttnJob {
    bool queries;
    int kind, batch, group, head, row0;
};

template <class S> INF_INLINE AttnJob attn_backward_job() {
    enum : int {
        SHARE = S::HEADS / S::GROUPS,
        KEY_TILES = (S::KEYS + S::ROWS - 1) / S::ROWS,
        QUERY_TILES = (S::QUERIES + S::QUERY_ROWS - 1) / S::QUERY_ROWS,
        KEY_BLOCKS = KEY_TILES * S::KEY_KINDS,
        QUERY_BLOCKS = QUERY_TILES * SHARE,
        PAIRS = S::BATCH * S::GROUPS,
        EACH = KEY_BLOCKS + QUERY_BLOCKS
    };
    const int block = (int)blockIdx.x, chunk = block / (S::CHUNK * EACH);
    const int in = block % (S::CHUNK * EACH), first = chunk * S::CHUNK;
    const int pairs = INF_MIN(PAIRS - first, (int)S::CHUNK), pair = first + in % pairs;
    const int batch = pair / S::GROUPS, group = pair % S::GROUPS, number = in / pairs;
    const int keys = SHARE > 1 ? number : number - QUERY_BLOCKS;
    if (keys >= 0 && keys < KEY_BLOCKS)
        return {false, keys % S::KEY_KINDS, batch, group, 0, keys / S::KEY_KINDS * (int)S::ROWS};
    const int queries = SHARE > 1 ? number - KEY_BLOCKS : number;
    return {true,
            0,
            batch,
            group,
            group * SHARE + queries % SHARE,
            (QUERY_TILES - 1 - queries / SHARE) * (int)S::QUERY_ROWS};
}

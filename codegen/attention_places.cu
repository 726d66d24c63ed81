/* attention_places.cu - which block of a launch does what, for traits S.
 *
 * Heads come in chunks of CHUNK, whose operands stay in the cache meanwhile; within a chunk the
 * longest work comes first, so that short blocks fill the end.
 */
struct AttnPlace {
    int batch, head, tile;
};

/* The first ROWS rows of a tile of queries of a head. */
template <class S> INF_INLINE AttnPlace attn_forward_place() {
    enum : int { TILES = (S::QUERIES + S::ROWS - 1) / S::ROWS, PAIRS = S::BATCH * S::HEADS };
    const int block = (int)blockIdx.x, chunk = block / (S::CHUNK * TILES);
    const int in = block % (S::CHUNK * TILES), first = chunk * S::CHUNK;
    const int pairs = INF_MIN(PAIRS - first, (int)S::CHUNK), pair = first + in % pairs;
    return {pair / S::HEADS, pair % S::HEADS, TILES - 1 - in / pairs};
}

/* Blocks of keys (KEY_KINDS kinds: two when registers hold only one of dk and dv) and of queries,
 * a kind for each head that shares the keys. */
struct AttnJob {
    bool keys, queries; /* neither: there is nothing to do */
    int kind, batch, group, head, row0;
};

template <class S> INF_INLINE AttnJob attn_backward_job() {
    enum : int {
        SHARE = S::HEADS / S::GROUPS,
        KEY_TILES = (S::KEYS + S::ROWS - 1) / S::ROWS,
        QUERY_TILES = (S::QUERIES + S::ROWS - 1) / S::ROWS,
        RANKS = KEY_TILES > QUERY_TILES ? KEY_TILES : QUERY_TILES,
        PAIRS = S::BATCH * S::GROUPS,
        KINDS = S::KEY_KINDS + SHARE
    };
    const int block = (int)blockIdx.x, chunk = block / (S::CHUNK * RANKS * KINDS);
    const int in = block % (S::CHUNK * RANKS * KINDS), first = chunk * S::CHUNK;
    const int pairs = INF_MIN(PAIRS - first, (int)S::CHUNK), pair = first + in % pairs;
    const int kind = in / pairs % KINDS, rank = in / pairs / KINDS, group = pair % S::GROUPS;
    const bool queries = kind >= S::KEY_KINDS;
    return {!queries && rank < KEY_TILES,
            queries && rank < QUERY_TILES,
            kind,
            (int)(pair / S::GROUPS),
            group,
            group * SHARE + kind - S::KEY_KINDS,
            (queries ? QUERY_TILES - 1 - rank : rank) * (int)S::ROWS};
}

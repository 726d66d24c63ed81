/* attention_backward.cu - gradients of attention in one launch, for traits S.
 *
 * Every block keeps ROWS rows and walks over the tiles that meet them, so each gradient is summed
 * by one warp in one order. Blocks of keys make dk and dv: with p = exp(scale q k' - lse) and delta
 * = rowsum(dout * out), dv = p' dout,  ds = p (dout v' - delta),  dk = scale ds' q over the queries
 * of all heads that read them; blocks of queries make dq = scale ds k. Both make p again, and
 * delta, which costs less than a launch that prepares it.
 */
struct AttnGrad {
    const inf_bf16 *q, *k, *v, *out, *dout;
    const float *lse;
    inf_bf16 *dq, *dk, *dv;
    AttnTables tables_q, tables_k;
};

/* Shared memory: two tiles of own rows, STAGES pairs of others', an `out` tile and two floats a
 * query. */
template <class S> struct AttnRoom {
    enum : int {
        OWN = S::ROWS * AttnForm<S>::ROW_BYTES,
        TILE = S::COLS * AttnForm<S>::ROW_BYTES,
        PAIRS = 2 * OWN,
        OUT = PAIRS + S::STAGES * 2 * TILE,
        LSE = OUT + (S::OUT_TILE ? TILE : 0),
        DELTA = LSE + S::COLS * 4
    };
};

/* Sum of the products of eight bf16 pairs, added to `sum`. */
INF_INLINE float attn_dot8(uint4 x, uint4 y, float sum) {
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = INF_FMA(attn_half(a[i], 0), attn_half(b[i], 0), sum);
        sum = INF_FMA(attn_half(a[i], 1), attn_half(b[i], 1), sum);
    }
    return sum;
}

/* Piece x of a quarter of a row: neighbours, so that no bank is asked twice. */
INF_INLINE int attn_piece(int x, int part) { return part * 2 + x % 2 + x / 2 * 8; }

/* A row's delta by four lanes, of which this is `part`; a row that is not `inside` has none. */
template <class S>
INF_INLINE float attn_delta(const inf_bf16 *dout, const inf_bf16 *out, int part, bool inside) {
    float sum = 0.0f;
#pragma unroll
    for (int x = 0; x < (S::DIM + 63) / 64 * 2; x++) {
        const int piece = attn_piece(x, part);
        if (piece < S::DIM / 8 && inside)
            sum = attn_dot8(attn_read<S>(dout + 8 * piece), attn_read<S>(out + 8 * piece), sum);
    }
    return attn_fold4(sum);
}

/* --- keys --- */

/* A tile of queries of one head: what a block of keys walks over. */
struct AttnQueries {
    const inf_bf16 *q, *dout, *out;
    const float *lse;
    int inside; /* rows that exist */
};

template <class S>
INF_INLINE AttnQueries attn_queries_at(const AttnGrad &g, int batch, int head, int query) {
    return {g.q + batch * S::Q_B + head * S::Q_H + query * S::Q_T,
            g.dout + batch * S::DO_B + head * S::DO_H + query * S::DO_T,
            g.out + batch * S::O_B + head * S::O_H + query * S::O_T,
            g.lse + batch * S::L_B + head * S::L_H + query, (int)S::QUERIES - query};
}

/* The rows of a tile of queries that this warp prepares: `row` and the 15 next; when there are more
 * warps than rows, some do the same. Lane l has two, l / 4 and l / 4 + 8 from there. */
template <class S> INF_INLINE int attn_queries_row() {
    return threadIdx.x / 32 % (S::COLS / 16) * 16;
}

/* Starts the copies of a tile, and loads this lane's lse: queries that do not exist weigh nothing.
 */
template <class S>
INF_INLINE void attn_queries_start(const AttnQueries &from, float (&lse)[2], uint32_t room,
                                   int stage) {
    typedef AttnRoom<S> R;
    const uint32_t to = room + R::PAIRS + stage * (2 * R::TILE);
    attn_load_tile<S, S::COLS>(to, from.q, S::Q_T, from.inside);
    attn_load_tile<S, S::COLS>(to + R::TILE, from.dout, S::DO_T, from.inside);
    if (S::OUT_TILE) attn_load_tile<S, S::COLS>(room + R::OUT, from.out, S::O_T, from.inside);
    attn_copy_commit();
    const int row = attn_queries_row<S>() + threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
        lse[h] = row + 8 * h < from.inside ? from.lse[row + 8 * h] : INFINITY;
}

/* delta of this lane's rows, for lanes on the diagonal (l % 4 == l / 8) at least: that of the
 * product of 16 rows of dout with 16 of out costs less than 16 sums. */
template <class S>
INF_INLINE void attn_queries_delta(float (&delta)[2], uint32_t dout, uint32_t out) {
    const int lane = threadIdx.x % 32, row = attn_queries_row<S>();
    float d[2][4];
    attn_zero(d);
#pragma unroll
    for (int s = 0; s < AttnForm<S>::STEPS; s++) {
        uint32_t a[4], b[4];
        attn_load_blocks(a, attn_at<S::COLS>(dout, row + lane % 16, 2 * s + lane / 16));
        attn_load_blocks(
            b, attn_at<S::COLS>(out, row + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
        attn_mma(d[0], a, b[0], b[1]);
        attn_mma(d[1], a, b[2], b[3]);
    }
    delta[0] = lane / 4 % 2 ? d[0][1] : d[0][0];
    delta[1] = lane / 4 % 2 ? d[1][3] : d[1][2];
}

/* -lse in base 2 and delta of a tile's queries to shared memory. */
template <class S>
INF_INLINE void attn_queries_prepare(const AttnQueries &from, const float (&lse)[2], uint32_t room,
                                     int stage) {
    typedef AttnRoom<S> R;
    const int lane = threadIdx.x % 32, row = attn_queries_row<S>() + lane / 4;
    float delta[2];
    if (S::OUT_TILE)
        attn_queries_delta<S>(delta, room + R::PAIRS + stage * (2 * R::TILE) + R::TILE,
                              room + R::OUT);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + 8 * h;
        if (!S::OUT_TILE)
            delta[h] = attn_delta<S>(from.dout + r * S::DO_T, from.out + r * S::O_T, lane % 4,
                                     r < from.inside);
        if (lane % 4 == lane / 8) {
            attn_put4(room + R::LSE + r * 4, inf_bits(lse[h] * -1.44269504088896f));
            attn_put4(room + R::DELTA + r * 4, inf_bits(delta[h]));
        }
    }
}

/* p of a warp's keys (rows) and a tile's queries, from scores. */
template <class S>
INF_INLINE void attn_weights_turned(float (&s)[S::COLS / 8][4], uint32_t room, int key, int query) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++) {
        const float2 lse = attn_get8(room + AttnRoom<S>::LSE + (8 * i + lane % 4 * 2) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[i][j] = attn_exp2(INF_FMA(s[i][j], S::slope_log2(), j % 2 ? lse.y : lse.x));
    }
    if (!S::CAUSAL || query >= key + 15) return;
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (key + lane / 4 + j / 2 * 8 > query + 8 * i + lane % 4 * 2 + j % 2) s[i][j] = 0.0f;
}

/* ds = p (dp - delta), from p in pairs and dp. */
template <class S>
INF_INLINE void attn_slopes_turned(float (&dp)[S::COLS / 8][4],
                                   const uint32_t (&p)[S::COLS / 16][4], uint32_t room) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++) {
        const float2 delta = attn_get8(room + AttnRoom<S>::DELTA + (8 * i + lane % 4 * 2) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float weight = attn_half(p[i / 2][i % 2 * 2 + j / 2], j % 2);
            dp[i][j] = weight * (dp[i][j] - (j % 2 ? delta.y : delta.x));
        }
    }
}

template <class S, bool DK, bool DV>
INF_INLINE void attn_keys(const AttnGrad &g, uint32_t room, int batch, int group, int key0) {
    typedef AttnForm<S> F;
    typedef AttnRoom<S> R;
    enum : int { TILES = (S::QUERIES + S::COLS - 1) / S::COLS };
    const int warp = threadIdx.x / 32, key = key0 + warp * 16;
    const int first = S::CAUSAL ? key0 / S::COLS : 0, n = F::SHARE * (TILES - first);
    float dk[DK ? F::BLOCKS : 1][4], dv[DV ? F::BLOCKS : 1][4];
    attn_zero(dk);
    attn_zero(dv);

    attn_load_tile<S, S::ROWS>(room, g.k + batch * S::K_B + group * S::K_H + key0 * S::K_T, S::K_T,
                               S::KEYS - key0);
    attn_load_tile<S, S::ROWS>(room + R::OWN, g.v + batch * S::V_B + group * S::V_H + key0 * S::V_T,
                               S::V_T, S::KEYS - key0);
    int head = group * F::SHARE, query = first * S::COLS;
    float lse[2];
    attn_queries_start<S>(attn_queries_at<S>(g, batch, head, query), lse, room, 0);
#pragma unroll 1
    for (int it = 0; it < n; it++) {
        const int stage = it % S::STAGES;
        const uint32_t q = room + R::PAIRS + stage * (2 * R::TILE), dout = q + R::TILE;
        float s[S::COLS / 8][4], dp[S::COLS / 8][4];
        uint32_t p[S::COLS / 16][4], ds[S::COLS / 16][4];
        attn_copy_wait<0>();
        attn_show();
        __syncthreads();
        attn_dot_tiles<S>(s, room, q);
        if constexpr (DK) attn_dot_tiles<S>(dp, room + R::OWN, dout);
        attn_queries_prepare<S>(attn_queries_at<S>(g, batch, head, query), lse, room, stage);
        __syncthreads();
        const int at = query;
        query += S::COLS;
        if (F::SHARE > 1 && query >= TILES * S::COLS) query = first * S::COLS, head++;
        AttnQueries next = attn_queries_at<S>(g, batch, head, query);
        if (it + 1 == n) next.inside = 0; /* zeros, from nowhere */
        if (S::STAGES == 2) attn_queries_start<S>(next, lse, room, 1 - stage);
        attn_finish<S, DK ? 1 : 0>(s);
        attn_weights_turned<S>(s, room, key, at);
        attn_pack(p, s);
        if constexpr (DV) attn_add_product<S>(dv, p, dout);
        if constexpr (DK) {
            attn_finish<S, DV ? 1 : 0>(dp);
            attn_slopes_turned<S>(dp, p, room);
            attn_pack(ds, dp);
            attn_add_product<S>(dk, ds, q);
        }
        attn_finish<S, 0>(dk);
        attn_finish<S, 0>(dv);
        if (S::STAGES == 1) {
            __syncthreads();
            attn_queries_start<S>(next, lse, room, 0);
        }
    }
    attn_copy_wait<0>();
    __syncthreads();
    if constexpr (DK && S::HAS_DK)
        attn_store_turned<S, S::PAIRS_DK, S::BACK_DK>(
            g.dk + batch * S::DK_B + group * S::DK_H + key0 * S::DK_T, S::DK_T, S::KEYS - key0, dk,
            S::scale(), room, attn_tables_at<S>(g.tables_k, key0));
    if constexpr (DV && S::HAS_DV)
        attn_store_rows<S>(g.dv + batch * S::DV_B + group * S::DV_H + key0 * S::DV_T, S::DV_T,
                           S::KEYS - key0, dv, 1.0f, 1.0f, room + R::OWN);
}

/* --- queries --- */

template <class S>
INF_INLINE void attn_keys_load(const inf_bf16 *k, const inf_bf16 *v, int key, uint32_t to) {
    attn_load_tile<S, S::COLS>(to, k + key * S::K_T, S::K_T, S::KEYS - key);
    attn_load_tile<S, S::COLS>(to + AttnRoom<S>::TILE, v + key * S::V_T, S::V_T, S::KEYS - key);
    attn_copy_commit();
}

/* ds = p (dp - delta), from p in pairs and dp, in dp. */
template <class S>
INF_INLINE void attn_slopes(float (&dp)[S::COLS / 8][4], const uint32_t (&p)[S::COLS / 16][4],
                            const float (&delta)[2]) {
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            dp[i][j] = attn_half(p[i / 2][i % 2 * 2 + j / 2], j % 2) * (dp[i][j] - delta[j / 2]);
}

template <class S>
INF_INLINE void attn_weights(float (&s)[S::COLS / 8][4], const float (&lse)[2], int row, int key) {
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[i][j] = attn_exp2(INF_FMA(s[i][j], S::slope_log2(), lse[j / 2]));
    const int lane = threadIdx.x % 32;
    if (key + S::COLS <= S::KEYS && (!S::CAUSAL || key + S::COLS - 1 <= row)) return;
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = key + 8 * i + lane % 4 * 2 + j % 2;
            if (at >= S::KEYS || (S::CAUSAL && at > row + lane / 4 + j / 2 * 8)) s[i][j] = 0.0f;
        }
}

/* The traits of a block of queries. */
template <class S> struct AttnQuerySide : S {
    enum : int { ROWS = S::QUERY_ROWS, BANDS = S::QUERY_BANDS };
};

/* Waits for tile j of n of the keys, its values behind it; starts to copy the next one when there
 * is a second buffer. */
template <class S>
INF_INLINE uint32_t attn_keys_arrive(const inf_bf16 *k, const inf_bf16 *v, uint32_t room, int j,
                                     int n) {
    typedef AttnRoom<S> R;
    if (S::STAGES == 1 && j > 0) {
        __syncthreads();
        attn_keys_load<S>(k, v, j * S::COLS, room + R::PAIRS);
    }
    attn_copy_wait<0>();
    attn_show();
    __syncthreads();
    if (S::STAGES == 2 && j + 1 < n)
        attn_keys_load<S>(k, v, (j + 1) * S::COLS, room + R::PAIRS + (j + 1) % 2 * (2 * R::TILE));
    return room + R::PAIRS + j % S::STAGES * (2 * R::TILE);
}

template <class S>
INF_INLINE void attn_queries_dot(float (&s)[S::COLS / 8][4], float (&dp)[S::COLS / 8][4],
                                 uint32_t room, uint32_t tile, int band) {
    const uint32_t at = room + band * (AttnForm<S>::BAND * 128);
    attn_dot_tiles<S>(s, at, tile);
    attn_dot_tiles<S>(dp, at + AttnRoom<S>::OWN, tile + AttnRoom<S>::TILE);
}

/* The bands from FROM on meet a tile of keys and its values behind it. */
template <class S, int FROM>
INF_INLINE void attn_queries_tile(float (&dq)[S::BANDS][AttnForm<S>::BLOCKS][4],
                                  const float (&lse)[S::BANDS][2],
                                  const float (&delta)[S::BANDS][2], uint32_t room, uint32_t tile,
                                  int row, int key) {
    enum : int { LAST = S::BANDS - 1 };
    float s[S::COLS / 8][4], dp[S::COLS / 8][4];
    uint32_t p[S::COLS / 16][4], ds[S::BANDS][S::COLS / 16][4];
    attn_queries_dot<S>(s, dp, room, tile, FROM);
    attn_finish<S, 1>(s);
    attn_weights<S>(s, lse[FROM], row + FROM * AttnForm<S>::BAND, key);
    attn_pack(p, s);
    attn_finish<S, 0>(dp);
    attn_slopes<S>(dp, p, delta[FROM]);
    attn_pack(ds[FROM], dp);
    if constexpr (FROM < LAST) {
        attn_add_product<S>(dq[FROM], ds[FROM], tile);
        attn_finish<S, 0>(dq[FROM]);
        attn_queries_dot<S>(s, dp, room, tile, LAST);
        attn_finish<S, 1>(s);
        attn_weights<S>(s, lse[LAST], row + LAST * AttnForm<S>::BAND, key);
        attn_pack(p, s);
        attn_finish<S, 0>(dp);
        attn_slopes<S>(dp, p, delta[LAST]);
        attn_pack(ds[LAST], dp);
    }
    attn_add_product<S>(dq[LAST], ds[LAST], tile);
#pragma unroll
    for (int h = FROM; h < S::BANDS; h++) attn_finish<S, 0>(dq[h]);
}

template <class S>
INF_INLINE void attn_queries(const AttnGrad &g, uint32_t room, int batch, int head, int row0) {
    typedef AttnForm<S> F;
    typedef AttnRoom<S> R;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = head / F::SHARE;
    const int row = row0 + warp * 16;
    const int last = S::CAUSAL ? INF_MIN(row0 + S::ROWS, (int)S::KEYS) : (int)S::KEYS;
    const int n = (last + S::COLS - 1) / S::COLS;
    const int all =
        S::CAUSAL && S::BANDS == 2 ? INF_MIN(n, (row0 + F::BAND + S::COLS - 1) / S::COLS) : n;
    const inf_bf16 *k = g.k + batch * S::K_B + group * S::K_H;
    const inf_bf16 *v = g.v + batch * S::V_B + group * S::V_H;
    const AttnQueries own = attn_queries_at<S>(g, batch, head, row0);

    attn_load_tile<S, S::ROWS>(room, own.q, S::Q_T, own.inside);
    attn_load_tile<S, S::ROWS>(room + R::OWN, own.dout, S::DO_T, own.inside);
    attn_keys_load<S>(k, v, 0, room + R::PAIRS);
    float lse[S::BANDS][2], delta[S::BANDS][2], dq[S::BANDS][F::BLOCKS][4];
#pragma unroll
    for (int h = 0; h < S::BANDS; h++) {
        attn_zero(dq[h]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = h * F::BAND + warp * 16 + lane / 4 + 8 * e;
            const bool inside = r < own.inside;
            lse[h][e] = (inside ? own.lse[r] : INFINITY) * -1.44269504088896f;
            delta[h][e] =
                attn_delta<S>(own.dout + r * S::DO_T, own.out + r * S::O_T, lane % 4, inside);
        }
    }
#pragma unroll 1
    for (int j = 0; j < all; j++) {
        const uint32_t tile = attn_keys_arrive<S>(k, v, room, j, n);
        if (S::CAUSAL && S::BANDS == 1 && j * S::COLS >= row / F::MEET * F::MEET + F::MEET)
            continue;
        attn_queries_tile<S, 0>(dq, lse, delta, room, tile, row, j * S::COLS);
    }
#pragma unroll 1
    for (int j = all; j < n; j++) {
        const uint32_t tile = attn_keys_arrive<S>(k, v, room, j, n);
        attn_queries_tile<S, S::BANDS - 1>(dq, lse, delta, room, tile, row, j * S::COLS);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < S::BANDS && S::HAS_DQ; h++)
        attn_store_turned<S, S::PAIRS_DQ, S::BACK_DQ>(
            g.dq + batch * S::DQ_B + head * S::DQ_H + (row0 + h * F::BAND) * S::DQ_T, S::DQ_T,
            own.inside - h * F::BAND, dq[h], S::scale(), room + h * (F::BAND * 128),
            attn_tables_at<S>(g.tables_q, row0 + h * F::BAND));
}

/* --- the launch --- */

template <class S> INF_INLINE void attn_backward_bf16(const AttnGrad &g) {
    ATTN_SHARED(raw);
    const uint32_t room = attn_address(raw);
    const AttnJob job = attn_backward_job<S>();
    if (job.queries)
        attn_queries<AttnQuerySide<S>>(g, room, job.batch, job.head, job.row0);
    else if (S::KEY_KINDS == 1)
        attn_keys<S, true, S::KEY_KINDS == 1>(g, room, job.batch, job.group, job.row0);
    else if (job.kind == 0)
        attn_keys<S, true, false>(g, room, job.batch, job.group, job.row0);
    else
        attn_keys<S, S::KEY_KINDS == 1, true>(g, room, job.batch, job.group, job.row0);
}

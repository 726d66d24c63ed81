/* attention_forward.cu - out = softmax(scale q k') v, ROWS queries of a head a block, for traits S.
 *
 * The softmax is the running one, in base 2: m is a bound of what came so far, l the sum of
 * 2^(c s - c m). m follows the row maximum only when that has grown by a factor of 2^8, since
 * results need no more than a bound and rescaling costs a pass over the accumulators.
 */

/* Sets scores of keys that a query does not see to -inf: `row`, `key` are this lane's first. */
template <class S> INF_INLINE void attn_mask(const S spec, float (&s)[S::COLS / 8][4], int row, int key) {
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int k = key + 8 * i + j % 2, r = row + j / 2 * 8;
            if (k >= spec.KEYS || (S::CAUSAL && k > r)) s[i][j] = -INFINITY;
        }
}

/* From scores to weights of the running softmax; rescales what was summed when it must. */
template <class S>
INF_INLINE void attn_softmax(float (&s)[S::COLS / 8][4], float (&o)[AttnForm<S>::BLOCKS][4],
                             float (&m)[2], float (&l)[2]) {
    float top[2] = {m[0], m[1]};
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) top[j / 2] = fmaxf(top[j / 2], s[i][j]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 2));
    }
    const float c = S::scale_log2();
    if (attn_warp_any((top[0] - m[0]) * c > 8.0f || (top[1] - m[1]) * c > 8.0f)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float keep = attn_exp2((m[h] - top[h]) * c);
            m[h] = top[h];
            l[h] *= keep;
#pragma unroll
            for (int i = 0; i < AttnForm<S>::BLOCKS; i++) {
                o[i][2 * h] *= keep;
                o[i][2 * h + 1] *= keep;
            }
        }
    }
    const float bound[2] = {m[0] * -c, m[1] * -c};
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = attn_exp2(INF_FMA(s[i][j], c, bound[j / 2]));
            l[j / 2] += s[i][j];
        }
}

/* Scores of a band become weights. `row`: the warp's first, `key`: the tile's. */
template <class S>
INF_INLINE void attn_forward_weights(const S spec, uint32_t (&p)[S::COLS / 16][4], float (&s)[S::COLS / 8][4],
                                     float (&o)[AttnForm<S>::BLOCKS][4], float (&m)[2],
                                     float (&l)[2], int row, int key) {
    const int lane = threadIdx.x % 32;
    if (S::NEGATIVE)
#pragma unroll
        for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = -s[i][e];
    if (key + S::COLS > spec.KEYS || (S::CAUSAL && key + S::COLS - 1 > row))
        attn_mask(spec, s, row + lane / 4, key + lane % 4 * 2);
    attn_softmax<S>(s, o, m, l);
    attn_pack(p, s);
}

/* The bands from FROM on meet a tile of keys and its values behind it. */
template <class S, int FROM>
INF_INLINE void attn_forward_tile(const S spec, float (&o)[S::BANDS][AttnForm<S>::BLOCKS][4],
                                  float (&m)[S::BANDS][2], float (&l)[S::BANDS][2],
                                  const uint32_t (&a)[S::BANDS][AttnForm<S>::STEPS][4],
                                  uint32_t rows, uint32_t keys, int row, int key) {
    typedef AttnForm<S> F;
    const uint32_t values = keys + S::COLS * F::ROW_BYTES;
    float s[S::BANDS][S::COLS / 8][4];
    uint32_t p[S::BANDS][S::COLS / 16][4];
    if constexpr (F::WGMMA) {
#pragma unroll
        for (int h = FROM; h < S::BANDS; h++)
            attn_dot_tiles<S>(s[h], rows + h * (F::BAND * 128), keys);
#pragma unroll
        for (int h = FROM; h < S::BANDS; h++) {
            attn_finish<S, S::BANDS - 1 - FROM>(s[h]);
            attn_forward_weights(spec, p[h], s[h], o[h], m[h], l[h], row + h * F::BAND, key);
            attn_add_product<S>(o[h], p[h], values);
        }
#pragma unroll
        for (int h = FROM; h < S::BANDS; h++) attn_finish<S, 0>(o[h]);
    } else {
        attn_dot_warp<S, S::BANDS, F::ROWS_STAY>(s, a, rows, keys);
#pragma unroll
        for (int h = 0; h < S::BANDS; h++)
            attn_forward_weights(spec, p[h], s[h], o[h], m[h], l[h], row + h * F::BAND, key);
        attn_add_warp<S, S::BANDS>(o, p, values);
    }
}

/* Waits for tile j of n of the keys, its values behind it; starts to copy the next one. */
template <class S>
INF_INLINE uint32_t attn_forward_arrive(const S spec, const inf_bf16 *k, const inf_bf16 *v,
                                        uint32_t tiles, int j, int n) {
    enum : int { TILE = S::COLS * AttnForm<S>::ROW_BYTES };
    const int next = (j + 1) * S::COLS;
    const uint32_t to = tiles + (j + 1) % 2 * (2 * TILE);
    attn_copy_wait<0>();
    attn_show();
    __syncthreads();
    if (j + 1 < n) {
        attn_load_tile<S, S::COLS>(to, k + next * S::K_T, S::K_T, spec.KEYS - next);
        attn_load_tile<S, S::COLS>(to + TILE, v + next * S::V_T, S::V_T, spec.KEYS - next);
        attn_copy_commit();
    }
    return tiles + j % 2 * (2 * TILE);
}

/* q, k, v, out, lse: of this block's batch, head and group. */
template <class S>
INF_INLINE void attn_forward_block(const S spec, const inf_bf16 *q, const inf_bf16 *k,
                                   const inf_bf16 *v, inf_bf16 *out, float *lse, AttnTables tables,
                                   inf_bf16 *turned, int row0) {
    typedef AttnForm<S> F;
    ATTN_SHARED(raw);
    const uint32_t rows = attn_address(raw), tiles = rows + S::ROWS * F::ROW_BYTES;
    enum : int { TILE = S::COLS * F::ROW_BYTES };
    const int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 * 16;
    const int last = S::CAUSAL ? INF_MIN(row0 + S::ROWS, (int)spec.KEYS) : (int)spec.KEYS;
    const int n = (last + S::COLS - 1) / S::COLS;
    float o[S::BANDS][F::BLOCKS][4], m[S::BANDS][2], l[S::BANDS][2];
    uint32_t a[S::BANDS][F::STEPS][4]; /* of wgmma, rows come from shared memory */

    attn_load_tile<S, S::ROWS>(rows, q + row0 * S::Q_T, S::Q_T, spec.QUERIES - row0);
    if constexpr (S::PAIRS_Q != ATTN_NO_PAIRS) attn_copy_commit();
    attn_load_tile<S, S::COLS>(tiles, k, S::K_T, spec.KEYS);
    attn_load_tile<S, S::COLS>(tiles + TILE, v, S::V_T, spec.KEYS);
    attn_copy_commit();
    if constexpr (S::PAIRS_Q != ATTN_NO_PAIRS)
        attn_turn_queries<S>(rows, attn_tables_at<S>(tables, row0), spec.QUERIES - row0);
    if (S::PAIRS_Q == ATTN_NO_PAIRS || F::ROWS_STAY) {
        attn_copy_wait<0>();
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < S::BANDS; h++) {
        attn_zero(o[h]);
        m[h][0] = m[h][1] = -INFINITY;
        l[h][0] = l[h][1] = 0.0f;
#pragma unroll
        for (int s = 0; s < F::STEPS && F::ROWS_STAY; s++)
            attn_load_rows<S::ROWS>(a[h][s], rows, row - row0 + h * F::BAND, s);
    }
    const int both = F::WGMMA && S::CAUSAL && S::BANDS == 2
                         ? INF_MIN(n, (row0 + F::BAND + S::COLS - 1) / S::COLS)
                         : n;
#pragma unroll 1
    for (int j = 0; j < both; j++) {
        const uint32_t tile = attn_forward_arrive(spec, k, v, tiles, j, n);
        if (S::CAUSAL && S::BANDS == 1 && j * S::COLS >= row / F::MEET * F::MEET + F::MEET)
            continue;
        attn_forward_tile<S, 0>(spec, o, m, l, a, rows, tile, row, j * S::COLS);
    }
#pragma unroll 1
    for (int j = both; j < n; j++) {
        const uint32_t tile = attn_forward_arrive(spec, k, v, tiles, j, n);
        attn_forward_tile<S, S::BANDS - 1>(spec, o, m, l, a, rows, tile, row, j * S::COLS);
    }

    __syncthreads();
#pragma unroll
    for (int h = 0; h < S::BANDS; h++) {
        const int first = row0 + h * F::BAND;
        float scale[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = row + h * F::BAND + lane / 4 + 8 * e;
            const float sum = attn_fold4(l[h][e]);
            scale[e] = 1.0f / sum;
            if (S::HAS_LSE && lane % 4 == 0 && r < spec.QUERIES)
                lse[r] = INF_FMA(m[h][e], S::scale_log2(), attn_log2(sum)) * 0.693147180559945f;
        }
        if constexpr (S::HAS_TURNED) {
            attn_write_rows<S>(turned + first * S::TURNED_T, S::TURNED_T, spec.QUERIES - first,
                               rows + h * (F::BAND * 128));
            attn_warp_meet();
        }
        if (S::HAS_OUT)
            attn_store_rows<S>(out + first * S::O_T, S::O_T, spec.QUERIES - first, o[h], scale[0],
                               scale[1], rows + h * (F::BAND * 128));
    }
}

template <class S>
INF_INLINE void attn_forward_bf16(const S spec, const inf_bf16 *q, const inf_bf16 *k,
                                  const inf_bf16 *v, inf_bf16 *out, float *lse, AttnTables tables,
                                  inf_bf16 *turned) {
    const AttnPlace at = attn_forward_place(spec);
    const int64_t group = at.head / (S::HEADS / S::GROUPS);
    attn_forward_block(
        spec, q + at.batch * spec.Q_B + at.head * S::Q_H, k + at.batch * spec.K_B + group * S::K_H,
        v + at.batch * spec.V_B + group * S::V_H, out + at.batch * spec.O_B + at.head * S::O_H,
        lse + at.batch * spec.L_B + at.head * spec.L_H, tables,
        turned + at.batch * spec.TURNED_B + at.head * S::TURNED_H, at.tile * S::ROWS);
}

/* attention_forward.cu - out = softmax(scale q k') v, ROWS queries of a head a block, for traits S.
 *
 * The softmax is the running one, in base 2: m is a bound of what came so far, l the sum of
 * 2^(c s - c m). m follows the row maximum only when that has grown by a factor of 2^8, since
 * results need no more than a bound and rescaling costs a pass over the accumulators.
 */

/* Sets scores of keys that a query does not see to -inf: `row`, `key` are this lane's first. */
template <class S> INF_INLINE void attn_mask(float (&s)[S::COLS / 8][4], int row, int key) {
#pragma unroll
    for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int k = key + 8 * i + j % 2, r = row + j / 2 * 8;
            if (k >= S::KEYS || (S::CAUSAL && k > r)) s[i][j] = -INFINITY;
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

/* q, k, v, out, lse: of this block's batch, head and group. */
template <class S>
INF_INLINE void attn_forward_block(const inf_bf16 *q, const inf_bf16 *k, const inf_bf16 *v,
                                   inf_bf16 *out, float *lse, int row0) {
    typedef AttnForm<S> F;
    ATTN_SHARED(raw);
    const uint32_t rows = attn_align(attn_address(raw)), tiles = rows + S::ROWS * F::ROW_BYTES;
    enum : int { TILE_BYTES = S::COLS * F::ROW_BYTES };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = row0 + warp * 16 + lane / 4, meet = row0 + warp * 16 / F::MEET * F::MEET;
    const int last = S::CAUSAL ? INF_MIN(row0 + S::ROWS, (int)S::KEYS) : (int)S::KEYS;
    const int n = (last + S::COLS - 1) / S::COLS;

    attn_load_tile<S, S::ROWS>(rows, q + row0 * S::Q_T, S::Q_T, S::QUERIES - row0);
    attn_load_tile<S, S::COLS>(tiles, k, S::K_T, S::KEYS);
    attn_load_tile<S, S::COLS>(tiles + TILE_BYTES, v, S::V_T, S::KEYS);
    attn_copy_commit();

    attn_copy_wait<0>();
    __syncthreads();

    uint32_t a[F::STEPS][4]; /* of wgmma, rows come from shared memory */
    if (F::ROWS_STAY) attn_load_rows<S, S::ROWS>(a, rows, warp * 16);
    float o[F::BLOCKS][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    attn_zero(o);
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const uint32_t tile = tiles + j % 2 * (2 * TILE_BYTES);
        const int key = j * S::COLS, next = key + S::COLS;
        attn_copy_wait<0>();
        attn_show();
        __syncthreads();
        if (j + 1 < n) {
            const uint32_t to = tiles + (j + 1) % 2 * (2 * TILE_BYTES);
            attn_load_tile<S, S::COLS>(to, k + next * S::K_T, S::K_T, S::KEYS - next);
            attn_load_tile<S, S::COLS>(to + TILE_BYTES, v + next * S::V_T, S::V_T, S::KEYS - next);
            attn_copy_commit();
        }
        if (S::CAUSAL && key > meet + F::MEET - 1) continue;
        float s[S::COLS / 8][4];
        if (F::ROWS_STAY)
            attn_dot_rows<S>(s, a, tile);
        else
            attn_dot_tiles<S>(s, rows, tile);
        attn_finish<S, 0>(s);
        if (S::NEGATIVE)
#pragma unroll
            for (int i = 0; i < S::COLS / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[i][e] = -s[i][e];
        if (next > S::KEYS || (S::CAUSAL && next - 1 > row0 + warp * 16))
            attn_mask<S>(s, row, key + lane % 4 * 2);
        attn_softmax<S>(s, o, m, l);
        uint32_t p[S::COLS / 16][4];
        attn_pack(p, s);
        attn_add_product<S>(o, p, tile + TILE_BYTES);
        attn_finish<S, 0>(o);
    }

    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[h] += __shfl_xor_sync(0xFFFFFFFFu, l[h], 1);
        l[h] += __shfl_xor_sync(0xFFFFFFFFu, l[h], 2);
        scale[h] = 1.0f / l[h];
        const int r = row + 8 * h;
        if (S::HAS_LSE && lane % 4 == 0 && r < S::QUERIES)
            lse[r] = (INF_FMA(m[h], S::scale_log2(), attn_log2(l[h]))) * 0.693147180559945f;
    }
    __syncthreads();
    if (S::HAS_OUT)
        attn_store_rows<S>(out + row0 * S::O_T, S::O_T, S::QUERIES - row0, o, scale[0], scale[1],
                           rows);
}

template <class S>
INF_INLINE void attn_forward_bf16(const inf_bf16 *q, const inf_bf16 *k, const inf_bf16 *v,
                                  inf_bf16 *out, float *lse) {
    const AttnPlace at = attn_forward_place<S>();
    const int64_t group = at.head / (S::HEADS / S::GROUPS);
    attn_forward_block<S>(
        q + at.batch * S::Q_B + at.head * S::Q_H, k + at.batch * S::K_B + group * S::K_H,
        v + at.batch * S::V_B + group * S::V_H, out + at.batch * S::O_B + at.head * S::O_H,
        lse + at.batch * S::L_B + at.head * S::L_H, at.tile * S::ROWS);
}

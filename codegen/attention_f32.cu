/* attention_f32.cu - attention and its gradients in f32, without tensor cores, for traits S.
 *
 * The same cuts as in bf16: a block keeps ROWS rows and walks over tiles of ROWS others. Its 256
 * threads are a square: thread (y, x) has rows y + 16 i and, of scores, columns x + 16 j, of
 * results columns 4 x + 64 j and the next three. Rows of tiles are DIM + 4 floats apart, so that
 * 16-byte loads go over different banks. Sums are multiply-adds in one order; exp and log are the
 * prelude's.
 */
template <class S> struct AttnSquare {
    enum : int {
        SIDE = S::ROWS / 16,
        WIDE = (S::DIM + 63) / 64, /* quads of columns a thread has of a result */
        LINE = S::DIM + 4,
        TILE = S::ROWS * LINE,
        SCORE_LINE = S::ROWS + 4
    };
};

template <class S> INF_INLINE float4 attn_read_quad(const float *from) {
    if (!S::LOOSE) return *(const float4 *)from;
    return make_float4(from[0], from[1], from[2], from[3]);
}

template <class S> INF_INLINE void attn_write_quad(float *to, const float (&v)[4]) {
    if (!S::LOOSE) *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
    for (int i = 0; S::LOOSE && i < 4; i++) to[i] = v[i];
}

template <class S>
INF_INLINE void attn_fill(float *tile, const float *from, int64_t stride, int inside) {
    enum : int { QUADS = S::DIM / 4 };
    for (int i = threadIdx.x; i < S::ROWS * QUADS; i += 256) {
        const int row = i / QUADS, quad = i % QUADS;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < inside) v = attn_read_quad<S>(from + row * stride + quad * 4);
        *(float4 *)(tile + row * AttnSquare<S>::LINE + quad * 4) = v;
    }
}

/* s = a b': this thread's products of rows of two tiles. */
template <class S>
INF_INLINE void attn_scores(float (&s)[AttnSquare<S>::SIDE][AttnSquare<S>::SIDE], const float *a,
                            const float *b) {
    typedef AttnSquare<S> F;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < F::SIDE; i++)
#pragma unroll
        for (int j = 0; j < F::SIDE; j++) s[i][j] = 0.0f;
#pragma unroll 2
    for (int k = 0; k < S::DIM; k += 4) {
        float4 u[F::SIDE], v[F::SIDE];
#pragma unroll
        for (int i = 0; i < F::SIDE; i++) {
            u[i] = *(const float4 *)(a + (y + 16 * i) * F::LINE + k);
            v[i] = *(const float4 *)(b + (x + 16 * i) * F::LINE + k);
        }
#pragma unroll
        for (int i = 0; i < F::SIDE; i++)
#pragma unroll
            for (int j = 0; j < F::SIDE; j++) {
                s[i][j] = INF_FMA(u[i].x, v[j].x, s[i][j]);
                s[i][j] = INF_FMA(u[i].y, v[j].y, s[i][j]);
                s[i][j] = INF_FMA(u[i].z, v[j].z, s[i][j]);
                s[i][j] = INF_FMA(u[i].w, v[j].w, s[i][j]);
            }
    }
}

/* o += p tile, with p [row][inner] in shared memory; TURNED: p' tile. */
template <class S, bool TURNED>
INF_INLINE void attn_add(float (&o)[AttnSquare<S>::SIDE][AttnSquare<S>::WIDE][4], const float *p,
                         const float *tile) {
    typedef AttnSquare<S> F;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 4
    for (int k = 0; k < S::ROWS; k++) {
        float w[F::SIDE];
#pragma unroll
        for (int i = 0; i < F::SIDE; i++)
            w[i] = TURNED ? p[k * F::SCORE_LINE + y + 16 * i] : p[(y + 16 * i) * F::SCORE_LINE + k];
#pragma unroll
        for (int j = 0; j < F::WIDE; j++) {
            if (4 * x + 64 * j >= S::DIM) continue;
            const float4 v = *(const float4 *)(tile + k * F::LINE + 4 * x + 64 * j);
#pragma unroll
            for (int i = 0; i < F::SIDE; i++) {
                o[i][j][0] = INF_FMA(w[i], v.x, o[i][j][0]);
                o[i][j][1] = INF_FMA(w[i], v.y, o[i][j][1]);
                o[i][j][2] = INF_FMA(w[i], v.z, o[i][j][2]);
                o[i][j][3] = INF_FMA(w[i], v.w, o[i][j][3]);
            }
        }
    }
}

template <class S>
INF_INLINE void attn_clear(float (&o)[AttnSquare<S>::SIDE][AttnSquare<S>::WIDE][4]) {
#pragma unroll
    for (int i = 0; i < AttnSquare<S>::SIDE * AttnSquare<S>::WIDE * 4; i++) (&o[0][0][0])[i] = 0.0f;
}

template <class S>
INF_INLINE void attn_put_scores(float *p,
                                const float (&s)[AttnSquare<S>::SIDE][AttnSquare<S>::SIDE]) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < AttnSquare<S>::SIDE; i++)
#pragma unroll
        for (int j = 0; j < AttnSquare<S>::SIDE; j++)
            p[(y + 16 * i) * AttnSquare<S>::SCORE_LINE + x + 16 * j] = s[i][j];
}

/* Results times a factor a row to `to`, of which `inside` rows exist. */
template <class S>
INF_INLINE void attn_store(float *to, int64_t stride, int inside,
                           const float (&o)[AttnSquare<S>::SIDE][AttnSquare<S>::WIDE][4],
                           const float (&scale)[AttnSquare<S>::SIDE]) {
    typedef AttnSquare<S> F;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < F::SIDE; i++)
#pragma unroll
        for (int j = 0; j < F::WIDE; j++) {
            if (y + 16 * i >= inside || 4 * x + 64 * j >= S::DIM) continue;
            float v[4];
            for (int e = 0; e < 4; e++) v[e] = o[i][j][e] * scale[i];
            attn_write_quad<S>(to + (y + 16 * i) * stride + 4 * x + 64 * j, v);
        }
}

/* The same with the rows turned, through a tile that nobody reads any more. */
template <class S, int PAIRS, bool BACK>
INF_INLINE void attn_store_turned_f32(float *to, int64_t stride, int inside,
                                      const float (&o)[AttnSquare<S>::SIDE][AttnSquare<S>::WIDE][4],
                                      const float (&scale)[AttnSquare<S>::SIDE], float *tile,
                                      const AttnTables &tables) {
    if constexpr (PAIRS == ATTN_NO_PAIRS) {
        attn_store<S>(to, stride, inside, o, scale);
    } else {
        enum : int { LINE = AttnSquare<S>::LINE, ROWS = S::ROWS };
        attn_store<S>(tile, LINE, ROWS, o, scale);
        __syncthreads();
        attn_turn_f32<S, LINE, ROWS, PAIRS, BACK, false>(tile, tables, to, stride, inside);
    }
}

/* Folds over the 16 threads of a row. */
INF_INLINE float attn_row_sum(float v) {
    INF_FOLD_WARP(v, 16, float, a + b)
    return v;
}

INF_INLINE float attn_row_max(float v) {
    INF_FOLD_WARP(v, 16, float, a > b ? a : b)
    return v;
}

/* Whether query `row` sees `key`. */
template <class S> INF_INLINE bool attn_sees(const S spec, int row, int key) {
    return key < spec.KEYS && (!S::CAUSAL || key <= row);
}

template <class S>
INF_INLINE void attn_forward_f32(const S spec, const float *q, const float *k, const float *v,
                                 float *out, float *lse, AttnTables tables, float *turned) {
    typedef AttnSquare<S> F;
    const AttnPlace at = attn_forward_place(spec);
    const int group = at.head / (S::HEADS / S::GROUPS), row0 = at.tile * S::ROWS;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    ATTN_SHARED(raw);
    float *rows = (float *)raw, *tile = rows + F::TILE, *weights = tile + F::TILE;
    q += at.batch * spec.Q_B + at.head * S::Q_H + row0 * S::Q_T;
    k += at.batch * spec.K_B + group * S::K_H;
    v += at.batch * spec.V_B + group * S::V_H;
    out += at.batch * spec.O_B + at.head * S::O_H + row0 * S::O_T;
    lse += at.batch * spec.L_B + at.head * spec.L_H + row0;
    float m[F::SIDE], l[F::SIDE], o[F::SIDE][F::WIDE][4];
    attn_clear<S>(o);
    for (int i = 0; i < F::SIDE; i++) m[i] = -INFINITY, l[i] = 0.0f;
    attn_fill<S>(rows, q, S::Q_T, spec.QUERIES - row0);
    if constexpr (S::PAIRS_Q != ATTN_NO_PAIRS) {
        turned += at.batch * spec.TURNED_B + at.head * S::TURNED_H + row0 * S::TURNED_T;
        __syncthreads();
        attn_turn_f32<S, F::LINE, S::ROWS, S::PAIRS_Q, S::BACK_Q, true>(
            rows, attn_tables_at<S>(tables, row0), S::HAS_TURNED ? turned : 0, S::TURNED_T,
            spec.QUERIES - row0);
    }
    const int last = S::CAUSAL ? INF_MIN(row0 + S::ROWS, (int)spec.KEYS) : (int)spec.KEYS;
#pragma unroll 1
    for (int key = 0; key < last; key += S::ROWS) {
        float s[F::SIDE][F::SIDE];
        __syncthreads();
        attn_fill<S>(tile, k + key * S::K_T, S::K_T, spec.KEYS - key);
        __syncthreads();
        attn_scores<S>(s, rows, tile);
#pragma unroll
        for (int i = 0; i < F::SIDE; i++) {
            float top = m[i];
#pragma unroll
            for (int j = 0; j < F::SIDE; j++) {
                s[i][j] = attn_sees(spec, row0 + y + 16 * i, key + x + 16 * j)
                              ? s[i][j] * S::scale()
                              : -INFINITY;
                top = s[i][j] > top ? s[i][j] : top;
            }
            top = attn_row_max(top);
            const float keep = inf_exp(m[i] - top);
            m[i] = top;
            l[i] *= keep;
#pragma unroll
            for (int j = 0; j < F::SIDE; j++) {
                s[i][j] = inf_exp(s[i][j] - top);
                l[i] += s[i][j];
            }
#pragma unroll
            for (int j = 0; j < F::WIDE * 4; j++) o[i][j / 4][j % 4] *= keep;
        }
        attn_put_scores<S>(weights, s);
        __syncthreads();
        attn_fill<S>(tile, v + key * S::V_T, S::V_T, spec.KEYS - key);
        __syncthreads();
        attn_add<S, false>(o, weights, tile);
    }
#pragma unroll
    for (int i = 0; i < F::SIDE; i++) {
        l[i] = attn_row_sum(l[i]);
        if (S::HAS_LSE && x == 0 && row0 + y + 16 * i < spec.QUERIES)
            lse[y + 16 * i] = m[i] + inf_log(l[i]);
        l[i] = 1.0f / l[i];
    }
    if (S::HAS_OUT) attn_store<S>(out, S::O_T, spec.QUERIES - row0, o, l);
}

/* --- gradients --- */

struct AttnGradF32 {
    const float *q, *k, *v, *out, *dout, *lse;
    float *dq, *dk, *dv;
    AttnTables tables_q, tables_k;
};

/* A tile of queries of one head. */
struct AttnQueriesF32 {
    const float *q, *dout, *out, *lse;
    int row0, inside;
};

template <class S>
INF_INLINE AttnQueriesF32 attn_queries_f32(const AttnGradF32 &g, int batch, int head, int row0) {
    return {g.q + batch * S::Q_B + head * S::Q_H + row0 * S::Q_T,
            g.dout + batch * S::DO_B + head * S::DO_H + row0 * S::DO_T,
            g.out + batch * S::O_B + head * S::O_H + row0 * S::O_T,
            g.lse + batch * S::L_B + head * S::L_H + row0,
            row0,
            (int)S::QUERIES - row0};
}

/* lse and delta of this thread's rows. */
template <class S>
INF_INLINE void attn_row_numbers(const AttnQueriesF32 &from, float (&lse)[AttnSquare<S>::SIDE],
                                 float (&delta)[AttnSquare<S>::SIDE]) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < AttnSquare<S>::SIDE; i++) {
        const int row = y + 16 * i;
        float sum = 0.0f;
        for (int c = 4 * x; row < from.inside && c < S::DIM; c += 64) {
            const float4 u = attn_read_quad<S>(from.dout + row * S::DO_T + c);
            const float4 v = attn_read_quad<S>(from.out + row * S::O_T + c);
            sum = INF_FMA(u.x, v.x, sum);
            sum = INF_FMA(u.y, v.y, sum);
            sum = INF_FMA(u.z, v.z, sum);
            sum = INF_FMA(u.w, v.w, sum);
        }
        delta[i] = attn_row_sum(sum);
        lse[i] = row < from.inside ? from.lse[row] : INFINITY;
    }
}

/* s becomes p, from scores of rows of `from` with keys from `key` on. */
template <class S>
INF_INLINE void attn_probabilities(float (&s)[AttnSquare<S>::SIDE][AttnSquare<S>::SIDE],
                                   const float (&lse)[AttnSquare<S>::SIDE], int row0, int key) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < AttnSquare<S>::SIDE; i++)
#pragma unroll
        for (int j = 0; j < AttnSquare<S>::SIDE; j++)
            s[i][j] = attn_sees(S(), row0 + y + 16 * i, key + x + 16 * j)
                          ? inf_exp(s[i][j] * S::scale() - lse[i])
                          : 0.0f;
}

/* dp becomes ds. */
template <class S>
INF_INLINE void attn_score_slopes(float (&dp)[AttnSquare<S>::SIDE][AttnSquare<S>::SIDE],
                                  const float (&p)[AttnSquare<S>::SIDE][AttnSquare<S>::SIDE],
                                  const float (&delta)[AttnSquare<S>::SIDE]) {
#pragma unroll
    for (int i = 0; i < AttnSquare<S>::SIDE; i++)
#pragma unroll
        for (int j = 0; j < AttnSquare<S>::SIDE; j++) dp[i][j] = p[i][j] * (dp[i][j] - delta[i]);
}

template <class S>
INF_INLINE void attn_keys_f32(const AttnGradF32 &g, float *room, int batch, int group, int key0) {
    typedef AttnSquare<S> F;
    enum : int { SHARE = S::HEADS / S::GROUPS };
    float *k = room, *v = k + F::TILE, *q = v + F::TILE, *dout = q + F::TILE, *p = dout + F::TILE;
    float dk[F::SIDE][F::WIDE][4], dv[F::SIDE][F::WIDE][4], scale[F::SIDE], one[F::SIDE];
    for (int i = 0; i < F::SIDE; i++) scale[i] = S::scale(), one[i] = 1.0f;
    attn_clear<S>(dk);
    attn_clear<S>(dv);
    attn_fill<S>(k, g.k + batch * S::K_B + group * S::K_H + key0 * S::K_T, S::K_T, S::KEYS - key0);
    attn_fill<S>(v, g.v + batch * S::V_B + group * S::V_H + key0 * S::V_T, S::V_T, S::KEYS - key0);
    for (int h = 0; h < SHARE; h++)
#pragma unroll 1
        for (int row0 = S::CAUSAL ? key0 : 0; row0 < S::QUERIES; row0 += S::ROWS) {
            const AttnQueriesF32 at = attn_queries_f32<S>(g, batch, group * SHARE + h, row0);
            float s[F::SIDE][F::SIDE], dp[F::SIDE][F::SIDE], lse[F::SIDE], delta[F::SIDE];
            __syncthreads();
            attn_fill<S>(q, at.q, S::Q_T, at.inside);
            attn_fill<S>(dout, at.dout, S::DO_T, at.inside);
            attn_row_numbers<S>(at, lse, delta);
            __syncthreads();
            attn_scores<S>(s, q, k);
            attn_probabilities<S>(s, lse, row0, key0);
            attn_put_scores<S>(p, s);
            attn_scores<S>(dp, dout, v);
            attn_score_slopes<S>(dp, s, delta);
            __syncthreads();
            attn_add<S, true>(dv, p, dout);
            __syncthreads();
            attn_put_scores<S>(p, dp);
            __syncthreads();
            attn_add<S, true>(dk, p, q);
        }
    if (S::HAS_DK)
        attn_store_turned_f32<S, S::PAIRS_DK, S::BACK_DK>(
            g.dk + batch * S::DK_B + group * S::DK_H + key0 * S::DK_T, S::DK_T, S::KEYS - key0, dk,
            scale, k, attn_tables_at<S>(g.tables_k, key0));
    if (S::HAS_DV)
        attn_store<S>(g.dv + batch * S::DV_B + group * S::DV_H + key0 * S::DV_T, S::DV_T,
                      S::KEYS - key0, dv, one);
}

template <class S>
INF_INLINE void attn_queries_part_f32(const AttnGradF32 &g, float *room, int batch, int head,
                                      int row0) {
    typedef AttnSquare<S> F;
    const int group = head / (S::HEADS / S::GROUPS);
    float *q = room, *dout = q + F::TILE, *k = dout + F::TILE, *v = k + F::TILE, *p = v + F::TILE;
    float dq[F::SIDE][F::WIDE][4], lse[F::SIDE], delta[F::SIDE], scale[F::SIDE];
    for (int i = 0; i < F::SIDE; i++) scale[i] = S::scale();
    attn_clear<S>(dq);
    const AttnQueriesF32 at = attn_queries_f32<S>(g, batch, head, row0);
    attn_fill<S>(q, at.q, S::Q_T, at.inside);
    attn_fill<S>(dout, at.dout, S::DO_T, at.inside);
    attn_row_numbers<S>(at, lse, delta);
    const int last = S::CAUSAL ? INF_MIN(row0 + S::ROWS, (int)S::KEYS) : (int)S::KEYS;
#pragma unroll 1
    for (int key = 0; key < last; key += S::ROWS) {
        float s[F::SIDE][F::SIDE], dp[F::SIDE][F::SIDE];
        __syncthreads();
        attn_fill<S>(k, g.k + batch * S::K_B + group * S::K_H + key * S::K_T, S::K_T,
                     S::KEYS - key);
        attn_fill<S>(v, g.v + batch * S::V_B + group * S::V_H + key * S::V_T, S::V_T,
                     S::KEYS - key);
        __syncthreads();
        attn_scores<S>(s, q, k);
        attn_probabilities<S>(s, lse, row0, key);
        attn_scores<S>(dp, dout, v);
        attn_score_slopes<S>(dp, s, delta);
        attn_put_scores<S>(p, dp);
        __syncthreads();
        attn_add<S, false>(dq, p, k);
    }
    if (S::HAS_DQ)
        attn_store_turned_f32<S, S::PAIRS_DQ, S::BACK_DQ>(
            g.dq + batch * S::DQ_B + head * S::DQ_H + row0 * S::DQ_T, S::DQ_T, at.inside, dq, scale,
            q, attn_tables_at<S>(g.tables_q, row0));
}

template <class S> INF_INLINE void attn_backward_f32(const AttnGradF32 &g) {
    ATTN_SHARED(raw);
    const AttnJob job = attn_backward_job<S>();
    if (job.queries)
        attn_queries_part_f32<S>(g, (float *)raw, job.batch, job.head, job.row0);
    else
        attn_keys_f32<S>(g, (float *)raw, job.batch, job.group, job.row0);
}

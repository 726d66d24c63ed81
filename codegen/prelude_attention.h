/* prelude_attention.h - attention of generated C programs. Carried inside infinic as text and
 * printed behind prelude.h and prelude_math.h when a program has attention.
 *
 * Queries are lanes. A tile of INF_ATT_Q queries is turned once, [dim][query], so that a score
 * [key][query] takes numbers of a key from where they lie, the softmax over keys needs nothing
 * across lanes, and weighted sums [dim][query] read values as they are. All products are one
 * function: rows of numbers times rows of vectors. Keys come in tiles of INF_ATT_K, in order, and
 * every sum runs in the order of its index; no tile depends on the number of threads.
 */
enum { INF_ATT_Q = 32, INF_ATT_K = 64, INF_ATT_DIM = 256 };

#define INF_ATT_FUNCTION static __attribute__((noinline, unused))

/* Element [b, h, t, x] is at[b * b_ + h * h_ + t * t_ + x]; at NULL: nobody wants it. */
typedef struct InfView {
    float *at;
    int64_t b, h, t;
} InfView;

typedef struct InfAttention {
    int64_t batch, heads, groups, queries, keys, dim;
    int causal;
    float scale;
    InfView q, k, v, out, lse, dout, dq, dk, dv;
} InfAttention;

INF_INLINE float *inf_att_at(const InfView *v, int64_t b, int64_t h, int64_t t) {
    return v->at ? v->at + b * v->b + h * v->h + t * v->t : 0;
}

/* --- products --- */

/* c[r][x] = sum over i < n of a[r * a_row + i * a_step] * b[i * b_row + x], added to what was there
 * if `add`; rows of c are c_row apart. */
typedef struct InfProduct {
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    int64_t rows, cols, n; /* cols: a multiple of 8 */
    int add;
} InfProduct;

/* The widest vectors that the processor has, in as many accumulators as there are registers for. */
#if defined __AVX512F__
enum { INF_ATT_LANES = 16, INF_ATT_ROWS = 8 };
typedef inf_v16 inf_lanes;
#else
enum { INF_ATT_LANES = 8, INF_ATT_ROWS = 6 };
typedef inf_v8 inf_lanes;
#endif
enum { INF_ATT_VECTORS = 2 };
typedef float inf_lanes_u __attribute__((vector_size(4 * INF_ATT_LANES), aligned(4), may_alias));

INF_INLINE inf_lanes inf_att_load(const float *p) { return *(const inf_lanes_u *)p; }

INF_INLINE void inf_att_store(float *p, inf_lanes v) { *(inf_lanes_u *)p = v; }

/* a * b + c in every lane, rounded once where the processor can. */
INF_INLINE inf_lanes inf_att_fma(float a, inf_lanes b, inf_lanes c) {
    const inf_lanes s = a - (inf_lanes){0};
#if defined __AVX512F__
    return inf_fma16(s, b, c);
#elif defined __FMA__
    return __builtin_ia32_vfmaddps256(s, b, c);
#else
    return s * b + c;
#endif
}

/* `rows` x `vectors` vectors of the product from row r, column x on, in registers. */
INF_INLINE void inf_att_tile(const InfProduct *p, int64_t r, int64_t x, const int rows,
                             const int vectors) {
    inf_lanes sum[INF_ATT_ROWS][INF_ATT_VECTORS];
    const float *a = p->a + r * p->a_row, *b = p->b + x;
    float *c = p->c + r * p->c_row + x;
    const int64_t a_row = p->a_row, a_step = p->a_step, b_row = p->b_row, c_row = p->c_row;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int k = 0; k < vectors; k++) {
            sum[i][k] = (inf_lanes){0};
            if (p->add) sum[i][k] = inf_att_load(c + i * c_row + INF_ATT_LANES * k);
        }
#pragma GCC unroll 1
    for (int64_t j = 0; j < p->n; j++) {
        inf_lanes v[INF_ATT_VECTORS];
#pragma GCC unroll 2
        for (int k = 0; k < vectors; k++) v[k] = inf_att_load(b + INF_ATT_LANES * k);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int k = 0; k < vectors; k++)
                sum[i][k] = inf_att_fma(a[i * a_row], v[k], sum[i][k]);
        a += a_step;
        b += b_row;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int k = 0; k < vectors; k++)
            inf_att_store(c + i * c_row + INF_ATT_LANES * k, sum[i][k]);
}

/* All rows of some columns. */
INF_INLINE void inf_att_columns(const InfProduct *p, int64_t x, const int vectors) {
    int64_t r = 0;
    for (; r + INF_ATT_ROWS <= p->rows; r += INF_ATT_ROWS)
        inf_att_tile(p, r, x, INF_ATT_ROWS, vectors);
    for (; r + 2 <= p->rows; r += 2) inf_att_tile(p, r, x, 2, vectors);
    if (r < p->rows) inf_att_tile(p, r, x, 1, vectors);
}

INF_ATT_FUNCTION void inf_att_product(InfProduct p) {
    const int64_t wide = INF_ATT_VECTORS * INF_ATT_LANES;
    int64_t x = 0;
    for (; x + wide <= p.cols; x += wide) inf_att_columns(&p, x, INF_ATT_VECTORS);
    for (; x + INF_ATT_LANES <= p.cols; x += INF_ATT_LANES) inf_att_columns(&p, x, 1);
    for (int64_t r = 0; x < p.cols && r < p.rows; r++) { /* half a vector */
        float *c = p.c + r * p.c_row + x, sum[8] = {0};
        if (p.add) __builtin_memcpy(sum, c, sizeof sum);
        for (int64_t j = 0; j < p.n; j++)
#pragma omp simd
            for (int l = 0; l < 8; l++)
                sum[l] = __builtin_fmaf(p.a[r * p.a_row + j * p.a_step], p.b[j * p.b_row + x + l],
                                        sum[l]);
        __builtin_memcpy(c, sum, sizeof sum);
    }
}

/* --- tiles --- */

/* to[c * to_row + r] = from[r * from_row + c] for 8 x 8 elements. */
INF_INLINE void inf_att_turn8(float *to, int64_t to_row, const float *from, int64_t from_row) {
    typedef float inf_v8u __attribute__((vector_size(32), aligned(4), may_alias));
    inf_v8 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = *(const inf_v8u *)(from + i * from_row);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) { /* pairs of rows */
        b[i] = INF_SHUFFLE(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = INF_SHUFFLE(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) /* fours: column j and 4 + j in a[i + j] */
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = INF_SHUFFLE(b[i + j], b[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * j + 1] = INF_SHUFFLE(b[i + j], b[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        *(inf_v8u *)(to + j * to_row) = INF_SHUFFLE(a[j], a[4 + j], 0, 1, 2, 3, 8, 9, 10, 11);
        *(inf_v8u *)(to + (4 + j) * to_row) =
            INF_SHUFFLE(a[j], a[4 + j], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* to[c * to_row + r] = from[r * from_row + c] for r < rows, c < cols. */
INF_ATT_FUNCTION void inf_att_transpose(float *restrict to, int64_t to_row,
                                        const float *restrict from, int64_t from_row, int64_t rows,
                                        int64_t cols) {
    const int64_t high = rows / 8 * 8, wide = cols / 8 * 8;
    for (int64_t r = 0; r < high; r += 8)
        for (int64_t c = 0; c < wide; c += 8)
            inf_att_turn8(to + c * to_row + r, to_row, from + r * from_row + c, from_row);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < high ? wide : 0; c < cols; c++)
            to[c * to_row + r] = from[r * from_row + c];
}

/* to[x][l] = by * from[l][x] for l < n lanes and x < dim; 0 in the other lanes. */
INF_ATT_FUNCTION void inf_att_turn(float *to, const float *from, int64_t row, int64_t n,
                                   int64_t dim, float by) {
    if (n < INF_ATT_Q) __builtin_memset(to, 0, (uint64_t)dim * INF_ATT_Q * sizeof *to);
    inf_att_transpose(to, INF_ATT_Q, from, row, n, dim);
    if (by == 1.0f) return;
#pragma omp simd
    for (int64_t i = 0; i < dim * INF_ATT_Q; i++) to[i] *= by;
}

/* Scores of keys [k0, k0 + nk) for queries q0 .. : s[key][query]; -inf where a query comes before
 * the key. */
INF_INLINE void inf_att_scores(const InfAttention *a, const float *k, int64_t k0, int64_t nk,
                               const float *q, int64_t q0, float *s) {
    inf_att_product((InfProduct){k, a->k.t, 1, q, INF_ATT_Q, s, INF_ATT_Q, nk, INF_ATT_Q, a->dim});
    if (!a->causal || k0 + nk <= q0 + 1) return;
    for (int64_t j = 0; j < nk; j++) {
        const int32_t key = (int32_t)(k0 + j - q0);
#pragma omp simd
        for (int32_t l = 0; l < INF_ATT_Q; l++)
            s[j * INF_ATT_Q + l] = key > l ? -__builtin_inff() : s[j * INF_ATT_Q + l];
    }
}

INF_INLINE inf_lanes inf_att_max(inf_lanes a, inf_lanes b) {
    typedef int32_t inf_mask __attribute__((vector_size(4 * INF_ATT_LANES)));
    const inf_mask left = (a > b) | (a != a);
    return (inf_lanes)(((inf_mask)a & left) | ((inf_mask)b & ~left));
}

/* Scores to exponentials over the largest score so far; max and sum go on, fix is what older sums
 * are to be multiplied with. */
INF_ATT_FUNCTION void inf_att_softmax(float *s, int64_t nk, float *max, float *sum, float *fix) {
    float was[INF_ATT_Q];
    __builtin_memcpy(was, max, sizeof was);
    for (int x = 0; x < INF_ATT_Q; x += INF_ATT_LANES) {
        inf_lanes top = inf_att_load(max + x);
        for (int64_t j = 0; j < nk; j++)
            top = inf_att_max(inf_att_load(s + j * INF_ATT_Q + x), top);
        inf_att_store(max + x, top);
    }
#pragma omp simd
    for (int l = 0; l < INF_ATT_Q; l++) fix[l] = inf_exp(was[l] - max[l]);
    for (int64_t j = 0; j < nk; j++)
#pragma omp simd
        for (int l = 0; l < INF_ATT_Q; l++)
            s[j * INF_ATT_Q + l] = inf_exp(s[j * INF_ATT_Q + l] - max[l]);
    for (int x = 0; x < INF_ATT_Q; x += INF_ATT_LANES) {
        inf_lanes all = inf_att_load(sum + x) * inf_att_load(fix + x);
        for (int64_t j = 0; j < nk; j++) all += inf_att_load(s + j * INF_ATT_Q + x);
        inf_att_store(sum + x, all);
    }
}

/* --- forward --- */

/* Sums [dim][query] over their shares' sums into rows of the result, and the log of the latter. */
INF_INLINE void inf_att_finish(const InfAttention *a, int64_t b, int64_t h, int64_t q0, int64_t nq,
                               float *o, const float *max, const float *sum) {
    float by[INF_ATT_Q], *out = inf_att_at(&a->out, b, h, q0), *lse = inf_att_at(&a->lse, b, h, q0);
    for (int l = 0; l < INF_ATT_Q; l++) by[l] = 1.0f / sum[l];
    for (int64_t x = 0; x < a->dim; x++)
#pragma omp simd
        for (int l = 0; l < INF_ATT_Q; l++) o[x * INF_ATT_Q + l] *= by[l];
    if (out) inf_att_transpose(out, a->out.t, o, INF_ATT_Q, a->dim, nq);
    if (!lse) return;
    for (int l = 0; l < nq; l++) lse[l] = max[l] + inf_log(sum[l]);
}

/* Queries [q0, q0 + INF_ATT_Q) of one head. */
INF_ATT_FUNCTION void inf_att_forward(const InfAttention *a, int64_t b, int64_t h, int64_t q0) {
    float q[INF_ATT_DIM * INF_ATT_Q] __attribute__((aligned(64)));
    float o[INF_ATT_DIM * INF_ATT_Q] __attribute__((aligned(64)));
    float s[INF_ATT_K * INF_ATT_Q] __attribute__((aligned(64)));
    float max[INF_ATT_Q], sum[INF_ATT_Q], fix[INF_ATT_Q];
    const int64_t nq = INF_MIN(INF_ATT_Q, a->queries - q0), dim = a->dim;
    const int64_t group = h / (a->heads / a->groups);
    const int64_t keys = a->causal ? INF_MIN(a->keys, q0 + nq) : a->keys;
    inf_att_turn(q, inf_att_at(&a->q, b, h, q0), a->q.t, nq, dim, a->scale);
    for (int l = 0; l < INF_ATT_Q; l++) max[l] = -__builtin_inff(), sum[l] = 0;
    for (int64_t k0 = 0; k0 < keys; k0 += INF_ATT_K) {
        const int64_t nk = INF_MIN(INF_ATT_K, keys - k0);
        inf_att_scores(a, inf_att_at(&a->k, b, group, k0), k0, nk, q, q0, s);
        inf_att_softmax(s, nk, max, sum, fix);
        for (int64_t x = 0; k0 > 0 && x < dim; x++)
#pragma omp simd
            for (int l = 0; l < INF_ATT_Q; l++) o[x * INF_ATT_Q + l] *= fix[l];
        inf_att_product((InfProduct){inf_att_at(&a->v, b, group, k0), 1, a->v.t, s, INF_ATT_Q, o,
                                     INF_ATT_Q, dim, INF_ATT_Q, nk, k0 > 0});
    }
    inf_att_finish(a, b, h, q0, nq, o, max, sum);
}

INF_ATT_FUNCTION void inf_attention(const InfAttention *a, int threads) {
    const int64_t tiles = (a->queries + INF_ATT_Q - 1) / INF_ATT_Q;
    const int64_t units = a->batch * a->heads * tiles;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t u = 0; u < units; u++)
        inf_att_forward(a, u / tiles / a->heads, u / tiles % a->heads, u % tiles * INF_ATT_Q);
}

/* --- backward --- */

/* What a tile of queries brings: its rows turned, lse, and the sum of dout * out of each. */
typedef struct InfAttQueries {
    float q[INF_ATT_DIM * INF_ATT_Q] __attribute__((aligned(64)));
    float dout[INF_ATT_DIM * INF_ATT_Q] __attribute__((aligned(64)));
    float p[INF_ATT_K * INF_ATT_Q] __attribute__((aligned(64)));
    float ds[INF_ATT_K * INF_ATT_Q] __attribute__((aligned(64)));
    float lse[INF_ATT_Q], delta[INF_ATT_Q];
} InfAttQueries;

INF_INLINE float inf_att_dot(const float *a, const float *b, int64_t n) {
    float part[8] = {0};
    for (int64_t i = 0; i < n; i += 8)
#pragma omp simd
        for (int l = 0; l < 8; l++) part[l] += a[i + l] * b[i + l];
    return ((part[0] + part[4]) + (part[2] + part[6])) +
           ((part[1] + part[5]) + (part[3] + part[7]));
}

INF_ATT_FUNCTION void inf_att_queries(const InfAttention *a, int64_t b, int64_t h, int64_t q0,
                                      int64_t nq, InfAttQueries *t) {
    const float *dout = inf_att_at(&a->dout, b, h, q0), *out = inf_att_at(&a->out, b, h, q0);
    const float *lse = inf_att_at(&a->lse, b, h, q0);
    inf_att_turn(t->q, inf_att_at(&a->q, b, h, q0), a->q.t, nq, a->dim, a->scale);
    inf_att_turn(t->dout, dout, a->dout.t, nq, a->dim, 1.0f);
    for (int l = 0; l < INF_ATT_Q; l++) {
        t->lse[l] = l < nq ? lse[l] : 0;
        t->delta[l] = l < nq ? inf_att_dot(dout + l * a->dout.t, out + l * a->out.t, a->dim) : 0;
    }
}

/* A tile of queries with a tile of keys: shares and their gradients, then what they give. */
INF_INLINE void inf_att_pair(const InfAttention *a, int64_t b, int64_t h, int64_t q0, int64_t nq,
                             int64_t k0, int64_t nk, InfAttQueries *t) {
    const int64_t group = h / (a->heads / a->groups), dim = a->dim;
    const float *k = inf_att_at(&a->k, b, group, k0), *v = inf_att_at(&a->v, b, group, k0);
    float *dq = inf_att_at(&a->dq, b, h, q0);
    float *dk = inf_att_at(&a->dk, b, group, k0), *dv = inf_att_at(&a->dv, b, group, k0);
    inf_att_scores(a, k, k0, nk, t->q, q0, t->p);
    inf_att_product(
        (InfProduct){v, a->v.t, 1, t->dout, INF_ATT_Q, t->ds, INF_ATT_Q, nk, INF_ATT_Q, dim});
    for (int64_t j = 0; j < nk; j++)
#pragma omp simd
        for (int l = 0; l < INF_ATT_Q; l++) {
            const float p = inf_exp(t->p[j * INF_ATT_Q + l] - t->lse[l]);
            t->p[j * INF_ATT_Q + l] = p;
            t->ds[j * INF_ATT_Q + l] = p * (t->ds[j * INF_ATT_Q + l] - t->delta[l]) * a->scale;
        }
    if (dv)
        inf_att_product((InfProduct){t->p, INF_ATT_Q, 1, inf_att_at(&a->dout, b, h, q0), a->dout.t,
                                     dv, a->dv.t, nk, dim, nq, 1});
    if (dk)
        inf_att_product((InfProduct){t->ds, INF_ATT_Q, 1, inf_att_at(&a->q, b, h, q0), a->q.t, dk,
                                     a->dk.t, nk, dim, nq, 1});
    if (dq)
        inf_att_product(
            (InfProduct){t->ds, 1, INF_ATT_Q, k, a->k.t, dq, a->dq.t, nq, dim, nk, k0 > 0});
}

/* All heads of one group: gradients of keys and values add up in the order of heads and queries. */
INF_ATT_FUNCTION void inf_att_backward(const InfAttention *a, int64_t b, int64_t group) {
    InfAttQueries t;
    const int64_t share = a->heads / a->groups;
    for (int64_t h = group * share; h < (group + 1) * share; h++)
        for (int64_t q0 = 0; q0 < a->queries; q0 += INF_ATT_Q) {
            const int64_t nq = INF_MIN(INF_ATT_Q, a->queries - q0);
            const int64_t keys = a->causal ? INF_MIN(a->keys, q0 + nq) : a->keys;
            inf_att_queries(a, b, h, q0, nq, &t);
            for (int64_t k0 = 0; k0 < keys; k0 += INF_ATT_K) {
                const int64_t nk = INF_MIN(INF_ATT_K, keys - k0);
                inf_att_pair(a, b, h, q0, nq, k0, nk, &t);
            }
        }
}

/* Rows of zeros, to which gradients are added. */
INF_INLINE void inf_att_clear(const InfAttention *a, const InfView *v, int64_t b, int64_t group) {
    for (int64_t t = 0; v->at && t < a->keys; t++)
        __builtin_memset(inf_att_at(v, b, group, t), 0, (uint64_t)a->dim * sizeof(float));
}

INF_ATT_FUNCTION void inf_attention_grad(const InfAttention *a, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t u = 0; u < a->batch * a->groups; u++) {
        inf_att_clear(a, &a->dk, u / a->groups, u % a->groups);
        inf_att_clear(a, &a->dv, u / a->groups, u % a->groups);
        inf_att_backward(a, u / a->groups, u % a->groups);
    }
}

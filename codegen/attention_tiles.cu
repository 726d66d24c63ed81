/* attention_tiles.cu - bf16 tiles in shared memory and products with them, for a kernel's traits S.
 *
 * S says what the compiler knew of a kernel (attention_cuda.c prints it): sizes (BATCH, HEADS,
 * GROUPS, QUERIES, KEYS, DIM, CAUSAL), strides of the views (Q_B, Q_H, Q_T, ..), and how the work
 * is cut: a block keeps ROWS rows and walks over tiles of COLS others, with STAGES buffers for
 * them. Its rows are BANDS bands, in each of which every warp has 16; the work on one band covers
 * the other's waiting.
 *
 * A tile is ROWS x DIM in panels of 64 columns, 128 bytes a row. Within 8 rows its 16-byte pieces
 * are exchanged: piece c of row r lies at c ^ (r % 8). So copies, ldmatrix and wgmma (its 128-byte
 * swizzle) all go over different banks, and mma.sync and wgmma work on the same tiles; their
 * fragments are the same, too: a warp has 16 rows of a result, lane l of it rows l / 4 and l / 4 +
 * 8 and columns 8 i + 2 (l % 4) and the next: c[i][0], c[i][1] and c[i][2], c[i][3].
 */

/* What follows from S; WGMMA: its products go through wgmma. */
template <class S> struct AttnForm {
    enum : int {
        WARPS = S::ROWS / 16 / S::BANDS,
        BAND = S::ROWS / S::BANDS, /* rows */
        THREADS = 32 * WARPS,
        SHARE = S::HEADS / S::GROUPS, /* heads that read the same keys */
        STEPS = (S::DIM + 15) / 16,   /* of 16 columns */
        PANELS = (S::DIM + 63) / 64,
        BLOCKS = STEPS * 2, /* of 8 columns */
        WGMMA =
            ATTN_HAS_WGMMA && S::DIM % 64 == 0 && S::DIM <= 128 && S::COLS == 64 && WARPS % 4 == 0,
        ROWS_STAY = !WGMMA && S::DIM <= 64, /* the rows of q in registers */
        MEET = WGMMA ? 64 : 16,             /* rows that skip a tile together */
        ROW_BYTES = PANELS * 128
    };
};

template <int ROWS> INF_INLINE uint32_t attn_at(uint32_t tile, int row, int piece) {
    return tile + (uint32_t)((piece >> 3) * (ROWS * 128) + row * 128 + (((piece ^ row) & 7) << 4));
}

/* 16 bytes of a view that may lie at any address. */
INF_INLINE uint4 attn_read_loose(const inf_bf16 *from) {
    return make_uint4(from[0] | (uint32_t)from[1] << 16, from[2] | (uint32_t)from[3] << 16,
                      from[4] | (uint32_t)from[5] << 16, from[6] | (uint32_t)from[7] << 16);
}

template <class S> INF_INLINE uint4 attn_read(const inf_bf16 *from) {
    return S::LOOSE ? attn_read_loose(from) : *(const uint4 *)from;
}

template <class S> INF_INLINE void attn_write(inf_bf16 *to, uint4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    if (!S::LOOSE) *(uint4 *)to = v;
    for (int i = 0; S::LOOSE && i < 8; i++) to[i] = (inf_bf16)(word[i / 2] >> i % 2 * 16);
}

/* The first or second bf16 of a pair. */
INF_INLINE float attn_half(uint32_t pair, int second) {
    return inf_from_bits(second ? pair & 0xFFFF0000u : pair << 16);
}

/* Rows 0 .. of a view into a tile; zeros in rows from `inside` on, and in columns from DIM on. A
 * thread that finds itself in the same column of rows that are multiples of 8 apart needs one
 * address for all its pieces. */
template <class S, int ROWS>
INF_INLINE void attn_load_tile(uint32_t tile, const inf_bf16 *from, int64_t stride, int inside) {
    enum : int {
        PIECES = AttnForm<S>::BLOCKS,
        THREADS = AttnForm<S>::THREADS,
        PASSES = (ROWS * PIECES + THREADS - 1) / THREADS,
        APART = THREADS % PIECES == 0 ? THREADS / PIECES : 0,
        REGULAR = APART != 0 && APART % 8 == 0
    };
    const int row0 = threadIdx.x / PIECES, piece0 = threadIdx.x % PIECES;
    const inf_bf16 *from0 = from + row0 * stride + piece0 * 8;
    const uint32_t to0 = attn_at<ROWS>(tile, row0, piece0);
#pragma unroll
    for (int x = 0; x < PASSES; x++) {
        const int i = threadIdx.x + x * THREADS;
        const int row = REGULAR ? row0 + x * APART : i / PIECES;
        const int piece = REGULAR ? piece0 : i % PIECES;
        if (ROWS * PIECES % THREADS != 0 && row >= ROWS) break;
        const bool is = row < inside && piece < S::DIM / 8;
        const uint32_t to = REGULAR ? to0 + x * (APART * 128) : attn_at<ROWS>(tile, row, piece);
        const inf_bf16 *at =
            REGULAR ? from0 + x * (APART * stride) : from + row * stride + piece * 8;
        if (S::LOOSE)
            attn_put16(to, is ? attn_read_loose(at) : make_uint4(0, 0, 0, 0));
        else
            attn_copy16(to, at, is);
    }
}

template <int N> INF_INLINE void attn_zero(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] = 0.0f;
}

/* --- products of a warp --- */

/* A step of 16 columns of a warp's rows, `row` their first in a tile of ROWS. */
template <int ROWS>
INF_INLINE void attn_load_rows(uint32_t (&a)[4], uint32_t tile, int row, int s) {
    const int lane = threadIdx.x % 32;
    attn_load_blocks(a, attn_at<ROWS>(tile, row + lane % 16, 2 * s + lane / 16));
}

/* c = rows tile', for B bands of the warp's rows: in registers when they STAY, or in a tile. */
template <class S, int B, bool STAY>
INF_INLINE void attn_dot_warp(float (&c)[B][S::COLS / 8][4],
                              const uint32_t (&a)[B][AttnForm<S>::STEPS][4], uint32_t rows,
                              uint32_t tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
#pragma unroll
    for (int h = 0; h < B; h++) attn_zero(c[h]);
#pragma unroll
    for (int s = 0; s < AttnForm<S>::STEPS; s++) {
        uint32_t own[B][4];
#pragma unroll
        for (int h = 0; h < B; h++) {
            if (!STAY) attn_load_rows<S::ROWS>(own[h], rows, row + h * AttnForm<S>::BAND, s);
#pragma unroll
            for (int e = 0; e < 4 && STAY; e++) own[h][e] = a[h][s][e];
        }
#pragma unroll
        for (int n = 0; n < S::COLS / 16; n++) {
            uint32_t b[4];
            attn_load_blocks(
                b, attn_at<S::COLS>(tile, 16 * n + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
#pragma unroll
            for (int h = 0; h < B; h++) {
                attn_mma(c[h][2 * n], own[h], b[0], b[1]);
                attn_mma(c[h][2 * n + 1], own[h], b[2], b[3]);
            }
        }
    }
}

/* c [16 x DIM] += a [16 x COLS] tile [COLS x DIM], for B bands. */
template <class S, int B>
INF_INLINE void attn_add_warp(float (&c)[B][AttnForm<S>::BLOCKS][4],
                              const uint32_t (&a)[B][S::COLS / 16][4], uint32_t tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < S::COLS / 16; s++)
#pragma unroll
        for (int n = 0; n < AttnForm<S>::STEPS; n++) {
            uint32_t b[4];
            attn_load_blocks_turned(b,
                                    attn_at<S::COLS>(tile, 16 * s + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int h = 0; h < B; h++) {
                attn_mma(c[h][2 * n], a[h][s], b[0], b[1]);
                attn_mma(c[h][2 * n + 1], a[h][s], b[2], b[3]);
            }
        }
}

/* --- products of a warp, or of four together --- */

#if ATTN_HAS_WGMMA

/* The descriptor of a swizzled tile from an address on (8 rows are 1024 bytes), and the one of a
 * place `bytes` behind it. */
INF_INLINE uint64_t attn_describe(uint32_t at) {
    return (uint64_t)64 << 32 | (uint64_t)1 << 62 | (at >> 4 | 64u << 16);
}

INF_INLINE uint64_t attn_behind(uint64_t describe, uint32_t bytes) {
    return (describe >> 32) << 32 | ((uint32_t)describe + (bytes >> 4));
}

template <int N> INF_INLINE void attn_hold_all(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) attn_hold(c[i][j]);
}

/* Bytes from a tile of ROWS rows to its step `s` of 16 columns. */
template <int ROWS> INF_INLINE uint32_t attn_column(int s) {
    return (uint32_t)(s / 4 * (ROWS * 128) + s % 4 * 32);
}

#endif

/* Products start here, and are there after attn_finish: of those that this thread started, all but
 * the LEFT last ones; c is one of them. Until then nobody may touch their registers and tiles. */
template <class S, int LEFT, int N> INF_INLINE void attn_finish(float (&c)[N][4]) {
#if ATTN_HAS_WGMMA
    if constexpr (AttnForm<S>::WGMMA) {
        attn_wgmma_wait<LEFT>();
        attn_hold_all(c);
    }
#endif
}

/* c = rows tile': the warp's rows in a tile of their own. */
template <class S>
INF_INLINE void attn_dot_tiles(float (&c)[S::COLS / 8][4], uint32_t rows, uint32_t tile) {
    enum : int { ROWS = S::ROWS };
#if ATTN_HAS_WGMMA
    if constexpr (AttnForm<S>::WGMMA) {
        const uint64_t own = attn_describe(rows + threadIdx.x / 128 * (64 * 128));
        const uint64_t other = attn_describe(tile);
        attn_hold_all(c);
        attn_wgmma_begin();
        attn_wgmma_shared<0>(c, own, other);
#pragma unroll
        for (int s = 1; s < AttnForm<S>::STEPS; s++)
            attn_wgmma_shared<1>(c, attn_behind(own, attn_column<ROWS>(s)),
                                 attn_behind(other, attn_column<S::COLS>(s)));
        attn_wgmma_commit();
        return;
    }
#endif
    typedef float One[1][S::COLS / 8][4];
    const uint32_t none[1][AttnForm<S>::STEPS][4] = {};
    attn_dot_warp<S, 1, false>(reinterpret_cast<One &>(c), none, rows, tile);
}

/* c [16 x DIM] += a [16 x COLS] tile [COLS x DIM] */
template <class S>
INF_INLINE void attn_add_product(float (&c)[AttnForm<S>::BLOCKS][4],
                                 const uint32_t (&a)[S::COLS / 16][4], uint32_t tile) {
#if ATTN_HAS_WGMMA
    if constexpr (AttnForm<S>::WGMMA) {
        const uint64_t other = attn_describe(tile);
        attn_hold_all(c);
        attn_wgmma_begin();
#pragma unroll
        for (int s = 0; s < S::COLS / 16; s++)
#pragma unroll
            for (int p = 0; p < AttnForm<S>::PANELS; p++)
                attn_wgmma(c + 8 * p, a[s], attn_behind(other, p * (S::COLS * 128) + s * 2048));
        attn_wgmma_commit();
        return;
    }
#endif
    typedef float One[1][AttnForm<S>::BLOCKS][4];
    typedef const uint32_t OneOperand[1][S::COLS / 16][4];
    attn_add_warp<S, 1>(reinterpret_cast<One &>(c), reinterpret_cast<OneOperand &>(a), tile);
}

/* The sum over a row's four lanes. */
INF_INLINE float attn_fold4(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* Results of a warp as operands of its next product. */
template <int N> INF_INLINE void attn_pack(uint32_t (&a)[N / 2][4], const float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        a[i / 2][i % 2 * 2] = attn_pair(c[i][0], c[i][1]);
        a[i / 2][i % 2 * 2 + 1] = attn_pair(c[i][2], c[i][3]);
    }
}

/* A warp's 16 x DIM results times `scale` (of rows l / 4 and l / 4 + 8), rounded, to its own rows
 * of a tile that nobody reads any more (or of a band of it). */
template <class S>
INF_INLINE void attn_put_rows(const float (&c)[AttnForm<S>::BLOCKS][4], float scale0, float scale1,
                              uint32_t tile) {
    enum : int { ROWS = S::ROWS, PIECES = S::DIM / 8 };
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        attn_put4(attn_at<ROWS>(tile, row, i) + lane % 4 * 4,
                  attn_pair(c[i][0] * scale0, c[i][1] * scale0));
        attn_put4(attn_at<ROWS>(tile, row + 8, i) + lane % 4 * 4,
                  attn_pair(c[i][2] * scale1, c[i][3] * scale1));
    }
    attn_warp_meet();
}

/* The warp's rows of a tile to `to`, of which `inside` rows exist. */
template <class S>
INF_INLINE void attn_write_rows(inf_bf16 *to, int64_t stride, int inside, uint32_t tile) {
    enum : int { ROWS = S::ROWS, PIECES = S::DIM / 8 };
    const int lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = lane; i < 16 * PIECES; i += 32) {
        const int r = i / PIECES, piece = i % PIECES;
        if (row0 + r < inside)
            attn_write<S>(to + (row0 + r) * stride + piece * 8,
                          attn_get16(attn_at<ROWS>(tile, row0 + r, piece)));
    }
}

/* Both. */
template <class S>
INF_INLINE void attn_store_rows(inf_bf16 *to, int64_t stride, int inside,
                                const float (&c)[AttnForm<S>::BLOCKS][4], float scale0,
                                float scale1, uint32_t tile) {
    attn_put_rows<S>(c, scale0, scale1, tile);
    attn_write_rows<S>(to, stride, inside, tile);
}

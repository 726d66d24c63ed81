/* attention_rope.cu - rotary positions: rows of tiles in shared memory turned on the way in and
 * out, for traits S.
 *
 * A pair (x, y) with the angle of its row and number becomes (x cos - y sin, y cos + x sin), or
 * with `back` is turned the other way: the arithmetic of a kernel of rope alone, bit for bit. A
 * pair lies in the two halves of a row (PAIRS 1) or side by side (PAIRS 2).
 */
enum : int { ATTN_NO_PAIRS = 0, ATTN_HALVES = 1 };

/* cos and sin of a row's angles, DIM / 2 each. */
struct AttnTables {
    const float *cosine, *sine;
};

template <class S> INF_INLINE AttnTables attn_tables_at(const AttnTables &t, int row) {
    return {t.cosine + row * (int64_t)(S::DIM / 2), t.sine + row * (int64_t)(S::DIM / 2)};
}

template <class S> INF_INLINE float4 attn_read_angles(const float *from) {
    if (!S::LOOSE) return *(const float4 *)from;
    return make_float4(from[0], from[1], from[2], from[3]);
}

template <bool BACK> INF_INLINE void attn_turn(float &x, float &y, float c, float s) {
    const float a = x, b = y;
    x = a * c + b * (BACK ? s : -s);
    y = b * c + a * (BACK ? -s : s);
}

/* --- bf16 --- */

/* What a thread turns at once: the pieces `piece` and half a row behind it, or that piece alone. */
template <class S, int PAIRS> struct AttnUnit {
    enum : int {
        PIECES = S::DIM / 8,
        COUNT = PAIRS == ATTN_HALVES ? PIECES / 2 : PIECES, /* of a row */
        QUADS = PAIRS == ATTN_HALVES ? 2 : 1,               /* of angles */
    };
    float4 c[QUADS], s[QUADS];
};

template <class S, int PAIRS>
INF_INLINE void attn_load_unit(AttnUnit<S, PAIRS> &u, const AttnTables &t, int row, int piece,
                               bool inside) {
    enum : int { QUADS = AttnUnit<S, PAIRS>::QUADS };
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int at = row * (S::DIM / 2) + (piece * QUADS + i) * 4;
        u.c[i] = u.s[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (inside) u.c[i] = attn_read_angles<S>(t.cosine + at);
        if (inside) u.s[i] = attn_read_angles<S>(t.sine + at);
    }
}

/* Two pairs, the first places in x, the second ones in y. */
template <bool BACK>
INF_INLINE void attn_turn_words(uint32_t &x, uint32_t &y, float c0, float c1, float s0, float s1) {
    float x0 = attn_half(x, 0), x1 = attn_half(x, 1), y0 = attn_half(y, 0), y1 = attn_half(y, 1);
    attn_turn<BACK>(x0, y0, c0, s0);
    attn_turn<BACK>(x1, y1, c1, s1);
    x = attn_pair(x0, x1);
    y = attn_pair(y0, y1);
}

/* A pair. */
template <bool BACK> INF_INLINE void attn_turn_word(uint32_t &x, float c, float s) {
    float first = attn_half(x, 0), second = attn_half(x, 1);
    attn_turn<BACK>(first, second, c, s);
    x = attn_pair(first, second);
}

/* Eight pairs in two pieces. */
template <bool BACK>
INF_INLINE void attn_turn_pieces(uint4 &x, uint4 &y, const float4 (&c)[2], const float4 (&s)[2]) {
    attn_turn_words<BACK>(x.x, y.x, c[0].x, c[0].y, s[0].x, s[0].y);
    attn_turn_words<BACK>(x.y, y.y, c[0].z, c[0].w, s[0].z, s[0].w);
    attn_turn_words<BACK>(x.z, y.z, c[1].x, c[1].y, s[1].x, s[1].y);
    attn_turn_words<BACK>(x.w, y.w, c[1].z, c[1].w, s[1].z, s[1].w);
}

/* Four pairs in one. */
template <bool BACK>
INF_INLINE void attn_turn_piece(uint4 &x, const float4 (&c)[1], const float4 (&s)[1]) {
    attn_turn_word<BACK>(x.x, c[0].x, s[0].x);
    attn_turn_word<BACK>(x.y, c[0].y, s[0].y);
    attn_turn_word<BACK>(x.z, c[0].z, s[0].z);
    attn_turn_word<BACK>(x.w, c[0].w, s[0].w);
}

/* A unit of a row of a tile, turned: x, and y half a row behind it. */
template <class S, int ROWS, int PAIRS, bool BACK>
INF_INLINE void attn_get_turned(uint4 &x, uint4 &y, const AttnUnit<S, PAIRS> &unit, uint32_t tile,
                                int row, int piece) {
    x = attn_get16(attn_at<ROWS>(tile, row, piece));
    if constexpr (PAIRS == ATTN_HALVES) {
        y = attn_get16(attn_at<ROWS>(tile, row, piece + S::DIM / 16));
        attn_turn_pieces<BACK>(x, y, unit.c, unit.s);
    } else {
        attn_turn_piece<BACK>(x, unit.c, unit.s);
    }
}

/* Waits for a tile of queries, the last copies but one, and turns it. */
template <class S>
INF_INLINE void attn_turn_queries(uint32_t tile, const AttnTables &tables, int inside) {
    typedef AttnUnit<S, S::PAIRS_Q> Unit;
    enum : int {
        ROWS = S::ROWS,
        UNITS = S::ROWS * Unit::COUNT,
        THREADS = AttnForm<S>::THREADS,
        PASSES = (UNITS + THREADS - 1) / THREADS,
        AT_ONCE = PASSES < 4 ? PASSES : 4
    };
    Unit unit[AT_ONCE];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass += AT_ONCE) {
        uint4 first[AT_ONCE], second[AT_ONCE];
#pragma unroll
        for (int x = 0; x < AT_ONCE; x++) {
            const int i = threadIdx.x + (pass + x) * THREADS, row = i / Unit::COUNT;
            attn_load_unit<S>(unit[x], tables, row, i % Unit::COUNT, i < UNITS && row < inside);
        }
        if (pass == 0) {
            attn_copy_wait<1>();
            __syncthreads();
        }
#pragma unroll
        for (int x = 0; x < AT_ONCE; x++) {
            const int i = threadIdx.x + (pass + x) * THREADS;
            if (i < UNITS)
                attn_get_turned<S, ROWS, S::PAIRS_Q, S::BACK_Q>(first[x], second[x], unit[x], tile,
                                                                i / Unit::COUNT, i % Unit::COUNT);
        }
#pragma unroll
        for (int x = 0; x < AT_ONCE; x++) {
            const int i = threadIdx.x + (pass + x) * THREADS;
            const int row = i / Unit::COUNT, piece = i % Unit::COUNT;
            if (i >= UNITS) continue;
            attn_put16(attn_at<ROWS>(tile, row, piece), first[x]);
            if (S::PAIRS_Q == ATTN_HALVES)
                attn_put16(attn_at<ROWS>(tile, row, piece + S::DIM / 16), second[x]);
        }
    }
}

/* What a warp turns of its 16 rows: so many units of each lane at once. */
template <class S, int PAIRS> struct AttnUnits {
    typedef AttnUnit<S, PAIRS> Unit;
    enum : int {
        COUNT = 16 * Unit::COUNT,
        PASSES = (COUNT + 31) / 32,
        AT_ONCE = PASSES < 4 ? PASSES : 4
    };
    Unit unit[AT_ONCE];
};

/* From pass FIRST on. */
template <int FIRST, class S, int PAIRS>
INF_INLINE void attn_load_units(AttnUnits<S, PAIRS> &u, const AttnTables &tables, int inside) {
    typedef AttnUnits<S, PAIRS> Units;
#pragma unroll
    for (int x = 0; x < Units::AT_ONCE; x++) {
        const int i = threadIdx.x % 32 + (FIRST + x) * 32;
        const int row = threadIdx.x / 32 * 16 + i / Units::Unit::COUNT;
        attn_load_unit<S>(u.unit[x], tables, row, i % Units::Unit::COUNT,
                          i < Units::COUNT && row < inside);
    }
}

template <int FIRST, bool BACK, class S, int PAIRS>
INF_INLINE void attn_write_units(inf_bf16 *to, int64_t stride, int inside, uint32_t tile,
                                 AttnUnits<S, PAIRS> &u, const AttnTables &tables) {
    typedef AttnUnits<S, PAIRS> Units;
    enum : int { ROWS = S::ROWS };
    if constexpr (FIRST > 0) attn_load_units<FIRST>(u, tables, inside);
#pragma unroll
    for (int x = 0; x < Units::AT_ONCE; x++) {
        const int i = threadIdx.x % 32 + (FIRST + x) * 32, piece = i % Units::Unit::COUNT;
        const int row = threadIdx.x / 32 * 16 + i / Units::Unit::COUNT;
        uint4 first, second;
        if (i >= Units::COUNT || row >= inside) continue;
        attn_get_turned<S, ROWS, PAIRS, BACK>(first, second, u.unit[x], tile, row, piece);
        attn_write<S>(to + row * stride + piece * 8, first);
        if (PAIRS == ATTN_HALVES)
            attn_write<S>(to + row * stride + (piece + S::DIM / 16) * 8, second);
    }
    if constexpr (FIRST + Units::AT_ONCE < Units::PASSES)
        attn_write_units<FIRST + Units::AT_ONCE, BACK>(to, stride, inside, tile, u, tables);
}

/* attn_store_rows, the rows turned; the angles come while they go to shared memory. */
template <class S, int PAIRS, bool BACK>
INF_INLINE void attn_store_turned(inf_bf16 *to, int64_t stride, int inside,
                                  const float (&c)[AttnForm<S>::BLOCKS][4], float scale,
                                  uint32_t tile, const AttnTables &tables) {
    if constexpr (PAIRS == ATTN_NO_PAIRS) {
        attn_store_rows<S>(to, stride, inside, c, scale, scale, tile);
    } else {
        AttnUnits<S, PAIRS> u;
        attn_load_units<0>(u, tables, inside);
        attn_put_rows<S>(c, scale, scale, tile);
        attn_write_units<0, BACK>(to, stride, inside, tile, u, tables);
    }
}

/* --- f32: a tile's rows are `line` floats apart --- */

/* Turns rows of a tile, KEEPs them there and writes them to `to`, each if wanted. */
template <class S, int LINE, int ROWS, int PAIRS, bool BACK, bool KEEP>
INF_INLINE void attn_turn_f32(float *tile, const AttnTables &tables, float *to, int64_t stride,
                              int inside) {
    enum : int { HALF = S::DIM / 2 };
    for (int i = threadIdx.x; i < ROWS * HALF; i += 256) {
        const int row = i / HALF, k = i % HALF;
        if (row >= inside) break;
        const int first = PAIRS == ATTN_HALVES ? k : 2 * k;
        const int second = PAIRS == ATTN_HALVES ? k + HALF : 2 * k + 1;
        float x = tile[row * LINE + first], y = tile[row * LINE + second];
        attn_turn<BACK>(x, y, tables.cosine[row * HALF + k], tables.sine[row * HALF + k]);
        if (KEEP) tile[row * LINE + first] = x, tile[row * LINE + second] = y;
        if (to != 0) to[row * stride + first] = x, to[row * stride + second] = y;
    }
}

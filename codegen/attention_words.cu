/* attention_words.cu - what the kernels of attention ask of a multiprocessor, an instruction a
 * function: copies into shared memory that do not wait, matrix products of a warp (mma.sync, sm_80
 * and up) and of four warps (wgmma, sm_90a). Tests put a model of these functions in their place
 * (INF_EMULATED) and run everything else as it is.
 *
 * Shared memory is addressed by 32-bit numbers, as the instructions do. bf16 values travel in
 * pairs: the lower half of a word is the value that comes first.
 */
#ifndef INF_EMULATED

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATTN_HAS_WGMMA 1
#define ATTN_BLOCKS(n) , n /* after the threads of a block: so many blocks on a multiprocessor */
#else
#define ATTN_HAS_WGMMA 0
#define ATTN_BLOCKS(n)
#endif

#define ATTN_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

/* Of dynamic shared memory, which the swizzle wants at a multiple of 1024; a driver that puts it
 * elsewhere is not to go unnoticed. */
INF_INLINE uint32_t attn_address(const void *shared) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    if (at % 1024 != 0) asm volatile("trap;");
    return at;
}

/* 16 bytes into shared memory; zeros when not `inside` (`from` is then not read). */
INF_INLINE void attn_copy16(uint32_t to, const void *from, bool inside) {
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

INF_INLINE void attn_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most N of this thread's committed groups of copies are under way. */
template <int N> INF_INLINE void attn_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* What this thread put into shared memory is there for wgmma, after the next barrier. */
INF_INLINE void attn_show() {
#if ATTN_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

INF_INLINE void attn_put4(uint32_t to, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

INF_INLINE void attn_put16(uint32_t to, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

INF_INLINE float2 attn_get8(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

INF_INLINE uint4 attn_get16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Four 8 x 8 blocks; lane l gives the address of row l % 8 of block l / 8. */
INF_INLINE void attn_load_blocks(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

INF_INLINE void attn_load_blocks_turned(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* d [16 x 8] += a [16 x 16] b [16 x 8] */
INF_INLINE void attn_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

INF_INLINE uint32_t attn_pair(float first, float second) {
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(second), "f"(first));
    return v;
}

INF_INLINE float attn_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INF_INLINE float attn_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INF_INLINE void attn_warp_meet() { __syncwarp(); }
INF_INLINE bool attn_warp_any(bool x) { return __any_sync(0xFFFFFFFFu, x); }

#if ATTN_HAS_WGMMA

/* Products of a warpgroup: begin, any number of attn_wgmma, commit, wait; the registers of a result
 * (and of an operand) belong to the instructions from begin to wait, which attn_hold tells the
 * compiler. */
INF_INLINE void attn_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INF_INLINE void attn_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> INF_INLINE void attn_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
INF_INLINE void attn_hold(float &x) { asm volatile("" : "+f"(x)::"memory"); }

#define ATTN_D                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ATTN_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define ATTN_D32                                                                                   \
    ATTN_D4(0), ATTN_D4(1), ATTN_D4(2), ATTN_D4(3), ATTN_D4(4), ATTN_D4(5), ATTN_D4(6), ATTN_D4(7)

/* d [64 x 64] += a [64 x 16] b [16 x 64], a in registers, b stored [16][64] in shared memory.
 * The registers of `a` must be of this iteration: CUDA 13.0's ptxas takes those that a loop keeps
 * for free behind the instruction. */
INF_INLINE void attn_wgmma(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ATTN_D
                 ", {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
                 : ATTN_D32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

/* d [64 x 64] (+)= a [64 x 16] b [64 x 16]', both in shared memory; ADD 0: d is set. */
template <int ADD> INF_INLINE void attn_wgmma_shared(float (*d)[4], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ATTN_D
                 ", %32, %33, add, 1, 1, 0, 0;\n}"
                 : ATTN_D32
                 : "l"(a), "l"(b), "n"(ADD)
                 : "memory");
}

#endif
#endif

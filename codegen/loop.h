/* loop.h - the loop form: what a kernel is between fusion and text.
 *
 * A LoopKernel is a tree of statements over buffers. Loops have an axis with a kind; values are SSA
 * temporaries, each defined by one statement (one C temporary an operation, so the text never
 * nests); what changes lives in buffers. Nothing here belongs to one target: a printer turns the
 * same tree into C (print_c.c) or CUDA C.
 *
 *   axis      a loop variable in [0, extent), the extent being a constant; it may run over a part
 * only index     integer expression over axes: sum of constant * term, a term being an axis, a
 * quotient or remainder of an index by a constant, or an i32 value. Ranges are tracked, so that (16
 * * i + j) / 16 is i when 0 <= j < 16. All arithmetic is 64-bit buffer    a kernel argument, a
 * private array (LOOP_local), or registers (LOOP_reg) value     scalar (lanes 1) or vector of
 * LOOP_LANES f32 (lanes 16)
 *
 * Building: statements are added at the end of the innermost open block. Opening a loop or an `if`
 * makes its block the innermost one; the statement joins its parent when it is closed, so that
 * while it is open loop_seek() can still add to an enclosing block, in front of it (hoisting).
 *
 *   LoopKernel *k = loop_new(arena);
 *   LoopBuf x = loop_param(k, "x", DT_f32, n, LOOP_READ), y = loop_param(k, "y", DT_f32, n,
 * LOOP_WRITE); LoopAxis i = loop_open(k, LOOP_vector, n, LOOP_NO_BOUND); LoopIdx at =
 * loop_idx_axis(k, i); LoopVal v = loop_load(k, x, at); loop_store(k, y, at, loop_op(k, OP_relu,
 * DT_f32, 1, &v)); loop_close(k);
 */
#ifndef INFINIC_CODEGEN_LOOP_H
#define INFINIC_CODEGEN_LOOP_H

#include "ir/graph.h"

#include <stdio.h>

enum { LOOP_LANES = 16, LOOP_DEPTH_MAX = 48, LOOP_ARGS_MAX = 3 };

typedef struct {
    uint32_t id;
} LoopBuf;
typedef struct {
    uint32_t id;
} LoopAxis;
typedef struct {
    uint32_t id;
} LoopIdx;
typedef struct {
    uint32_t id;
} LoopVal;

#define LOOP_NO_BOUND ((LoopIdx){0})

typedef enum LoopAxisKind {
    LOOP_grid,   /* independent iterations, outermost: OpenMP threads in C, blocks in CUDA */
    LOOP_thread, /* independent inside one grid iteration: a plain loop in C, threads in CUDA */
    LOOP_vector, /* independent, neighbours in memory: `omp simd` in C, wide accesses in CUDA */
    LOOP_serial, /* in order */
    LOOP_reduce, /* in order, and accumulators are carried from one iteration to the next */
    LOOP_unroll, /* written out: in its body the axis is a constant */
    LOOP_let     /* no loop: a name for an index */
} LoopAxisKind;

typedef enum LoopSpace {
    LOOP_param, /* kernel argument, in memory */
    LOOP_local, /* array private to an iteration of the loops around its declaration */
    LOOP_reg,   /* registers: every index must be a constant once unrolled axes are substituted */
    LOOP_shared /* CUDA: one array for all threads of a block */
} LoopSpace;

typedef enum LoopAccess { LOOP_READ = 1, LOOP_WRITE = 2, LOOP_WORKSPACE = 4 } LoopAccess;

typedef struct LoopBufInfo {
    const char *name;
    LoopSpace space;
    Dtype dtype;
    int lanes;         /* LOOP_reg: 1, or LOOP_LANES for registers of vectors; else 1 */
    int64_t elems;     /* of `lanes` values each */
    LoopAccess access; /* LOOP_param */
    bool shared;  /* LOOP_param: may lie on another argument's memory (in-place), index for index */
    bool dynamic; /* LOOP_shared: of a size that a launch asks for */
    bool loose;   /* LOOP_param: its address is not known to be a multiple of 16 bytes */
} LoopBufInfo;

typedef struct LoopAxisInfo {
    LoopAxisKind kind;
    int64_t extent;
    LoopIdx begin; /* first value; none: 0. let: the value */
    LoopIdx bound; /* runs up to, not including, min(extent, bound); none: extent */
    int depth;     /* of its body; let: of the block it stands in */
} LoopAxisInfo;

typedef enum LoopTermKind {
    LOOP_TERM_axis,
    LOOP_TERM_div,
    LOOP_TERM_mod,
    LOOP_TERM_val
} LoopTermKind;

typedef struct LoopTerm {
    LoopTermKind kind;
    uint32_t id; /* axis, value, or the index that is divided */
    int64_t by;  /* divisor */
    int64_t scale;
} LoopTerm;

typedef struct LoopIdxInfo {
    int64_t constant;
    int nterm;
    LoopTerm *term;    /* sorted; scales are not 0 */
    int64_t low, high; /* inclusive range */
} LoopIdxInfo;

typedef enum LoopStmtKind {
    LOOP_STMT_loop,     /* axis, body */
    LOOP_STMT_if,       /* arg[0], body */
    LOOP_STMT_let,      /* axis is a name for its `begin` */
    LOOP_STMT_buf,      /* declares `buf` (local or registers) */
    LOOP_STMT_const,    /* result = number */
    LOOP_STMT_index,    /* result (i32) = index */
    LOOP_STMT_range,    /* result (bool) = low <= index < high */
    LOOP_STMT_op,       /* result = op(arg..) */
    LOOP_STMT_fma,      /* result = arg[0] * arg[1] + arg[2], rounded once */
    LOOP_STMT_splat,    /* result (vector) = arg[0] in every lane */
    LOOP_STMT_load,     /* result = buf[index], or `number` where arg[0] (when given) is false */
    LOOP_STMT_prefetch, /* asks for the memory of buf[index] ahead of its use */
    LOOP_STMT_store,    /* buf[index] = arg[0], only where arg[1] (when given) is true */
    LOOP_STMT_fold,     /* result = buf[0] after folding buf[0 .. low) by halves with op */
    LOOP_STMT_random,   /* result (f32 in [0, 1)) = element `index` of `stream` */
    LOOP_STMT_fill,     /* buf[0 ..] = elements of `stream` from `index` on, one for each of axis */
    LOOP_STMT_gemm,     /* gemm */
    LOOP_STMT_transpose, /* transpose */
    /* CUDA only */
    LOOP_STMT_sync,  /* all threads of the block meet */
    LOOP_STMT_group, /* result = arg[0] of `low` neighbouring threads folded with op, in all */
    LOOP_STMT_last,  /* result (bool) = the last of `low` blocks that come to counter `index` */
    LOOP_STMT_tf32,  /* result = arg[0] rounded to the 10 bits that LOOP_STMT_mma looks at */
    LOOP_STMT_mma,   /* mma */
    LOOP_STMT_COUNT
} LoopStmtKind;

typedef struct LoopStmt LoopStmt;

typedef struct LoopBlock {
    LoopStmt **data;
    uint32_t n, cap;
} LoopBlock;

/* C[m, n] = A * B (+ C with accumulate): inf_sgemm of runtime/plan.h on tiles inside buffers. */
typedef struct LoopGemm {
    bool ta, tb, accumulate;
    LoopIdx m, n, k;
    LoopBuf a, b, c;
    LoopIdx a_at, b_at, c_at; /* first elements */
    int64_t lda, ldb, ldc;
} LoopGemm;

/* to[to_at + c * to_stride + r] = from[from_at + r * from_stride + c] for r < rows, c < cols. */
typedef struct LoopTranspose {
    LoopBuf to, from; /* f32, not the same memory */
    LoopIdx to_at, from_at;
    int64_t to_stride, from_stride;
    LoopIdx rows, cols;
} LoopTranspose;

/* C[16, 8] += A[16, 8] * B[8, 8] by the 32 threads of a warp, sums in f32. With g = lane / 4 and
 * t = lane % 4 a thread's registers are, from the given places on:
 *   a  [g][t], [g + 8][t], [g][t + 4], [g + 8][t + 4]    rounded by loop_tf32
 *   b  [t][g], [t + 4][g]                                likewise
 *   c  [g][2 t], [g][2 t + 1], [g + 8][2 t], [g + 8][2 t + 1] */
typedef struct LoopMma {
    LoopBuf a, b, c; /* LOOP_reg */
    LoopIdx a_at, b_at, c_at;
} LoopMma;

struct LoopStmt {
    LoopStmtKind kind;
    LoopVal result;
    LoopVal arg[LOOP_ARGS_MAX];
    int nargs;
    Op op;
    double number;
    LoopBuf buf;
    LoopIdx index;
    int64_t low, high;
    LoopAxis axis;
    int64_t stream;
    LoopGemm *gemm;
    LoopTranspose *transpose;
    LoopMma *mma;
    LoopBlock body;
};

typedef struct LoopValInfo {
    Dtype dtype;
    int lanes;
    int depth;         /* of the block that defines it */
    int64_t low, high; /* used as an index: its range */
} LoopValInfo;

struct LoopKernel;
struct PlanSizes;

/* A kernel that is text from a template instead of statements: its parameters are declared as
 * always; the printers call `print` for the whole function. `prelude` prints what such kernels need
 * before them, once a source. */
typedef void LoopPrelude(FILE *out);

typedef struct LoopText {
    void (*print)(const struct LoopKernel *k, const char *name, FILE *out);
    LoopPrelude *prelude;
    const void *spec; /* what `print` knows of the kernel */
    int64_t weight;   /* takes the compiler as long as so many characters of statements */
    /* The function has another parameter, for these; functions of equal text but for the name are
     * one. NULL: it knows its sizes. */
    const struct PlanSizes *sizes;
} LoopText;

/* What the kernel's products are done in: as PlanMath of runtime/plan.h. */
typedef enum LoopMath { LOOP_MATH_f32, LOOP_MATH_tf32, LOOP_MATH_bf16 } LoopMath;

/* Tables are indexed by id; entry 0 is unused. */
typedef struct LoopKernel {
    Arena *arena;
    VEC(LoopBufInfo) buf;
    VEC(LoopAxisInfo) axis;
    VEC(LoopIdxInfo) idx;
    VEC(LoopValInfo) val;
    LoopBlock block[LOOP_DEPTH_MAX]; /* open blocks; [0] is the kernel's own */
    LoopStmt *open[LOOP_DEPTH_MAX];  /* the statement whose block it is; [0] NULL */
    int depth;                       /* innermost open block */
    int at;         /* where statements are added: depth, or less after loop_seek */
    int nparam;     /* params are buffers 1 .. nparam, in argument order */
    int64_t work;   /* elementary operations in all, to decide about threads */
    int iter_depth; /* enclosing repeats ... */
    int64_t iter_count[REPEAT_DEPTH_MAX]; /* ... and their counts, outermost first */
    /* CUDA. The first block is one grid axis, in it one thread axis of `threads`: blockIdx.x and
     * threadIdx.x. */
    int threads;
    LoopMath math;
    int64_t blocks;
    int64_t shared_bytes;    /* dynamic shared memory */
    int64_t counters;        /* that blocks of the kernel count each other with */
    struct LoopKernel *next; /* a launch that follows on the same arguments */
    const LoopText *text;    /* NULL: the statements */
} LoopKernel;

/* Broken invariants of the lowering: message and exit 3. */
_Noreturn void loop_broken(const char *file, int line, const char *what);
#define LOOP_ASSERT(condition) ((condition) ? (void)0 : loop_broken(__FILE__, __LINE__, #condition))

LoopKernel *loop_new(Arena *arena);

/* --- buffers --- */
LoopBuf loop_param(LoopKernel *k, const char *name, Dtype dtype, int64_t elems, LoopAccess access);
/* A private array, 64-byte aligned, not initialised; declared at the current place. */
LoopBuf loop_local(LoopKernel *k, const char *name, Dtype dtype, int64_t elems);
/* Registers: `elems` variables of `lanes` (1 or LOOP_LANES) values; set them before reading. */
LoopBuf loop_reg(LoopKernel *k, const char *name, Dtype dtype, int64_t elems, int lanes);
const LoopBufInfo *loop_buf_info(const LoopKernel *k, LoopBuf b);

/* One array for the block's threads, not initialised; anywhere in the kernel, exists throughout. */
LoopBuf loop_shared(LoopKernel *k, const char *name, Dtype dtype, int64_t elems);
/* The same for one large array a kernel, at most LOOP_DYNAMIC_MAX bytes: what every chip from sm_80
 * on has for a block, beside the small arrays. */
enum { LOOP_DYNAMIC_MAX = 100864 };
LoopBuf loop_shared_dynamic(LoopKernel *k, const char *name, Dtype dtype, int64_t elems);

/* --- blocks --- */
LoopAxis loop_open(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx bound);
/* The same from `begin` on: values in [begin, min(extent, bound)), all within [0, extent). */
LoopAxis loop_open_range(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx begin,
                         LoopIdx bound);
void loop_open_if(LoopKernel *k, LoopVal condition);
void loop_close(LoopKernel *k);
/* Adds the following statements at the end of the open block `depth` (0: the kernel) instead of the
 * innermost; returns the former place, to be restored. */
int loop_seek(LoopKernel *k, int depth);

/* --- indices --- */
LoopIdx loop_idx(LoopKernel *k, int64_t constant);
LoopIdx loop_idx_axis(LoopKernel *k, LoopAxis axis);
LoopIdx loop_idx_val(LoopKernel *k, LoopVal v, int64_t low,
                     int64_t high); /* i32 value in [low, high] */
LoopIdx loop_idx_add(LoopKernel *k, LoopIdx a, LoopIdx b);
LoopIdx loop_idx_plus(LoopKernel *k, LoopIdx a, int64_t constant);
LoopIdx loop_idx_scale(LoopKernel *k, LoopIdx a, int64_t by);
LoopIdx loop_idx_div(LoopKernel *k, LoopIdx a, int64_t by); /* a >= 0, by >= 1 */
LoopIdx loop_idx_mod(LoopKernel *k, LoopIdx a, int64_t by);
const LoopIdxInfo *loop_idx_info(const LoopKernel *k, LoopIdx a);
/* A name for an index known to be in [0, extent); its terms are not looked into any more. */
LoopIdx loop_let(LoopKernel *k, LoopIdx value, int64_t extent);
/* The same, even where `value` is an axis: the name knows the narrower extent. */
LoopIdx loop_name(LoopKernel *k, LoopIdx value, int64_t extent);
bool loop_idx_is(const LoopKernel *k, LoopIdx a, int64_t constant);
/* Least depth of block at which every axis and value of the index is known. */
int loop_idx_depth(const LoopKernel *k, LoopIdx a);

/* How many quotients and remainders the indices of all statements of closed blocks hold. */
int64_t loop_count_quotients(const LoopKernel *k);

/* --- values --- */
LoopVal loop_const(LoopKernel *k, Dtype dtype, double number);
LoopVal loop_index(LoopKernel *k, LoopIdx index);
LoopVal loop_range(LoopKernel *k, LoopIdx index, int64_t low, int64_t high);
/* Elementwise ops by their row in ops.def; a reduction's op combines two values. Operands that are
 * vectors give a vector (add, sub, mul, div, neg, and reduce_sum only). */
LoopVal loop_op(LoopKernel *k, Op op, Dtype dtype, int nargs, const LoopVal *arg);
LoopVal loop_op2(LoopKernel *k, Op op, LoopVal a, LoopVal b);     /* dtype of a */
LoopVal loop_compare(LoopKernel *k, Op op, LoopVal a, LoopVal b); /* bool */
LoopVal loop_select(LoopKernel *k, LoopVal condition, LoopVal yes, LoopVal no);
/* Combines b[0 .. lanes), lanes a power of two, by halves: b[l] with b[l + lanes / 2], and so on;
 * the buffer is used up. */
LoopVal loop_fold(LoopKernel *k, Op op, LoopBuf b, int lanes);
LoopVal loop_fma(LoopKernel *k, LoopVal a, LoopVal b, LoopVal c);
LoopVal loop_splat(LoopKernel *k, LoopVal a);
LoopVal loop_load(LoopKernel *k, LoopBuf b, LoopIdx at);
LoopVal loop_load_if(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal condition, double otherwise);
/* LOOP_LANES neighbours from `at` of a param or local f32 buffer (any alignment). */
LoopVal loop_load_vector(LoopKernel *k, LoopBuf b, LoopIdx at);
/* Asks for the memory of b[at] ahead of its use, which is worth it where a loop walks rows that are
 * far apart; `at` may lie outside of b. */
void loop_prefetch(LoopKernel *k, LoopBuf b, LoopIdx at);
/* Stores a value of 1 lane or, for a vector, LOOP_LANES neighbours. */
void loop_store(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal v);
void loop_store_if(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal v, LoopVal condition);
LoopVal loop_random(LoopKernel *k, int64_t stream, LoopIdx element);
/* A private array of `elems` that holds the numbers from element `first` on for the iterations of
 * `axis`, at (axis - its begin); declared and filled at the current place, outside the axis's loop.
 */
LoopBuf loop_random_row(LoopKernel *k, int64_t stream, LoopIdx first, LoopAxis axis, int64_t elems);
void loop_gemm(LoopKernel *k, LoopGemm gemm);
void loop_transpose(LoopKernel *k, LoopTranspose transpose);
const LoopValInfo *loop_val_info(const LoopKernel *k, LoopVal v);

/* --- the C printer (print_c.c) --- */

/* --- CUDA --- */
void loop_sync(LoopKernel *k);
/* Folds the values of the `width` threads (a power of two) that the thread is one of, threads
 * numbered from multiples of width on: by halves, so the order depends on width alone. Every thread
 * of the block must come here, and gets the result. */
LoopVal loop_group_fold(LoopKernel *k, Op op, LoopVal v, int64_t width);
/* Counts this block at counter `which` of `counters`; true in all threads of the last of `blocks`
 * blocks, which sees everything that the others stored. The counter starts over by itself. */
LoopVal loop_last(LoopKernel *k, LoopIdx which, int64_t counters, int64_t blocks);
/* To the nearest tf32, ties away from zero. */
LoopVal loop_tf32(LoopKernel *k, LoopVal v);
/* Every thread of the block must come here. */
void loop_mma(LoopKernel *k, LoopMma mma);

/* `static void NAME(void *const *arg, const InfEnv *env) { .. }`. Equal kernels give equal text. */
void loop_print_c(const LoopKernel *k, const char *name, FILE *out);
/* `extern "C" __global__ void NAME(T0 *in0, .., InfDeviceEnv env) { .. }`. */
void loop_print_cuda(const LoopKernel *k, const char *name, FILE *out);
/* The whole text before CUDA kernels, no includes (prelude_cuda.h); the kernels that stage batches.
 */
void loop_print_cuda_prelude(FILE *out);
void loop_print_cuda_stage(FILE *out);
/* What printed kernels need before them, after `#include "runtime/plan.h"` (prelude.h). */
void loop_print_c_prelude(FILE *out);
/* Flags for the C compiler beside -march and include paths, NULL at the end; none of them lets the
 * compiler reorder or contract float arithmetic. */
extern const char *const loop_c_flags[];

#endif

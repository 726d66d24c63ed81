/* cublaslt.c - matrix products by cuBLASLt.
 *
 * The plan speaks of row-major matrices, the library of column-major ones. A row-major [r, c] is a
 * column-major [c, r] with the same rows apart, so out = op(a) op(b) is computed as its transpose,
 * out' = op(b)' op(a)': the library's first operand is b, its second a, and the bias along n runs
 * down the library's columns.
 */
#include "runtime/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/library.h"

typedef struct LtFunctions {
#define SYM(member, symbol, arguments) LtStatus(*member) arguments;
#include "runtime/cublaslt_syms.def"
} LtFunctions;

/* One product, ready to run. */
typedef struct Product {
    LtDesc desc;
    LtLayout a, b, c; /* the library's first and second operand; old value and result */
    LtAlgorithm algorithm;
} Product;

struct InfLt {
    const Plan *plan;
    LtFunctions call;
    void *library;
    LtHandle handle;
    Product *product; /* one a PlanMatmul */
    CuAddress workspace;
};

static const char *const library_names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                            "libcublasLt.so", NULL};

static const int epilogues[] = {
    [PLAN_EPILOGUE_none] = LT_EPILOGUE_DEFAULT, [PLAN_EPILOGUE_bias] = LT_EPILOGUE_BIAS,
    [PLAN_EPILOGUE_relu] = LT_EPILOGUE_RELU,    [PLAN_EPILOGUE_relu_bias] = LT_EPILOGUE_RELU_BIAS,
    [PLAN_EPILOGUE_gelu] = LT_EPILOGUE_GELU,    [PLAN_EPILOGUE_gelu_bias] = LT_EPILOGUE_GELU_BIAS,
};

static bool has_bias(const PlanMatmul *p) {
    return p->epilogue == PLAN_EPILOGUE_bias || p->epilogue == PLAN_EPILOGUE_relu_bias ||
           p->epilogue == PLAN_EPILOGUE_gelu_bias;
}

/* "product 128 x 10 x 784 (f32, bias)" */
static const char *describe(const PlanMatmul *p, char out[128]) {
    snprintf(out, 128, "%smatrix product %lld x %lld x %lld%s%s%s",
             p->dtype == PLAN_bf16 ? "bf16 " : "", (long long)p->m, (long long)p->n,
             (long long)p->k, p->ta ? ", first transposed" : "", p->tb ? ", second transposed" : "",
             has_bias(p) ? ", bias" : "");
    return out;
}

static InfCode check(InfError *e, LtStatus status, const PlanMatmul *p, const char *call) {
    char what[128];
    if (status == 0) return INF_OK;
    return inf_fail(e, INF_IO, "%s: %s: cuBLASLt status %d", p ? describe(p, what) : "cuBLASLt",
                    call, status);
}

#define CHECK(name, ...) TRY(check(e, lt->call.name(__VA_ARGS__), p, #name))

InfCode inf_lt_open(InfError *e, const Plan *plan, InfLt **out) {
    const PlanMatmul *p = NULL;
    InfLt *lt = calloc(1, sizeof *lt);
    *out = lt;
    if (lt) lt->product = calloc(plan->nmatmul + 1, sizeof *lt->product);
    if (!lt || !lt->product) return inf_fail(e, INF_IO, "out of memory");
    lt->plan = plan;
    const InfSymbol symbols[] = {
#define SYM(member, symbol, arguments) {#symbol, &lt->call.member},
#include "runtime/cublaslt_syms.def"
    };
    const InfLibrary library = {library_names, true, "cuBLASLt, CUDA's matrix library,",
                                "install it (Debian, Ubuntu: NVIDIA's package libcublas-13-0), or "
                                "set CUDA_HOME to a CUDA toolkit"};
    TRY(inf_library_open(e, &library, symbols, (int)(sizeof symbols / sizeof *symbols),
                         &lt->library));
    CHECK(open, &lt->handle);
    return INF_OK;
}

static void free_product(InfLt *lt, Product *product) {
    LtLayout layouts[] = {product->a, product->b, product->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) lt->call.layout_free(layouts[i]);
    if (product->desc) lt->call.desc_free(product->desc);
}

void inf_lt_close(InfLt *lt) {
    if (!lt) return;
    for (uint32_t i = 0; lt->product && i < lt->plan->nmatmul; i++)
        free_product(lt, &lt->product[i]);
    if (lt->handle) lt->call.close(lt->handle);
    if (lt->library) dlclose(lt->library);
    free(lt->product);
    free(lt);
}

/* --- how operands are aligned --- */

/* The largest power of two, at most INF_LT_ALIGNMENT_MAX, that divides every address an argument
 * takes in the steps that use a product. */
typedef struct Alignment {
    CuAddress bits[4]; /* a, b, old, out: addresses and strides, or-ed */
    CuAddress bias;    /* one address of the bias */
} Alignment;

static CuAddress address_bits(const Plan *plan, const CuAddress *base, const PlanArg *arg) {
    CuAddress bits = base[arg->region] | (CuAddress)arg->offset;
    for (uint32_t k = 0; k < arg->nstride; k++) bits |= (CuAddress)plan->stride[arg->stride + k];
    return bits;
}

static Alignment find_alignment(const Plan *plan, const CuAddress *base, uint32_t index) {
    const PlanMatmul *p = &plan->matmul[index];
    const uint8_t which[4] = {p->a, p->b, p->beta ? p->old : p->out, p->out};
    Alignment found = {{0}, 0};
    for (uint32_t c = 0; c < plan->nchunk; c++)
        for (uint32_t s = plan->chunk[c].begin; s < plan->chunk[c].end; s++) {
            const PlanStep *step = &plan->step[s];
            if (step->kind != STEP_LAUNCH) continue;
            const PlanKernel *kernel = &plan->kernel[step->kernel];
            if (kernel->kind != PLAN_KERNEL_matmul || kernel->matmul != index) continue;
            for (int i = 0; i < 4; i++)
                found.bits[i] |= address_bits(plan, base, &plan->arg[step->arg + which[i]]);
            if (has_bias(p)) {
                const PlanArg *bias = &plan->arg[step->arg + p->bias];
                found.bias = base[bias->region] + (CuAddress)bias->offset;
            }
        }
    return found;
}

static uint32_t alignment_of(CuAddress bits) {
    uint32_t bytes = INF_LT_ALIGNMENT_MAX;
    while (bytes > 1 && bits % bytes != 0) bytes /= 2;
    return bytes;
}

/* --- descriptors --- */

/* A column-major matrix of the library, `ld` elements from column to column. */
typedef struct Matrix {
    uint8_t dtype; /* PlanDtype */
    int64_t rows, columns, ld, stride;
} Matrix;

static int library_type(uint8_t dtype) { return dtype == PLAN_bf16 ? LT_TYPE_BF16 : LT_TYPE_F32; }

static InfCode make_layout(InfError *e, InfLt *lt, const PlanMatmul *p, Matrix m, LtLayout *out) {
    CHECK(layout_make, out, library_type(m.dtype), (uint64_t)m.rows, (uint64_t)m.columns, m.ld);
    if (p->batch <= 1) return INF_OK;
    int32_t batch = (int32_t)p->batch;
    CHECK(layout_set, *out, LT_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    CHECK(layout_set, *out, LT_LAYOUT_BATCH_STRIDE, &m.stride, sizeof m.stride);
    return INF_OK;
}

static InfCode make_desc(InfError *e, InfLt *lt, const PlanMatmul *p, CuAddress bias, LtDesc *out) {
    int compute = p->tf32 ? LT_COMPUTE_TF32 : LT_COMPUTE_F32;
    int32_t first = p->tb ? LT_OP_T : LT_OP_N, second = p->ta ? LT_OP_T : LT_OP_N;
    int32_t epilogue = epilogues[p->epilogue];
    CHECK(desc_make, out, compute, LT_TYPE_F32);
    CHECK(desc_set, *out, LT_DESC_TRANSPOSE_A, &first, sizeof first);
    CHECK(desc_set, *out, LT_DESC_TRANSPOSE_B, &second, sizeof second);
    CHECK(desc_set, *out, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    /* A bias is of the result's type unless the descriptor says otherwise. */
    if (has_bias(p)) CHECK(desc_set, *out, LT_DESC_BIAS_POINTER, &bias, sizeof bias);
    return INF_OK;
}

static InfCode choose(InfError *e, InfLt *lt, const PlanMatmul *p, Product *product,
                      const Alignment *at, LtPreference preference) {
    static const int attributes[4] = {LT_PREFER_ALIGNMENT_B, LT_PREFER_ALIGNMENT_A,
                                      LT_PREFER_ALIGNMENT_C, LT_PREFER_ALIGNMENT_D};
    uint64_t workspace = INF_LT_WORKSPACE_BYTES;
    uint32_t reductions = LT_REDUCTIONS_IN_WORKSPACE;
    LtHeuristic found = {.state = 0};
    int count = 0;
    char what[128];
    CHECK(preference_set, preference, LT_PREFER_WORKSPACE_BYTES, &workspace, sizeof workspace);
    CHECK(preference_set, preference, LT_PREFER_REDUCTIONS, &reductions, sizeof reductions);
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = alignment_of(at->bits[i]);
        CHECK(preference_set, preference, attributes[i], &bytes, sizeof bytes);
    }
    LtStatus status = lt->call.heuristic(lt->handle, product->desc, product->a, product->b,
                                         product->c, product->c, preference, 1, &found, &count);
    if (status != 0 || count < 1 || found.state != 0)
        return inf_fail(e, INF_IO, "%s: cuBLASLt has no algorithm for it (status %d)",
                        describe(p, what), status != 0 ? status : found.state);
    product->algorithm = found.algorithm;
    return INF_OK;
}

static InfCode prepare_one(InfError *e, InfLt *lt, uint32_t index, const CuAddress *base) {
    const PlanMatmul *p = &lt->plan->matmul[index];
    Product *product = &lt->product[index];
    Alignment at = find_alignment(lt->plan, base, index);
    LtPreference preference = NULL;
    TRY(make_desc(e, lt, p, at.bias, &product->desc));
    Matrix b = {p->dtype, p->tb ? p->k : p->n, p->tb ? p->n : p->k, p->ldb, p->b_stride};
    Matrix a = {p->dtype, p->ta ? p->m : p->k, p->ta ? p->k : p->m, p->lda, p->a_stride};
    Matrix c = {p->out_dtype, p->n, p->m, p->ldc, p->c_stride};
    TRY(make_layout(e, lt, p, b, &product->a));
    TRY(make_layout(e, lt, p, a, &product->b));
    TRY(make_layout(e, lt, p, c, &product->c));
    CHECK(preference_make, &preference);
    InfCode code = choose(e, lt, p, product, &at, preference);
    lt->call.preference_free(preference);
    return code;
}

/* Where a region begins differs from task to task, and from microbatch to microbatch. */
static void add_windows(const Plan *plan, CuAddress bits[PLAN_REGION_count]) {
    for (uint32_t p = 0; p < plan->nprogram; p++) {
        const PlanRank *rank = &plan->program[p].rank[plan->rank];
        for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++)
            for (int w = 0; w < PLAN_WINDOW_COUNT; w++)
                bits[inf_window_region((PlanWindow)w)] |= (CuAddress)plan->task[i].window[w];
    }
    if (plan->ordered) bits[PLAN_REGION_grad] |= (CuAddress)plan->ordered->grad_bytes;
}

InfCode inf_lt_prepare(InfError *e, InfLt *lt, const CuAddress base[PLAN_REGION_count],
                       CuAddress workspace) {
    CuAddress bits[PLAN_REGION_count];
    lt->workspace = workspace;
    memcpy(bits, base, sizeof bits);
    add_windows(lt->plan, bits);
    for (uint32_t i = 0; i < lt->plan->nmatmul; i++) TRY(prepare_one(e, lt, i, bits));
    return INF_OK;
}

InfCode inf_lt_run(InfError *e, InfLt *lt, uint32_t index, void *const *arg, CuStream stream) {
    const PlanMatmul *p = &lt->plan->matmul[index];
    const Product *product = &lt->product[index];
    float alpha = 1.0f, beta = p->beta ? 1.0f : 0.0f;
    void *out = arg[p->out], *old = p->beta ? arg[p->old] : out;
    void *workspace = (void *)(uintptr_t)lt->workspace;
    if (has_bias(p))
        CHECK(desc_set, product->desc, LT_DESC_BIAS_POINTER, &arg[p->bias], sizeof arg[p->bias]);
    CHECK(matmul, lt->handle, product->desc, &alpha, arg[p->b], product->a, arg[p->a], product->b,
          &beta, old, product->c, out, product->c, &product->algorithm, workspace,
          INF_LT_WORKSPACE_BYTES, stream);
    return INF_OK;
}

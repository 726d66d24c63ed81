/* cublaslt.c - the fake matrix library: column-major products with plain loops, as cuBLASLt's
 * documentation defines them. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_types.h"
#include "tests/runtime/fake/fake.h"

enum { INVALID = 7, NOT_SUPPORTED = 15, ALGORITHM = 0x5eed };

typedef struct Desc {
    int compute, transpose_a, transpose_b, epilogue;
    uint64_t bias;
} Desc;

typedef struct Layout {
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batch;
} Layout;

typedef struct Preference {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
} Preference;

typedef struct Product {
    Desc desc;
    Layout a, b, c, d;
    float alpha, beta;
    const float *in_a, *in_b, *in_c;
    float *out;
} Product;

int cublasLtCreate(void **handle) {
    *handle = malloc(1);
    return 0;
}

int cublasLtDestroy(void *handle) {
    free(handle);
    return 0;
}

int cublasLtMatmulDescCreate(Desc **out, int compute, int scale) {
    *out = calloc(1, sizeof **out);
    (*out)->compute = compute;
    (*out)->epilogue = LT_EPILOGUE_DEFAULT;
    return scale == LT_TYPE_F32 ? 0 : INVALID;
}

int cublasLtMatmulDescDestroy(Desc *desc) {
    free(desc);
    return 0;
}

int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t bytes) {
    bool wide = attribute == LT_DESC_BIAS_POINTER;
    if (bytes != (wide ? 8u : 4u)) return INVALID;
    if (wide) memcpy(&desc->bias, value, 8);
    if (attribute == LT_DESC_TRANSPOSE_A) memcpy(&desc->transpose_a, value, 4);
    if (attribute == LT_DESC_TRANSPOSE_B) memcpy(&desc->transpose_b, value, 4);
    if (attribute == LT_DESC_EPILOGUE) memcpy(&desc->epilogue, value, 4);
    return 0;
}

int cublasLtMatrixLayoutCreate(Layout **out, int type, uint64_t rows, uint64_t columns,
                               int64_t ld) {
    *out = malloc(sizeof **out);
    **out = (Layout){rows, columns, ld, 0, 1};
    return type == LT_TYPE_F32 && ld >= (int64_t)rows ? 0 : INVALID;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) {
    free(layout);
    return 0;
}

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value,
                                     size_t bytes) {
    if (bytes != (attribute == LT_LAYOUT_BATCH_COUNT ? 4u : 8u)) return INVALID;
    if (attribute == LT_LAYOUT_BATCH_COUNT) memcpy(&layout->batch, value, 4);
    if (attribute == LT_LAYOUT_BATCH_STRIDE) memcpy(&layout->stride, value, 8);
    return 0;
}

int cublasLtMatmulPreferenceCreate(Preference **out) {
    *out = calloc(1, sizeof **out);
    return 0;
}

int cublasLtMatmulPreferenceDestroy(Preference *preference) {
    free(preference);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value,
                                         size_t bytes) {
    if (bytes != (attribute == LT_PREFER_WORKSPACE_BYTES ? 8u : 4u)) return INVALID;
    if (attribute == LT_PREFER_WORKSPACE_BYTES) memcpy(&preference->workspace, value, 8);
    if (attribute == LT_PREFER_REDUCTIONS) memcpy(&preference->reductions, value, 4);
    if (attribute >= LT_PREFER_ALIGNMENT_A && attribute <= LT_PREFER_ALIGNMENT_D)
        memcpy(&preference->alignment[attribute - LT_PREFER_ALIGNMENT_A], value, 4);
    return 0;
}

/* An algorithm that remembers how its operands must be aligned. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *desc, Layout *a, Layout *b, Layout *c,
                                   Layout *d, Preference *preference, int wanted,
                                   LtHeuristic *found, int *count) {
    (void)handle;
    if (!desc || !a || !b || !c || !d || wanted < 1) return INVALID;
    if (preference->reductions != LT_REDUCTIONS_IN_WORKSPACE || preference->workspace < 1 << 20)
        return NOT_SUPPORTED;
    found->algorithm.data[0] = ALGORITHM;
    for (int i = 0; i < 4; i++) found->algorithm.data[1 + i] = preference->alignment[i];
    found->state = 0;
    *count = 1;
    return 0;
}

static float activate(float x, int epilogue) {
    bool relu = epilogue == LT_EPILOGUE_RELU || epilogue == LT_EPILOGUE_RELU_BIAS;
    bool gelu = epilogue == LT_EPILOGUE_GELU || epilogue == LT_EPILOGUE_GELU_BIAS;
    if (relu) return x < 0 ? 0 : x; /* NaN stays NaN: measured on an H200 */
    float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return gelu ? 0.5f * x * (1 + tanhf(inner)) : x;
}

static bool adds_bias(int epilogue) {
    return epilogue == LT_EPILOGUE_BIAS || epilogue == LT_EPILOGUE_RELU_BIAS ||
           epilogue == LT_EPILOGUE_GELU_BIAS;
}

static float element(const float *at, const Layout *l, bool transposed, uint64_t row,
                     uint64_t column) {
    uint64_t r = transposed ? column : row, c = transposed ? row : column;
    return at[r + c * (uint64_t)l->ld];
}

static void run_product(void *data) {
    Product *p = data;
    uint64_t depth = p->desc.transpose_a ? p->a.rows : p->a.columns;
    const float *bias = fake_pointer(p->desc.bias);
    for (int64_t i = 0; i < p->d.batch; i++)
        for (uint64_t r = 0; r < p->d.rows; r++)
            for (uint64_t c = 0; c < p->d.columns; c++) {
                float sum = 0;
                for (uint64_t k = 0; k < depth; k++)
                    sum += element(p->in_a + i * p->a.stride, &p->a, p->desc.transpose_a, r, k) *
                           element(p->in_b + i * p->b.stride, &p->b, p->desc.transpose_b, k, c);
                sum *= p->alpha;
                if (p->beta != 0)
                    sum += p->beta * element(p->in_c + i * p->c.stride, &p->c, false, r, c);
                if (adds_bias(p->desc.epilogue)) sum += bias[r];
                p->out[i * p->d.stride + (int64_t)r + (int64_t)c * p->d.ld] =
                    activate(sum, p->desc.epilogue);
            }
    free(p);
}

int cublasLtMatmul(void *handle, Desc *desc, const float *alpha, uint64_t a, Layout *a_layout,
                   uint64_t b, Layout *b_layout, const float *beta, uint64_t c, Layout *c_layout,
                   uint64_t d, Layout *d_layout, const LtAlgorithm *algorithm, void *workspace,
                   size_t workspace_bytes, void *stream) {
    const uint64_t at[4] = {a, b, c, d};
    Product *p = malloc(sizeof *p);
    (void)handle;
    if (algorithm->data[0] != ALGORITHM || !workspace || workspace_bytes < 1 << 20) return INVALID;
    for (int i = 0; i < 4; i++)
        if (at[i] % algorithm->data[1 + i] != 0) return NOT_SUPPORTED;
    *p = (Product){.desc = *desc,
                   .a = *a_layout,
                   .b = *b_layout,
                   .c = *c_layout,
                   .d = *d_layout,
                   .alpha = *alpha,
                   .beta = *beta,
                   .in_a = fake_pointer(a),
                   .in_b = fake_pointer(b),
                   .in_c = fake_pointer(c),
                   .out = fake_pointer(d)};
    fake_enqueue(stream, run_product, p);
    return 0;
}

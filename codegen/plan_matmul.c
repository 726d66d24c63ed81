/* plan_matmul.c - a matrix product with its epilogue as a row for the device's library.
 *
 * Reads   the body of a kernel that fuse left to the library: the product, then a bias along the
 *         last axis, then an activation; or the product and an old value; then rounding to bf16
 *         (passes/fuse_target.c). Operands in bf16 stand there as casts to f32.
 */
#include "codegen/loop.h"
#include "codegen/program.h"
#include "ir/split.h"

/* What a value of the body is in memory, seen through widening and a broadcast. */
static Val stored(const Graph *body, Val v, bool *spread) {
    for (const Node *n = val_node(body, v); n != NULL; n = val_node(body, v)) {
        LOOP_ASSERT(n->op == OP_cast || n->op == OP_broadcast);
        if (n->op == OP_broadcast) *spread = true;
        v = n->in[0];
    }
    return v;
}

static uint8_t argument(const Graph *body, Val v) {
    bool spread = false;
    return (uint8_t)body->val[stored(body, v, &spread).id].result;
}

static uint8_t dtype_of(const Graph *body, Val v) {
    bool spread = false;
    return val_info(body, stored(body, v, &spread))->dtype == DT_bf16 ? PLAN_bf16 : PLAN_f32;
}

static void set_sizes(PlanMatmul *m, const Graph *body, const Node *n) {
    MatmulSplit s = split_matmul(body, n);
    *m = (PlanMatmul){.m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .batch = s.batch,
                      .ta = s.ta,
                      .tb = s.tb,
                      .dtype = dtype_of(body, n->in[0]),
                      .tf32 = body->mod->train.tf32,
                      .a = argument(body, n->in[0]),
                      .b = argument(body, n->in[1]),
                      .out = (uint8_t)body->nin,
                      .lda = s.ta ? s.m : s.k,
                      .ldb = s.tb ? s.k : s.n,
                      .ldc = s.n,
                      .a_stride = s.m * s.k,
                      .b_stride = s.k * s.n,
                      .c_stride = s.m * s.n};
}

static void set_add(PlanMatmul *m, const Graph *body, const Node *n, Val product) {
    Val other = n->in[n->in[0].id == product.id ? 1 : 0];
    bool spread = false;
    stored(body, other, &spread);
    if (spread) {
        m->bias = argument(body, other);
        m->epilogue = PLAN_EPILOGUE_bias;
    } else {
        m->old = argument(body, other);
        m->beta = 1;
    }
}

PlanMatmul plan_matmul(const Graph *body) {
    PlanMatmul m = {0};
    Val last = {0};
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        bool bias = m.epilogue == PLAN_EPILOGUE_bias;
        switch (n->op) {
        case OP_broadcast: continue;
        case OP_cast:
            if (last.id == 0 || n->in[0].id != last.id) continue; /* widens an operand */
            m.out_dtype = PLAN_bf16;
            break;
        case OP_matmul: set_sizes(&m, body, n); break;
        case OP_add: set_add(&m, body, n, last); break;
        case OP_relu: m.epilogue = bias ? PLAN_EPILOGUE_relu_bias : PLAN_EPILOGUE_relu; break;
        case OP_gelu_tanh: m.epilogue = bias ? PLAN_EPILOGUE_gelu_bias : PLAN_EPILOGUE_gelu; break;
        default: loop_broken(__FILE__, __LINE__, op_name(n->op));
        }
        last = n->out;
    }
    LOOP_ASSERT(body->nout == 1 && body->out[0].id == last.id);
    return m;
}

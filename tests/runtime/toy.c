/* toy.c - a plan written by hand: a softmax classifier of 2 x 2 images. */
#include "tests/runtime/toy.h"

#include <math.h>
#include <string.h>

enum { FEATURES = 4, CLASSES = 2, BATCH = 4, EVAL_BATCH = 3 };
enum { LOSS_SUM = 64, LOSS_COUNT = 68, HIT_SUM = 72, HIT_COUNT = 76, NORM = 80, UPDATE_OK = 84 };
enum { BIAS = 512, FLAT = 1024, LABEL = 64, VALID = 128 };

static float row_loss(const float *logit, int32_t label) {
    float top = fmaxf(logit[0], logit[1]);
    float sum = expf(logit[0] - top) + expf(logit[1] - top);
    return top + logf(sum) - logit[label];
}

static void forward(void *const *arg, int rows, int add) {
    const float *w = arg[0], *b = arg[1], *x = arg[2];
    const int32_t *label = arg[3];
    float *logit = arg[4], *sum = arg[5], *count = arg[6], loss = 0, n = 0;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < CLASSES; c++) {
            logit[r * CLASSES + c] = b[c];
            for (int k = 0; k < FEATURES; k++)
                logit[r * CLASSES + c] += w[c * FEATURES + k] * x[r * FEATURES + k];
        }
        if (label[r] == INF_TARGET_PAD) continue;
        loss += row_loss(logit + r * CLASSES, label[r]);
        n += 1;
    }
    *sum = add ? *sum + loss : loss;
    *count = add ? *count + n : n;
}

static void forward_first(void *const *arg, const InfEnv *env) {
    (void)env;
    forward(arg, BATCH, 0);
}

static void forward_add(void *const *arg, const InfEnv *env) {
    (void)env;
    forward(arg, BATCH, 1);
}

static void backward(void *const *arg, int add) {
    const float *x = arg[0], *logit = arg[2];
    const int32_t *label = arg[1];
    float *gw = arg[3], *gb = arg[4];
    for (int c = 0; c < CLASSES; c++) {
        float g[FEATURES] = {0}, bias = 0;
        for (int r = 0; r < BATCH; r++) {
            const float *l = logit + r * CLASSES;
            float p = 1.0f / (1.0f + expf(l[1 - c] - l[c])) - (label[r] == c ? 1.0f : 0.0f);
            bias += p;
            for (int k = 0; k < FEATURES; k++) g[k] += p * x[r * FEATURES + k];
        }
        gb[c] = add ? gb[c] + bias : bias;
        for (int k = 0; k < FEATURES; k++)
            gw[c * FEATURES + k] = add ? gw[c * FEATURES + k] + g[k] : g[k];
    }
}

static void backward_first(void *const *arg, const InfEnv *env) {
    (void)env;
    backward(arg, 0);
}

static void backward_add(void *const *arg, const InfEnv *env) {
    (void)env;
    backward(arg, 1);
}

static void update(void *const *arg, const InfEnv *env) {
    float *w = arg[0], *g = arg[1], *v = arg[2], *scalar = arg[3], square = 0;
    float scale = 1.0f / scalar[LOSS_COUNT / 4];
    (void)env;
    for (int i = 0; i < FLAT / 4; i++) square += g[i] * scale * g[i] * scale;
    scalar[NORM / 4] = sqrtf(square);
    scalar[UPDATE_OK / 4] = isfinite(square) && isfinite(scalar[LOSS_SUM / 4]) ? 1.0f : 0.0f;
    for (int i = 0; i < FLAT / 4 && scalar[UPDATE_OK / 4] != 0.0f; i++) {
        v[i] = 0.5f * v[i] + g[i] * scale;
        w[i] -= scalar[HOST_lr] * v[i];
    }
}

static void evaluate(void *const *arg, const InfEnv *env) {
    const float *logit = arg[4], *valid = arg[7];
    const int32_t *label = arg[3];
    float *hits = arg[8], *count = arg[9];
    (void)env;
    forward(arg, EVAL_BATCH, 0);
    *hits = *count = 0;
    for (int r = 0; r < EVAL_BATCH; r++) {
        int best = logit[r * CLASSES + 1] > logit[r * CLASSES];
        *hits += valid[r] * (best == label[r] ? 1.0f : 0.0f);
        *count += valid[r];
    }
}

#define KERNEL(called, function, kind_of, at, b, f)                                                \
    { .name = called, .fn = function, .form = kind_of, .lines = at, .bytes = b, .flops = f }
static const PlanKernel kernels[] = {
    KERNEL("forward", forward_first, "rows", "3:1", 200, 64),
    KERNEL("forward_add", forward_add, "rows", "3:1", 200, 64),
    KERNEL("backward", backward_first, "rows", "3:1", 200, 64),
    KERNEL("backward_add", backward_add, "rows", "3:1", 200, 64),
    KERNEL("update", update, "elementwise", "5:1", 3072, 512),
    KERNEL("evaluate", evaluate, "rows", "3:1", 200, 64),
};

#define AT(kind, bytes)                                                                            \
    { .offset = (bytes), .region = PLAN_REGION_##kind }
static const PlanArg args[] = {
    AT(param, 0),
    AT(param, BIAS),
    AT(data, 0),
    AT(data, LABEL),
    AT(slot, 0),
    AT(scalar, LOSS_SUM),
    AT(scalar, LOSS_COUNT),
    AT(data, VALID),
    AT(scalar, HIT_SUM),
    AT(scalar, HIT_COUNT),
    /* 10: backward */
    AT(data, 0),
    AT(data, LABEL),
    AT(slot, 0),
    AT(grad, 0),
    AT(grad, BIAS),
    /* 15: update */
    AT(param, 0),
    AT(grad, 0),
    AT(state, 0),
    AT(scalar, 0),
};

#define LAUNCH(k, first, n)                                                                        \
    { .kind = STEP_LAUNCH, .kernel = (k), .arg = (first), .narg = (n) }
static const PlanStep steps[] = {
    LAUNCH(0, 0, 7),  LAUNCH(2, 10, 5), LAUNCH(1, 0, 7),
    LAUNCH(3, 10, 5), LAUNCH(4, 15, 4), LAUNCH(5, 0, 10),
};

static const PlanChunk chunks[] = {
    {"forward", 0, 1},   {"backward", 1, 2}, {"forward+", 2, 3},
    {"backward+", 3, 4}, {"update", 4, 5},   {"eval", 5, 6},
};

static const PlanTask tasks[] = {
    {PTASK_forward, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0},
    {PTASK_backward, 0, 0, 0, 1, 0, 0, {0}, 0, 0, 0, 0},
    {PTASK_forward, 0, 0, 1, 2, 0, 0, {0}, 0, 0, 0, 0},
    {PTASK_backward, 0, 0, 1, 3, 0, 0, {0}, 0, 0, 0, 0},
    {PTASK_update, -1, -1, -1, 4, 0, 0, {0}, 0, 0, 0, 0},
    {PTASK_forward, 0, 0, 0, 5, 0, 0, {0}, 0, 0, 0, 0},
};

static const PlanRank train_rank[] = {{0, 5}}, eval_rank[] = {{5, 1}};

static const PlanParam params[] = {
    {.name = "fc.weight",
     .offset = 0,
     .ndim = 2,
     .dim = {2, 4},
     .stored = {2, 4},
     .init = PLAN_INIT_uniform,
     .trainable = 1,
     .init_a = 0.5,
     .uses = 1,
     .place = "2:3"},
    {.name = "fc.bias",
     .offset = BIAS,
     .ndim = 1,
     .dim = {2},
     .stored = {2},
     .init = PLAN_INIT_zeros,
     .trainable = 1,
     .uses = 1,
     .place = "2:3"},
};

static const PlanAlias aliases[] = {{"head.weight", 0}};

#define INPUTS(n)                                                                                  \
    {.name = "image",                                                                              \
     .kind = PLAN_INPUT_image,                                                                     \
     .dtype = PLAN_f32,                                                                            \
     .ndim = 4,                                                                                    \
     .dim = {n, 1, 2, 2},                                                                          \
     .at = AT(data, 0)},                                                                           \
    {                                                                                              \
        .name = "label", .kind = PLAN_INPUT_label, .dtype = PLAN_i32, .ndim = 1, .dim = {n},       \
        .limit = CLASSES, .ignore = INT64_MIN, .at = AT(data, LABEL)                               \
    }

static const PlanInput train_inputs[] = {INPUTS(BATCH)};
static const PlanInput eval_inputs[] = {
    INPUTS(EVAL_BATCH),
    {.name = "valid",
     .kind = PLAN_INPUT_valid,
     .dtype = PLAN_f32,
     .ndim = 1,
     .dim = {EVAL_BATCH},
     .at = AT(data, VALID)},
};

static const PlanMetric train_metrics[] = {{"loss", LOSS_SUM, LOSS_COUNT}};
static const PlanMetric eval_metrics[] = {{"loss", LOSS_SUM, LOSS_COUNT},
                                          {"accuracy", HIT_SUM, HIT_COUNT}};
static const PlanOutput train_outputs[] = {
    {.name = "logits", .dtype = PLAN_f32, .ndim = 2, .dim = {BATCH, CLASSES}, .at = AT(slot, 0)},
};

static const PlanProgram programs[] = {
    {.name = "train",
     .batch = BATCH,
     .microbatches = 2,
     .input = train_inputs,
     .ninput = 2,
     .metric = train_metrics,
     .nmetric = 1,
     .output = train_outputs,
     .noutput = 1,
     .rank = train_rank},
    {.name = "eval",
     .batch = EVAL_BATCH,
     .microbatches = 1,
     .input = eval_inputs,
     .ninput = 3,
     .metric = eval_metrics,
     .nmetric = 2,
     .rank = eval_rank},
};

static const PlanSetting settings[] = {
    {"train.B", "4"},
    {"train.microbatches", "2"},
    {"train.optimizer", "sgd"},
    {"eval.B", "3"},
};

static const PlanBuffer buffers[] = {
    {"fc weight", "2:3", PLAN_REGION_param, 32},
    {"fc matmul", "3:12", PLAN_REGION_slot, 32},
};

const Plan toy_plan = {
    .version = PLAN_VERSION,
    .ranks = 1,
    .model = "toy",
    .file = "toy.it",
    .target = "cpu",
    .compiler = "0.1.0",
    .cpu_features = "",
    .hash = 0x1234,
    .dp = 1,
    .tp = 1,
    .pp = 1,
    .vpp = 1,
    .pipeline = "1f1b",
    .schedule_summary = "1x1x2 1f1b: acyclic",
    .region_bytes = {[PLAN_REGION_param] = FLAT,
                     [PLAN_REGION_grad] = FLAT,
                     [PLAN_REGION_state] = FLAT,
                     [PLAN_REGION_scalar] = 128,
                     [PLAN_REGION_data] = 256,
                     [PLAN_REGION_slot] = 64},
    .flat_bytes = FLAT,
    .state_bytes = FLAT,
    .nstate = 1,
    .grad_norm = NORM,
    .update_ok = UPDATE_OK,
    .param = params,
    .nparam = 2,
    .alias = aliases,
    .nalias = 1,
    .kernel = kernels,
    .nkernel = 6,
    .arg = args,
    .step = steps,
    .chunk = chunks,
    .nchunk = 6,
    .task = tasks,
    .program = programs,
    .nprogram = 2,
    .train = {.data = {PLAN_DATA_mnist, "/nonexistent/toy", "train"},
              .eval_data = {PLAN_DATA_mnist, "/nonexistent/toy", "test"},
              .eval_present = 1,
              .steps = -1,
              .epochs = 2,
              .seed = 7,
              .optimizer = PLAN_OPTIM_sgd,
              .schedule = PLAN_SCHED_constant,
              .lr = 0.5,
              .dtype = "f32"},
    .setting = settings,
    .nsetting = 4,
    .buffer = buffers,
    .nbuffer = 2,
};

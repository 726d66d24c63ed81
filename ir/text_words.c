/* text_words.c - the words of the IR's text; see text_words.h. */
#include "ir/text_words.h"

const RoleWord text_role[ROLE_count] = {
    [ROLE_none] = {"none", false},
    [ROLE_data] = {"data", true},
    [ROLE_valid] = {"valid", false},
    [ROLE_weight] = {"weight", true},
    [ROLE_weight_copy] = {"weight_copy", true},
    [ROLE_grad] = {"grad", true},
    [ROLE_loss_sum] = {"loss_sum", false},
    [ROLE_loss_count] = {"loss_count", false},
    [ROLE_metric_sum] = {"metric_sum", true},
    [ROLE_metric_count] = {"metric_count", true},
    [ROLE_output] = {"output", true},
    [ROLE_flat_weight] = {"flat_weight", true},
    [ROLE_flat_grad] = {"flat_grad", true},
    [ROLE_flat_state] = {"flat_state", true},
    [ROLE_flat_copy] = {"flat_copy", true},
    [ROLE_blocks] = {"blocks", true},
    [ROLE_scalar] = {"scalar", true},
    [ROLE_squares] = {"squares", true},
    [ROLE_grad_norm] = {"grad_norm", false},
    [ROLE_update_ok] = {"update_ok", false},
    [ROLE_recv] = {"recv", true},
    [ROLE_send] = {"send", true},
    [ROLE_recv_grad] = {"recv_grad", true},
    [ROLE_send_grad] = {"send_grad", true},
    [ROLE_cache] = {"cache", true},
    [ROLE_position] = {"position", false},
    [ROLE_last] = {"last", false},
};

const char *const text_region[REGION_count] = {
    [REGION_none] = "none",           [REGION_param] = "param",
    [REGION_grad] = "grad",           [REGION_state] = "state",
    [REGION_copy] = "copy",           [REGION_scalar] = "scalar",
    [REGION_data] = "data",           [REGION_slot] = "slot",
    [REGION_scratch] = "scratch",     [REGION_cache] = "cache",
    [REGION_message] = "message",     [REGION_sum] = "sum",
    [REGION_recv] = "recv",           [REGION_send] = "send",
    [REGION_recv_grad] = "recv_grad", [REGION_send_grad] = "send_grad",
};

const char text_phase[] = {[PHASE_F] = 'F', [PHASE_I] = 'I', [PHASE_W] = 'W', [PHASE_U] = 'U'};

const char *const text_init[TEXT_INIT_COUNT] = {[INIT_zeros] = "zeros",
                                                [INIT_ones] = "ones",
                                                [INIT_normal] = "normal",
                                                [INIT_uniform] = "uniform"};

static const char *const dtype_words[] = {
    [DT_none] = "", [DT_f32] = "f32", [DT_bf16] = "bf16", [DT_bf16 + 1] = NULL};

static const char *const data_words[] = {
    [DATA_none] = "none", [DATA_mnist] = "mnist", [DATA_tokens] = "tokens", NULL};

static const char *const optimizer_words[] = {
    [OPTIM_sgd] = "sgd", [OPTIM_adam] = "adam", [OPTIM_adamw] = "adamw", NULL};

static const char *const schedule_words[] = {
    [SCHED_constant] = "constant",         [SCHED_linear] = "linear", [SCHED_cosine] = "cosine",
    [SCHED_inverse_sqrt] = "inverse_sqrt", [SCHED_wsd] = "wsd",       NULL};

#define FIELD(key, kind, field)                                                                    \
    { key, SETTING_##kind, offsetof(Module, field), NULL }
#define WORD(key, field, words)                                                                    \
    { key, SETTING_word, offsetof(Module, field), words }

const Setting text_setting[] = {
    FIELD("name", string, name),
    WORD("train.data", train.data.kind, data_words),
    FIELD("train.data.path", string, train.data.path),
    FIELD("train.data.split", string, train.data.split),
    FIELD("train.batch", int64, train.batch),
    FIELD("train.microbatches", int64, train.microbatches),
    FIELD("train.chunk_loss", int64, train.chunk_loss),
    FIELD("train.steps", int64, train.steps),
    FIELD("train.epochs", int64, train.epochs),
    FIELD("train.seed", int64, train.seed),
    FIELD("train.clip", float, train.clip),
    WORD("train.dtype", train.dtype, dtype_words),
    FIELD("train.tf32", bool, train.tf32),
    FIELD("train.recompute", bool, train.recompute),
    WORD("train.optimizer", train.optimizer.kind, optimizer_words),
    FIELD("train.optimizer.lr", float, train.optimizer.lr),
    FIELD("train.optimizer.momentum", float, train.optimizer.momentum),
    FIELD("train.optimizer.nesterov", bool, train.optimizer.nesterov),
    FIELD("train.optimizer.beta1", float, train.optimizer.beta1),
    FIELD("train.optimizer.beta2", float, train.optimizer.beta2),
    FIELD("train.optimizer.eps", float, train.optimizer.eps),
    FIELD("train.optimizer.decay", float, train.optimizer.decay),
    WORD("train.schedule", train.schedule.kind, schedule_words),
    FIELD("train.schedule.warmup", int64, train.schedule.warmup),
    FIELD("train.schedule.floor", float, train.schedule.floor),
    FIELD("train.schedule.decay_share", float, train.schedule.decay_share),
    FIELD("eval.present", bool, eval.present),
    WORD("eval.data", eval.data.kind, data_words),
    FIELD("eval.data.path", string, eval.data.path),
    FIELD("eval.data.split", string, eval.data.split),
    FIELD("eval.batch", int64, eval.batch),
    FIELD("eval.every", int64, eval.every),
    FIELD("generate.present", bool, generate.present),
    FIELD("generate.batch", int64, generate.batch),
    FIELD("generate.context", int64, generate.context),
    FIELD("generate.tokenizer", string, generate.tokenizer),
    FIELD("generate.temperature", float, generate.temperature),
    FIELD("generate.top_k", int64, generate.top_k),
    FIELD("generate.length", int64, generate.length),
    FIELD("parallel.dp", int64, parallel.dp),
    FIELD("parallel.tp", int64, parallel.tp),
    FIELD("parallel.pp", int64, parallel.pp),
    FIELD("parallel.vpp", int64, parallel.vpp),
    FIELD("parallel.bucket_bytes", int64, parallel.bucket_bytes),
    FIELD("parallel.zero", int64, parallel.zero),
    FIELD("parallel.ordered", bool, parallel.ordered),
    FIELD("parallel.bucketed", bool, parallel.bucketed),
    FIELD("parallel.loopback", bool, parallel.loopback),
    FIELD("parallel.pipeline", string, parallel.pipeline),
    FIELD("parallel.group", int64, parallel.group),
    FIELD("parallel.schedule_file", string, parallel.schedule_file),
    FIELD("checkpoint.prefix", string, checkpoint_prefix),
    FIELD("checkpoint.skip", string, checkpoint_skip),
    FIELD("layout.flat_elems", int64, flat_elems),
    FIELD("layout.grad_elems", int64, grad_elems),
    FIELD("layout.states", int, nstate),
    FIELD("layout.streams", int, nstream),
};

const int text_setting_count = (int)(sizeof text_setting / sizeof text_setting[0]);

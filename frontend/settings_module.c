/* settings_module.c - settings into the module: what the passes, the plan and the runtime read. */
#include "frontend/lower.h"

#include <inttypes.h>
#include <string.h>

const Value *settings_value(const Lower *l, KeyId k) { return &l->settings.key[k]; }

int64_t settings_int(const Lower *l, KeyId k, int64_t fallback) {
    const Value *v = settings_value(l, k);
    return v->kind == VALUE_int ? v->dim.value : fallback;
}

const char *settings_text(const Lower *l, KeyId k) {
    const Value *v = settings_value(l, k);
    return v->kind == VALUE_str ? v->s : NULL;
}

/* A tuple of words as one text, a blank between two; NULL for none. */
static const char *key_words(const Lower *l, KeyId k) {
    const Value *v = settings_value(l, k);
    const char *text = NULL;
    for (int i = 0; v->kind == VALUE_tuple && i < v->n; i++)
        text = text == NULL ? v->item[i].s : arena_printf(l->arena, "%s %s", text, v->item[i].s);
    return v->kind == VALUE_str ? v->s : text;
}

/* --- data, optimizer, schedule --- */

static DataSource data_source(const Value *v) {
    if (v->kind != VALUE_setting) return (DataSource){.kind = DATA_none};
    if (v->fn->id == SETFN_mnist)
        return (DataSource){.kind = DATA_mnist, .path = v->item[0].s, .split = v->item[1].s};
    return (DataSource){.kind = DATA_tokens, .path = v->item[0].s};
}

/* Where decay_if stands among the arguments of an optimizer; the rest is in this order too. */
enum { SGD_lr, SGD_momentum, SGD_nesterov, SGD_decay, SGD_decay_if };
enum { ADAM_lr, ADAM_betas, ADAM_eps, ADAM_decay, ADAM_decay_if };

static Optimizer optimizer_of(const Value *v) {
    const Value *arg = v->item;
    if (v->fn->id == SETFN_sgd)
        return (Optimizer){.kind = OPTIM_sgd,
                           .lr = arg[SGD_lr].number,
                           .momentum = arg[SGD_momentum].number,
                           .nesterov = arg[SGD_nesterov].truth,
                           .decay = arg[SGD_decay].number};
    return (Optimizer){.kind = v->fn->id == SETFN_adam ? OPTIM_adam : OPTIM_adamw,
                       .lr = arg[ADAM_lr].number,
                       .beta1 = arg[ADAM_betas].item[0].number,
                       .beta2 = arg[ADAM_betas].item[1].number,
                       .eps = arg[ADAM_eps].number,
                       .decay = arg[ADAM_decay].number};
}

static LrSchedule schedule_of(const Value *v) {
    static const struct {
        SettingId id;
        ScheduleKind kind;
    } kinds[] = {{SETFN_constant, SCHED_constant},
                 {SETFN_linear, SCHED_linear},
                 {SETFN_cosine, SCHED_cosine},
                 {SETFN_inverse_sqrt, SCHED_inverse_sqrt},
                 {SETFN_wsd, SCHED_wsd}};
    LrSchedule s = {.kind = SCHED_constant};
    if (v->kind != VALUE_setting) return s;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].id == v->fn->id) s.kind = kinds[i].kind;
    s.warmup = v->item[0].dim.value;
    s.floor = v->item[1].number;
    if (v->n > 2) s.decay_share = v->item[2].number;
    return s;
}

/* decay_if, a condition on each parameter: ndim and size of one tensor. */
static void choose_decay(Lower *l, const Value *optimizer) {
    const Ast *condition = optimizer->item[optimizer->n - 1].ast;
    Instance nowhere = {0};
    Space space = {.path = "", .key = ""};
    for (int i = 0; i < l->mod->nparam; i++) {
        Param *p = &l->mod->param[i];
        int ndim = type_info(l->mod->types, p->type)->ndim - p->nstack;
        int64_t size = 1;
        for (int k = 0; k < ndim; k++) size *= p->logical[k];
        Frame frame = {.instance = &nowhere, .space = &space};
        vec_push(l->arena, &frame.env,
                 (Binding){.name = "ndim", .value = value_int(dim_number(l->arena, ndim))});
        vec_push(l->arena, &frame.env,
                 (Binding){.name = "size", .value = value_int(dim_number(l->arena, size))});
        l->frame = &frame;
        Value v = expr_eval(l, condition);
        l->frame = NULL;
        if (v.kind != VALUE_bool && v.kind != VALUE_none)
            diag_error(l->diag, E019, condition->span, "decay_if must be true or false, got %s",
                       value_describe(l->arena, &v));
        if (v.kind != VALUE_bool) return;
        p->decay = v.truth;
    }
}

/* --- build settings --- */

static void record_build_settings(Lower *l) {
    Module *m = l->mod;
    for (uint32_t i = 0; i < l->settings.config.n; i++) {
        const ConfigEntry *c = &l->settings.config.data[i];
        if (c->value.kind != VALUE_none)
            module_add_build(m, c->name, value_text(l->arena, &c->value));
    }
    SectionId sections[] = {SECTION_train, SECTION_eval, SECTION_generate};
    for (size_t s = 0; s < 3; s++) {
        const DimValue *values = l->settings.dim_value[sections[s]];
        if (!l->settings.present[sections[s]]) continue;
        for (uint32_t i = 0; i < l->settings.dims.n; i++) {
            if (values[i].value == 0) continue;
            const char *name = arena_printf(l->arena, "%s.%s", settings_section_name(sections[s]),
                                            l->settings.dims.data[i].name);
            const Value *all = &values[i].all;
            module_add_build(m, name,
                             all->kind == VALUE_tuple
                                 ? value_text(l->arena, all)
                                 : arena_printf(l->arena, "%" PRId64, values[i].value));
        }
    }
    for (int k = 0; k < KEY_COUNT; k++) {
        const char *name = settings_build_key(l->arena, (KeyId)k);
        const Value *v = settings_value(l, (KeyId)k);
        if (name != NULL && v->kind != VALUE_none)
            module_add_build(m, name, value_text(l->arena, v));
    }
}

/* lower_generate.c sets the sizes. */
static void generate_settings(Lower *l) {
    GenerateSettings *g = &l->mod->generate;
    g->present = true;
    g->tokenizer = settings_text(l, KEY_generate_tokenizer);
    g->temperature = settings_value(l, KEY_generate_temperature)->number;
    g->top_k = settings_int(l, KEY_generate_top_k, 0);
    g->length = settings_int(l, KEY_generate_length, -1);
}

void settings_to_module(Lower *l) {
    Module *m = l->mod;
    const Value *optimizer = settings_value(l, KEY_train_optimizer);
    m->train.data = data_source(settings_value(l, KEY_train_data));
    m->train.microbatches = settings_int(l, KEY_train_microbatches, 1);
    m->train.chunk_loss = settings_int(l, KEY_train_chunk_loss, 0);
    m->train.steps = settings_int(l, KEY_train_steps, -1);
    m->train.epochs = settings_int(l, KEY_train_epochs, -1);
    m->train.seed = settings_int(l, KEY_train_seed, 0);
    m->train.clip = settings_value(l, KEY_train_clip)->number;
    const char *dtype = settings_text(l, KEY_train_dtype);
    m->train.dtype = dtype != NULL && strcmp(dtype, "bf16") == 0 ? DT_bf16 : DT_f32;
    m->train.tf32 = dtype != NULL && strcmp(dtype, "tf32") == 0;
    const char *recompute = settings_text(l, KEY_train_recompute);
    m->train.recompute = recompute != NULL && strcmp(recompute, "layer") == 0;
    m->train.schedule = schedule_of(settings_value(l, KEY_train_schedule));
    if (optimizer->kind == VALUE_setting) {
        m->train.optimizer = optimizer_of(optimizer);
        choose_decay(l, optimizer);
    } else if (l->settings.key_span[KEY_train_optimizer].file == 0) {
        DiagRef e = diag_error(l->diag, E009, l->settings.section_span[SECTION_train],
                               "section train needs 'optimizer'");
        diag_hint(l->diag, e, "optimizer = sgd(lr = 0.1)");
    }
    m->eval.present = l->settings.present[SECTION_eval];
    m->eval.data = data_source(settings_value(
        l, l->settings.key_span[KEY_eval_data].file != 0 ? KEY_eval_data : KEY_train_data));
    m->eval.every = settings_int(l, KEY_eval_every, 0);
    if (l->settings.present[SECTION_generate]) generate_settings(l);
    m->checkpoint_prefix = settings_text(l, KEY_checkpoint_prefix);
    m->checkpoint_skip = key_words(l, KEY_checkpoint_skip);
    settings_layout(l);
    record_build_settings(l);
}

/* lower.c - whole programs: blocks and model, one graph for each binding, loss and metrics. */
#include "frontend/lower.h"

#include <string.h>

/* --- declarations of the files --- */

static bool is_builtin(const char *name) {
    return layer_find(name) != NULL || function_find(name) != NULL;
}

static void add_block(Lower *l, const Ast *item) {
    const Ast *first = block_find(l, item->text);
    if (first != NULL) {
        diag_error(l->diag, E010, item->span, "block '%s' already declared at %s", item->text,
                   diag_place(l->diag, first->span, item->span));
    } else if (is_builtin(item->text)) {
        diag_error(l->diag, E010, item->span,
                   "'%s' is a layer or function of the language; choose another name", item->text);
    } else {
        vec_push(l->arena, &l->blocks, item);
    }
}

static void check_params(Lower *l, const Ast *block) {
    const Ast *params = block->child[0];
    for (uint32_t i = 0; i < params->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(params->child[i]->text, params->child[k]->text) != 0) continue;
            diag_error(l->diag, E010, params->child[i]->span, "'%s' already declared at %s",
                       params->child[i]->text,
                       diag_place(l->diag, params->child[k]->span, params->child[i]->span));
        }
}

static void collect_items(Lower *l) {
    for (uint32_t f = 0; f < l->program->files.n; f++) {
        const Ast *file = l->program->files.data[f];
        for (uint32_t i = 0; i < file->n; i++) {
            const Ast *item = file->child[i];
            if (item->kind == AST_block) add_block(l, item);
            if (item->kind == AST_block || item->kind == AST_model) check_params(l, item);
            if (item->kind != AST_model) continue;
            if (l->model != NULL)
                diag_error(l->diag, E010, item->span, "a second model: '%s' already declared at %s",
                           l->model->text, diag_place(l->diag, l->model->span, item->span));
            else
                l->model = item;
        }
    }
    l->block_used = ARENA_ARRAY(l->arena, bool, l->blocks.n + 1);
    if (l->model != NULL || l->program->files.n == 0) return;
    const Ast *main_file = l->program->files.data[0];
    DiagRef e = diag_error(l->diag, E029, (Span){main_file->span.file, 0, 0}, "there is no model");
    diag_hint(l->diag, e, "model NAME(x: f32[B, 4]) { ... return loss }");
}

/* --- one program --- */

bool lower_check_binding(Lower *l) {
    bool good = true;
    for (uint32_t i = 0; i < l->settings.dims.n; i++) {
        const DimDecl *d = &l->settings.dims.data[i];
        const DimValue *v = &l->settings.dim_value[l->section][i];
        if (!d->is_free || v->value > 0) continue;
        good = false;
        if (v->span.file != 0) continue; /* it had its message */
        DiagRef e =
            diag_error(l->diag, E014, d->span, "free dimension '%s' has no value in section '%s'",
                       d->name, settings_section_name(l->section));
        diag_hint(l->diag, e, "%s { %s = ... }, or a fixed size: dim %s = ...",
                  settings_section_name(l->section), d->name, d->name);
    }
    return good;
}

bool lower_data_params(Lower *l, const Instance *root, bool port, Value *args, int *n) {
    const Ast *params = l->model->child[0];
    Frame frame = {.instance = (Instance *)(uintptr_t)root, .space = root->root};
    bool good = true;
    l->frame = &frame;
    for (uint32_t i = 0; i < params->n; i++) {
        const Ast *p = params->child[i];
        TypeWant type;
        if (p->child[0]->kind != AST_type) continue;
        if (*n == ARGS_MAX) {
            diag_error(l->diag, E026, p->span, "a model has at most %d data parameters", ARGS_MAX);
            good = false;
            break;
        }
        if (!eval_type(l, p->child[0], &type)) {
            good = false;
            continue;
        }
        args[*n] = tensor_new(l, type.dtype, type.ndim, type.dims, (Val){0}, p->span);
        Port data = {.role = ROLE_data, .index = *n, .name = p->text};
        if (port) args[*n].val = graph_add_input(l->b.g, value_ir_type(l, &args[*n]), data);
        ++*n;
    }
    l->frame = NULL;
    return good;
}

static bool calls_function(const Ast *e, const char *name) {
    if (e->kind == AST_name && strcmp(e->text, name) == 0) return true;
    for (uint32_t i = 0; i < e->n; i++)
        if (calls_function(e->child[i], name)) return true;
    return false;
}

/* f32 [B]: only for functions that cannot see padding in their targets. */
static void add_valid_input(Lower *l, const Value *first) {
    bool wanted = calls_function(l->model, "mse");
    for (uint32_t i = 0; i < l->blocks.n; i++)
        wanted = wanted || calls_function(l->blocks.data[i], "mse");
    l->valid = (Val){0};
    if (!wanted || first->ndim == 0) return;
    int64_t batch = first->dims[0].value;
    l->valid = graph_add_input(l->b.g, type_intern(l->mod->types, DT_f32, 1, &batch),
                               (Port){.role = ROLE_valid});
}

void lower_weight_inputs(Lower *l) {
    l->weight = ARENA_ARRAY(l->arena, Val, l->mod->nparam + 1);
    for (int i = 0; i < l->mod->nparam; i++)
        l->weight[i] =
            graph_add_input(l->b.g, l->mod->param[i].type, (Port){.role = ROLE_weight, .index = i});
}

/* --- results --- */

static void output_mean(Lower *l, const Value *v, Role sum, Role count, int index,
                        const char *name) {
    Type scalar = type_intern(l->mod->types, DT_f32, 0, NULL);
    Val s = v->mean.sum, c = v->mean.count;
    if (s.id == 0) { /* a plain number: the mean over microbatches */
        s = build_cast(&l->b, v->val, DT_f32);
        c = build_const(&l->b, 1.0, scalar);
    }
    graph_add_output(l->b.g, s, (Port){.role = sum, .index = index, .name = name});
    graph_add_output(l->b.g, c, (Port){.role = count, .index = index, .name = name});
}

static const Ast *return_expr(const Ast *body, uint32_t i) {
    for (uint32_t k = body->n; k-- > 0;)
        if (body->child[k]->kind == AST_return && i < body->child[k]->n)
            return body->child[k]->child[i];
    return NULL;
}

const char *lower_result_name(Lower *l, const Value *v, uint32_t i) {
    const Ast *e = return_expr(l->model->child[2], i);
    if (e != NULL && e->kind == AST_name) return e->text;
    if (v->mean.metric != NULL) return v->mean.metric;
    return arena_printf(l->arena, "output%u", i);
}

/* The first result is the loss; in programs that do not train, means and numbers among the others
 * are metrics, tensors are outputs. */
static void add_outputs(Lower *l, const Value *results, int n) {
    const Value *loss = &results[0];
    if (loss->kind != VALUE_tensor || loss->ndim != 0 || !dtype_is_float(loss->dtype)) {
        DiagRef e =
            diag_error(l->diag, E019, loss->span,
                       "the first value that the model returns is the loss, a number; got %s",
                       value_describe(l->arena, loss));
        if (loss->kind == VALUE_tensor) diag_hint(l->diag, e, "mean(x) makes a number of a tensor");
        return;
    }
    output_mean(l, loss, ROLE_loss_sum, ROLE_loss_count, 0, NULL);
    if (l->training) return;
    int metrics = 0, outputs = 0;
    for (int i = 1; i < n; i++) {
        const Value *v = &results[i];
        const char *name = lower_result_name(l, v, (uint32_t)i);
        if (v->kind != VALUE_tensor) {
            diag_error(l->diag, E019, v->span, "the model returns tensors, got %s",
                       value_describe(l->arena, v));
        } else if (v->ndim == 0 && dtype_is_float(v->dtype)) {
            output_mean(l, v, ROLE_metric_sum, ROLE_metric_count, metrics++, name);
        } else {
            graph_add_output(l->b.g, v->val,
                             (Port){.role = ROLE_output, .index = outputs++, .name = name});
        }
    }
}

static void lower_binding(Lower *l, Instance *root, SectionId section) {
    Value args[ARGS_MAX];
    int n = 0;
    l->section = section;
    l->training = section == SECTION_train;
    l->call_count = 0;
    l->mod->nstream = 0; /* streams are numbered by site, alike in every program */
    if (!lower_check_binding(l)) return;
    l->b =
        (Builder){.g = graph_new(l->mod, settings_section_name(section)), .span = l->model->span};
    if (!lower_data_params(l, root, true, args, &n)) return;
    if (n == 0) {
        diag_error(l->diag, E029, l->model->span, "model '%s' has no data parameters",
                   l->model->text);
        return;
    }
    int64_t batch = args[0].ndim > 0 ? args[0].dims[0].value : 1;
    if (section == SECTION_train)
        l->mod->train.batch = batch;
    else
        l->mod->eval.batch = batch;
    add_valid_input(l, &args[0]);
    lower_weight_inputs(l);
    Value v = instance_call(l, root, args, n, l->model->span);
    if (section == SECTION_train) report_unused_members(l, root);
    if (v.kind == VALUE_none || l->diag->error_count > 0) return;
    if (v.kind == VALUE_tuple)
        add_outputs(l, v.item, v.n);
    else
        add_outputs(l, &v, 1);
    module_add_graph(l->mod, l->b.g);
}

void lower_program(Lower *l, const char *const *overrides, int n) {
    collect_items(l);
    settings_read(l, overrides, n);
    if (l->model == NULL) return;
    l->mod->name = l->model->text;
    l->section = SECTION_train;
    Instance *root = instance_new(l, l->model, NULL, NULL, NULL);
    if (root == NULL) return;
    lower_binding(l, root, SECTION_train);
    int streams = l->mod->nstream;
    if (l->diag->error_count == 0 && l->settings.present[SECTION_eval])
        lower_binding(l, root, SECTION_eval);
    if (l->diag->error_count == 0 && l->settings.present[SECTION_generate])
        lower_generate(l, root);
    l->mod->nstream = streams;
    settings_to_module(l);
    if (l->diag->error_count == 0) lint_program(l);
}

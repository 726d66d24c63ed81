/* settings_layout.c - the section parallel into the module; the layout's arithmetic (E020). */
#include "frontend/lower.h"

#include <inttypes.h>
#include <string.h>

static void check_pipeline(Lower *l) {
    static const struct {
        const char *name;
        int64_t vpp; /* 0: any */
    } rules[] = {{"1f1b", 0}, {"gpipe", 1}, {"zb-h1", 1}, {"zb-v", 2}};
    const ParallelSettings *p = &l->mod->parallel;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (p->pipeline == NULL || strcmp(rules[i].name, p->pipeline) != 0) continue;
        if (rules[i].vpp != 0 && rules[i].vpp != p->vpp)
            diag_error(l->diag, E020, l->settings.key_span[KEY_parallel_pipeline],
                       "pipeline %s needs vpp = %" PRId64 ", got vpp = %" PRId64, rules[i].name,
                       rules[i].vpp, p->vpp);
    }
}

static void check_global_batch(Lower *l) {
    int64_t want = settings_int(l, KEY_train_global_batch, 0), have = 0;
    const Module *m = l->mod;
    if (want == 0 || m->train.batch == 0) return;
    bool fits = !__builtin_mul_overflow(m->parallel.dp, m->train.microbatches, &have) &&
                !__builtin_mul_overflow(have, m->train.batch, &have);
    if (fits && have == want) return;
    diag_error(l->diag, E020, l->settings.key_span[KEY_train_global_batch],
               "global batch %" PRId64 " != %" PRId64 "*%" PRId64 "*%" PRId64
               " (dp * microbatches * B)",
               want, m->parallel.dp, m->train.microbatches, m->train.batch);
}

/* Tables larger than this would take longer to prove than to train. */
enum { UNITS_MAX = 1 << 22 };

static void check_size(Lower *l) {
    const ParallelSettings *p = &l->mod->parallel;
    int64_t units = 0;
    if (!__builtin_mul_overflow(p->pp, p->vpp, &units) &&
        !__builtin_mul_overflow(units, l->mod->train.microbatches, &units) && units <= UNITS_MAX)
        return;
    diag_error(l->diag, E020, l->settings.key_span[KEY_parallel_pp],
               "pp * vpp * microbatches = %" PRId64 " * %" PRId64 " * %" PRId64
               " is more than %d tasks of a kind",
               p->pp, p->vpp, l->mod->train.microbatches, UNITS_MAX);
}

/* Layouts that this version does not build are refused by name, after what is wrong in any. */
static void check_layout(Lower *l) {
    const ParallelSettings *p = &l->mod->parallel;
    const struct {
        bool asked;
        KeyId key;
        const char *what, *instead, *hint;
    } unbuilt[] = {
        {p->tp > 1, KEY_parallel_tp, "tp > 1", "keeps layers whole", "tp=1"},
        {p->dp > 1 && p->zero > 1, KEY_parallel_zero, "zero > 1", "shards the optimizer", "zero=1"},
    };
    const Value *heads = config_find(l, "n_head");
    uint32_t errors = l->diag->error_count;
    if (heads != NULL && heads->kind == VALUE_int && p->tp > 0 && heads->dim.value % p->tp != 0)
        diag_error(l->diag, E020, l->settings.key_span[KEY_parallel_tp],
                   "n_head %% tp != 0: %" PRId64 " heads on tp = %" PRId64, heads->dim.value,
                   p->tp);
    if (p->zero > 3)
        diag_error(l->diag, E020, l->settings.key_span[KEY_parallel_zero],
                   "zero is 0, 1, 2 or 3, got %" PRId64, p->zero);
    check_pipeline(l);
    check_global_batch(l);
    check_size(l);
    for (size_t i = 0; i < sizeof(unbuilt) / sizeof(unbuilt[0]) && l->diag->error_count == errors;
         i++) {
        if (!unbuilt[i].asked) continue;
        DiagRef e =
            diag_error(l->diag, E020, l->settings.key_span[unbuilt[i].key],
                       "%s is not built yet: this version %s", unbuilt[i].what, unbuilt[i].instead);
        diag_hint(l->diag, e, "-D parallel.%s", unbuilt[i].hint);
    }
}

/* The table to import, beside the file that names it. */
static void load_table(Lower *l) {
    ParallelSettings *p = &l->mod->parallel;
    p->schedule_span = l->settings.key_span[KEY_parallel_schedule];
    if (p->schedule_file == NULL) return;
    const char *from = source_get(l->sources, p->schedule_span.file)->name,
               *path = p->schedule_file;
    const char *slash = strrchr(from, '/'), *problem;
    bool missing;
    if (path[0] != '/' && slash != NULL)
        path = arena_printf(l->arena, "%.*s/%s", (int)(slash - from), from, path);
    uint32_t file = source_load(l->sources, path, &problem, &missing);
    if (file == 0) {
        DiagRef e = diag_error(l->diag, E023, p->schedule_span, "'%s' %s", path, problem);
        if (missing) diag_note(l->diag, e, "a table is looked for beside the file that names it");
        return;
    }
    p->schedule_text = source_get(l->sources, file)->text;
    p->schedule_bytes = source_get(l->sources, file)->bytes;
}

/* parallel.split, as numbers of layers. */
static void read_split(Lower *l) {
    const Value *v = settings_value(l, KEY_parallel_split);
    ParallelSettings *p = &l->mod->parallel;
    p->split_span = l->settings.key_span[KEY_parallel_split];
    if (v->kind == VALUE_none) return;
    int n = v->kind == VALUE_tuple ? v->n : 1;
    int64_t *layers = ARENA_ARRAY(l->arena, int64_t, n);
    for (int i = 0; i < n; i++) {
        layers[i] = v->kind == VALUE_tuple ? v->item[i].dim.value : v->dim.value;
        if (layers[i] >= 0) continue;
        diag_error(l->diag, E019, p->split_span, "split takes numbers >= 0, got %" PRId64,
                   layers[i]);
        return;
    }
    p->split = layers;
    p->nsplit = n;
}

void settings_layout(Lower *l) {
    const char *order = settings_text(l, KEY_parallel_order);
    const char *messages = settings_text(l, KEY_parallel_messages);
    const char *reduce = settings_text(l, KEY_parallel_reduce);
    l->mod->parallel =
        (ParallelSettings){.dp = settings_int(l, KEY_parallel_dp, 1),
                           .tp = settings_int(l, KEY_parallel_tp, 1),
                           .pp = settings_int(l, KEY_parallel_pp, 1),
                           .vpp = settings_int(l, KEY_parallel_vpp, 1),
                           .bucket_bytes = settings_int(l, KEY_parallel_bucket, 25000000),
                           .zero = settings_int(l, KEY_parallel_zero, 0),
                           .pipeline = settings_text(l, KEY_parallel_pipeline),
                           .group = settings_int(l, KEY_parallel_group, 0),
                           .schedule_file = settings_text(l, KEY_parallel_schedule),
                           .loopback = messages != NULL && strcmp(messages, "chunks") == 0,
                           .ordered = reduce != NULL && strcmp(reduce, "ordered") == 0,
                           .any_order = order != NULL && strcmp(order, "any") == 0};
    load_table(l);
    read_split(l);
    check_layout(l);
}

/* params_print.c - the list of parameters, for people and as JSON. */
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/params.h"
#include "runtime/safetensors.h"

/* One line of the list: a parameter, or another name of one. */
typedef struct Line {
    const char *name;
    const InfParam *param;
    bool alias;
} Line;

/* Whether `name` lies below the path `prefix` and, when asked, directly below. */
static bool selected(const char *name, const InfParamsFormat *f) {
    const char *rest = name;
    size_t length = f->prefix ? strlen(f->prefix) : 0;
    if (length > 0 && f->prefix[length - 1] == '.') length--;
    if (length > 0) {
        if (strncmp(name, f->prefix, length) != 0 || (name[length] != '.' && name[length] != '\0'))
            return false;
        rest = name + length + (name[length] == '.');
    }
    return !f->no_recurse || !strchr(rest, '.');
}

static int by_name(const void *a, const void *b) {
    const Line *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static Line *make_lines(const InfParams *all, const InfParamsFormat *f, int *count) {
    Line *lines = calloc((size_t)all->count + (size_t)all->naliases + 1, sizeof *lines);
    *count = 0;
    for (int i = 0; lines && i < all->count; i++)
        if (selected(all->param[i].name, f))
            lines[(*count)++] = (Line){all->param[i].name, &all->param[i], false};
    for (int i = 0; lines && f->aliases && i < all->naliases; i++)
        if (selected(all->alias[i].name, f))
            lines[(*count)++] = (Line){all->alias[i].name, all->alias[i].param, true};
    if (lines) qsort(lines, (size_t)*count, sizeof *lines, by_name);
    return lines;
}

static const char *shape_of(const PlanParam *b, char *text, size_t bytes) {
    uint64_t shape[PLAN_NDIM_MAX];
    for (int i = 0; i < b->ndim; i++) shape[i] = (uint64_t)b->dim[i];
    return inf_shape_text(shape, b->ndim, text, bytes);
}

static const char *init_of(const PlanParam *b, char *text, size_t bytes) {
    static const char *const names[] = {
        [PLAN_INIT_zeros] = "zeros",
        [PLAN_INIT_ones] = "ones",
        [PLAN_INIT_normal] = "normal",
        [PLAN_INIT_uniform] = "uniform",
    };
    if (b->init == PLAN_INIT_normal || b->init == PLAN_INIT_uniform)
        snprintf(text, bytes, "%s(%.6g)", names[b->init], b->init_a);
    else
        snprintf(text, bytes, "%s", names[b->init]);
    return text;
}

/* Elements of one tensor as it is stored, padding rows included. */
static int64_t stored_of(const PlanParam *b) {
    int64_t total = 1;
    for (int i = 0; i < b->ndim; i++) total *= b->stored[i];
    return total;
}

static void print_text(const Plan *plan, const Line *lines, int count, FILE *out) {
    int name_width = 4, shape_width = 5;
    char shape[256], init[64];
    for (int i = 0; i < count; i++) {
        int name = (int)strlen(lines[i].name);
        int text = (int)strlen(shape_of(lines[i].param->block, shape, sizeof shape));
        name_width = name > name_width ? name : name_width;
        shape_width = text > shape_width ? text : shape_width;
    }
    int64_t total = 0, stored = 0;
    int tensors = 0;
    for (int i = 0; i < count; i++) {
        const PlanParam *b = lines[i].param->block;
        fprintf(out, "%-*s  %-*s", name_width, lines[i].name, shape_width,
                shape_of(b, shape, sizeof shape));
        if (lines[i].alias) {
            fprintf(out, "  alias of %s\n", lines[i].param->name);
            continue;
        }
        fprintf(out, "  %12lld  %-18s %s:%s%s\n", (long long)lines[i].param->count,
                init_of(b, init, sizeof init), plan->file, b->place ? b->place : "?",
                b->trainable ? "" : "  frozen");
        total += lines[i].param->count;
        stored += stored_of(lines[i].param->block);
        tensors++;
    }
    fprintf(out, "%lld parameters in %d tensors", (long long)total, tensors);
    if (stored != total) fprintf(out, "; %lld stored, with padding rows", (long long)stored);
    fputc('\n', out);
}

static void print_json(const Line *lines, int count, FILE *out) {
    InfJson j;
    char init[64];
    inf_json_init(&j, out);
    inf_json_open(&j, '[');
    for (int i = 0; i < count; i++) {
        const PlanParam *b = lines[i].param->block;
        inf_json_open(&j, '{');
        inf_json_put_text(&j, "name", lines[i].name);
        inf_json_key(&j, "shape");
        inf_json_open(&j, '[');
        for (int axis = 0; axis < b->ndim; axis++) inf_json_int(&j, b->dim[axis]);
        inf_json_close(&j);
        if (lines[i].alias) {
            inf_json_put_text(&j, "alias_of", lines[i].param->name);
        } else {
            inf_json_put_int(&j, "count", lines[i].param->count);
            inf_json_put_text(&j, "init", init_of(b, init, sizeof init));
            inf_json_put_text(&j, "place", b->place);
            inf_json_put_bool(&j, "trainable", b->trainable);
        }
        inf_json_close(&j);
    }
    inf_json_close(&j);
    fputc('\n', out);
}

/* Nothing was selected: what there is below the prefix, if anything. */
static InfCode fail_empty(InfError *e, const InfParams *all, const InfParamsFormat *f) {
    InfParamsFormat deep = {.prefix = f->prefix};
    size_t length = strlen(f->prefix), last_length = 0, bytes = 0;
    const char *last = NULL;
    char *text = NULL;
    if (length > 0 && f->prefix[length - 1] == '.') length--;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return inf_fail(e, INF_IO, "out of memory");
    for (int i = 0; i < all->count; i++) {
        const char *rest = all->param[i].name + length + (length > 0);
        if (!selected(all->param[i].name, &deep)) continue;
        size_t part = strcspn(rest, ".");
        if (last && part == last_length && strncmp(last, rest, part) == 0) continue;
        fprintf(out, "%s%.*s", last ? ", " : "", (int)part, rest);
        last = rest;
        last_length = part;
    }
    fclose(out);
    InfCode code =
        last ? inf_fail(e, INF_USAGE, "no parameter lies directly below '%s'; its parts: %s",
                        f->prefix, text)
             : inf_fail(e, INF_USAGE, "no parameter lies below '%s'", f->prefix);
    free(text);
    return code;
}

InfCode inf_params_print(InfError *e, const Plan *plan, InfParamsFormat format, FILE *out) {
    InfParams all;
    InfCode code = inf_params_open(e, plan, &all);
    int count = 0;
    Line *lines = code == INF_OK ? make_lines(&all, &format, &count) : NULL;
    if (code == INF_OK && !lines) code = inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK && count == 0 && format.prefix) code = fail_empty(e, &all, &format);
    if (code == INF_OK && format.json)
        print_json(lines, count, out);
    else if (code == INF_OK)
        print_text(plan, lines, count, out);
    free(lines);
    inf_params_close(&all);
    return code;
}

/* costs.c - reads the file of --costs, strictly, and gives layers their costs.
 *
 * Whatever is not understood is refused with its place and the way out: costs that are half of
 * what was measured would balance a pipeline badly, and nobody would notice.
 */
#include "passes/costs.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

enum { UNIT_BYTES_MAX = 16, ROWS_MAX = 65536, NAMES_SHOWN = 12 };

static const double cost_max = 1e12;

/* Where a file is being read. */
typedef struct Reader {
    Module *m;
    const Source *source;
    Costs *costs;
    bool failed;
} Reader;

/* Where a key stands: the parser keeps no places. */
static Span span_of(const Module *m, uint32_t file, const char *key) {
    const Source *s = source_get(m->sources, file);
    const char *at = s->text;
    size_t n = strlen(key);
    while (n > 0 && (at = strstr(at, key)) != NULL) {
        uint32_t begin = (uint32_t)(at - s->text);
        if (begin > 0 && at[-1] == '"' && at[n] == '"')
            return (Span){.file = file, .begin = begin - 1, .end = begin + (uint32_t)n + 1};
        at++;
    }
    return (Span){.file = file};
}

static void refuse(Reader *r, const char *key, const char *why) {
    if (r->failed) return;
    r->failed = true;
    diag_error(r->m->diag, E020, span_of(r->m, r->costs->file, key), "%s", why);
}

static bool is_plain(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return false;
    return true;
}

/* What the parser says, without the text that it quotes. */
static json_t *parse(Reader *r) {
    json_error_t e;
    json_t *root = json_loadb(r->source->text, r->source->bytes, JSON_REJECT_DUPLICATES, &e);
    if (root != NULL) return root;
    char *near = strstr(e.text, " near ");
    if (near != NULL) *near = '\0';
    uint32_t at = e.position > 0 ? (uint32_t)e.position - 1 : 0;
    if (at >= r->source->bytes) at = r->source->bytes > 0 ? r->source->bytes - 1 : 0;
    Span span = {.file = r->costs->file, .begin = at, .end = at + 1};
    diag_error(r->m->diag, E020, span, "the costs are no JSON: %s",
               is_plain(e.text) ? e.text : "what stands here was not expected");
    r->failed = true;
    return NULL;
}

static double read_number(Reader *r, const char *key, const json_t *value) {
    double number = json_is_number(value) ? json_number_value(value) : -1;
    if (!(number >= 0 && number <= cost_max))
        refuse(r, key, arena_printf(r->m->arena, "%s takes a number from 0 to %g", key, cost_max));
    return number;
}

static void read_row(Reader *r, const char *name, json_t *object) {
    static const char *const keys[] = {"forward", "backward", "input", "weight"};
    double number[] = {-1, -1, -1, -1};
    const char *key;
    json_t *value;
    Arena *a = r->m->arena;
    if (!is_plain(name)) {
        refuse(r, "layers", "a layer's name holds control characters");
        return;
    }
    if (!json_is_object(object)) {
        refuse(r, name, "a layer's costs stand in braces: {\"forward\": 1.5, \"backward\": 3}");
        return;
    }
    json_object_foreach(object, key, value) {
        size_t k = 0;
        while (k < 4 && strcmp(key, keys[k]) != 0) k++;
        if (k == 4)
            refuse(r, name,
                   arena_printf(a, "%s: its costs are forward, backward, input and weight", name));
        else
            number[k] = read_number(r, key, value);
    }
    if (number[0] < 0) refuse(r, name, arena_printf(a, "%s has no forward", name));
    if ((number[2] < 0) != (number[3] < 0))
        refuse(r, name, arena_printf(a, "%s: input and weight come together", name));
    double halves = number[2] >= 0 ? number[2] + number[3] : 2 * number[0];
    double backward = number[1] >= 0 ? number[1] : halves;
    CostRow row = {.name = arena_strdup(a, name),
                   .cost = {.forward = number[0],
                            .backward = backward,
                            .input = number[2] >= 0 ? number[2] : backward / 2,
                            .weight = number[3] >= 0 ? number[3] : backward / 2}};
    vec_push(a, &r->costs->rows, row);
}

static void read_layers(Reader *r, json_t *layers) {
    const char *name;
    json_t *value;
    if (!json_is_object(layers) || json_object_size(layers) == 0 ||
        json_object_size(layers) > ROWS_MAX) {
        refuse(r, "layers", "layers takes the costs of each layer by its name");
        return;
    }
    json_object_foreach(layers, name, value) read_row(r, name, value);
}

static void read_unit(Reader *r, const json_t *value) {
    const char *text = json_string_value(value);
    if (text == NULL || *text == '\0' || strlen(text) > UNIT_BYTES_MAX || !is_plain(text))
        refuse(r, "unit", "unit takes a short name, such as \"ms\"");
    else
        r->costs->unit = arena_strdup(r->m->arena, text);
}

static void read_key(Reader *r, const char *key, json_t *value) {
    if (strcmp(key, "layers") == 0)
        read_layers(r, value);
    else if (strcmp(key, "message") == 0)
        r->costs->message = read_number(r, key, value);
    else if (strcmp(key, "megabyte") == 0)
        r->costs->megabyte = read_number(r, key, value);
    else if (strcmp(key, "unit") == 0)
        read_unit(r, value);
    else if (strcmp(key, "model") != 0 && strcmp(key, "device") != 0)
        refuse(r, is_plain(key) ? key : "",
               "the keys of costs are unit, message, megabyte, layers, model and device");
    else if (!json_is_string(value))
        refuse(r, key, arena_printf(r->m->arena, "%s takes a text", key));
}

const Costs *costs_read(Module *m, uint32_t file) {
    Reader r = {.m = m, .source = source_get(m->sources, file)};
    const char *key;
    json_t *value, *root;
    r.costs = ARENA_NEW(m->arena, Costs);
    r.costs->file = file;
    r.costs->name = r.source->name;
    r.costs->unit = "ms";
    root = parse(&r);
    if (root == NULL) return NULL;
    if (!json_is_object(root)) refuse(&r, "", "costs are an object: {\"layers\": {..}}");
    json_object_foreach(root, key, value) read_key(&r, key, value);
    if (json_object_get(root, "layers") == NULL) refuse(&r, "", "the costs have no layers");
    json_decref(root);
    return r.failed ? NULL : r.costs;
}

/* ---- layers ------------------------------------------------------------------------------- */

static bool is_named(const char *name, const Unit *u, bool exactly) {
    const char *star = strchr(u->name, '*');
    if (!exactly || u->layer < 0 || star == NULL) return strcmp(name, u->name) == 0;
    size_t n = (size_t)(star - u->name);
    char number[24];
    int digits = snprintf(number, sizeof number, "%" PRId64, u->layer);
    return strncmp(name, u->name, n) == 0 && strncmp(name + n, number, (size_t)digits) == 0 &&
           strcmp(name + n + digits, star + 1) == 0;
}

/* The row of a unit, its own before that of all iterations; -1 for none. */
static int row_of(const Costs *costs, const Unit *u) {
    for (int exactly = 1; exactly >= 0; exactly--)
        for (uint32_t i = 0; i < costs->rows.n; i++)
            if (is_named(costs->rows.data[i].name, u, exactly != 0)) return (int)i;
    return -1;
}

/* "a, b, transformer.h.*" */
static const char *names_of(Arena *a, const UnitList *units) {
    const char *text = "";
    int shown = 0;
    for (uint32_t i = 0; i < units->n; i++) {
        if (i > 0 && strcmp(units->data[i].name, units->data[i - 1].name) == 0) continue;
        if (shown++ == NAMES_SHOWN) return arena_printf(a, "%s, ..", text);
        text = arena_printf(a, "%s%s%s", text, i > 0 ? ", " : "", units->data[i].name);
    }
    return text;
}

static bool names_a_unit(const char *name, const UnitList *units) {
    for (uint32_t i = 0; i < units->n; i++)
        if (is_named(name, &units->data[i], true) || is_named(name, &units->data[i], false))
            return true;
    return false;
}

bool costs_of_units(Module *m, const Costs *costs, const UnitList *units, TaskCosts *out) {
    double total = 0;
    for (uint32_t i = 0; i < costs->rows.n; i++) {
        const char *name = costs->rows.data[i].name;
        if (names_a_unit(name, units)) continue;
        DiagRef ref = diag_error(m->diag, E020, span_of(m, costs->file, name),
                                 "the model has no layer '%s'", name);
        diag_hint(m->diag, ref, "its layers: %s", names_of(m->arena, units));
        return false;
    }
    for (uint32_t i = 0; i < units->n; i++) {
        int row = row_of(costs, &units->data[i]);
        if (row < 0) {
            DiagRef ref = diag_error(m->diag, E020, (Span){.file = costs->file},
                                     "there is no cost of layer '%s'", units->data[i].name);
            diag_hint(m->diag, ref, "the model's layers: %s", names_of(m->arena, units));
            return false;
        }
        out[i] = costs->rows.data[row].cost;
        total += out[i].forward + out[i].backward;
    }
    if (total > 0) return true;
    diag_error(m->diag, E020, span_of(m, costs->file, "layers"), "every layer costs nothing");
    return false;
}

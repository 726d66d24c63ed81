/* settings.c - reading the sections: which keys there are, overrides, dims, values.
 *
 * Config is read first, in order, so later entries see earlier ones; then dims; then the other
 * sections. A -D override replaces the expression of its key before anything is evaluated.
 */
#include "frontend/lower.h"
#include "frontend/suggest.h"

#include <inttypes.h>
#include <string.h>

static const SettingFn fn_table[SETFN_COUNT] = {
#define SETTING(kind, name, signature) {SETTING_##kind, SETFN_##name, #name, signature},
#include "frontend/settings.def"
};

static const struct {
    const char *name;
    bool has_dims;
    const char *doc;
} section_table[SECTION_COUNT] = {
#define SECTION(name, has_dims, doc) {#name, has_dims, doc},
#include "frontend/sections.def"
};

enum { RUN, BUILD };
static const struct {
    SectionId section;
    const char *name, *type;
    int when;
    const char *doc;
} key_table[KEY_COUNT] = {
#define KEY(section, name, type, when, doc) {SECTION_##section, #name, type, when, doc},
#include "frontend/sections.def"
};

const SettingFn *setting_at(int index) { return &fn_table[index]; }

const SettingFn *setting_find(SettingKind kind, const char *name) {
    for (int i = 0; i < SETFN_COUNT; i++)
        if (fn_table[i].kind == kind && strcmp(fn_table[i].name, name) == 0) return &fn_table[i];
    return NULL;
}

const char *setting_kind_text(SettingKind kind) {
    static const char *const text[] = {"initialiser", "optimizer", "schedule", "data source"};
    return text[kind];
}

/* --- entries: what is written, before it is evaluated --- */

typedef struct Entry {
    SectionId section;
    const char *key;
    const Ast *expr;    /* NULL after an override, until it is known what its text is */
    const Ast *written; /* the model's own expression; NULL when it has none */
    Span span;
    const char *raw; /* override: the text after '=' */
    Span raw_span;
} Entry;

typedef struct Reader {
    Lower *l;
    VEC(Entry) entries;
} Reader;

static int section_find(const char *name) {
    for (int i = 0; i < SECTION_COUNT; i++)
        if (strcmp(section_table[i].name, name) == 0) return i;
    return -1;
}

static int key_find(SectionId section, const char *name) {
    for (int i = 0; i < KEY_COUNT; i++)
        if (key_table[i].section == section && strcmp(key_table[i].name, name) == 0) return i;
    return -1;
}

static Entry *entry_find(Reader *r, SectionId section, const char *key) {
    for (uint32_t i = 0; i < r->entries.n; i++)
        if (r->entries.data[i].section == section && strcmp(r->entries.data[i].key, key) == 0)
            return &r->entries.data[i];
    return NULL;
}

static bool is_free_dim(const Lower *l, const char *name) {
    for (uint32_t f = 0; f < l->program->files.n; f++) {
        const Ast *file = l->program->files.data[f];
        for (uint32_t i = 0; i < file->n; i++) {
            const Ast *item = file->child[i];
            for (uint32_t k = 0; item->kind == AST_dims && k < item->n; k++)
                if (item->child[k]->op != AST_OP_assign && strcmp(item->child[k]->text, name) == 0)
                    return true;
        }
    }
    return false;
}

static bool key_exists(const Lower *l, SectionId section, const char *name) {
    if (section == SECTION_config) return true;
    return key_find(section, name) >= 0 ||
           (section_table[section].has_dims && is_free_dim(l, name));
}

static void report_unknown_key(Lower *l, SectionId section, const Ast *kv) {
    Suggest s = suggest_begin(kv->text);
    for (int i = 0; i < KEY_COUNT; i++)
        if (key_table[i].section == section) suggest_offer(&s, key_table[i].name);
    DiagRef e = diag_error(
        l->diag, E008, kv->span, "section %s has no key '%s'%s", section_table[section].name,
        kv->text, s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
    const char *keys = "";
    for (int i = 0; i < KEY_COUNT; i++)
        if (key_table[i].section == section)
            keys = arena_printf(l->arena, "%s%s%s", keys, *keys != '\0' ? ", " : "",
                                key_table[i].name);
    diag_note(l->diag, e, "keys: %s%s", keys,
              section_table[section].has_dims ? ", and the free dims" : "");
}

static void collect_section(Reader *r, const Ast *item) {
    Lower *l = r->l;
    int id = section_find(item->text);
    if (id < 0) {
        Suggest s = suggest_begin(item->text);
        for (int i = 0; i < SECTION_COUNT; i++) suggest_offer(&s, section_table[i].name);
        DiagRef e = diag_error(
            l->diag, E003, item->span, "unknown section '%s'%s", item->text,
            s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
        if (s.best == NULL)
            diag_hint(l->diag, e,
                      "the sections are config, train, eval, generate, parallel and checkpoint");
        return;
    }
    SectionId section = (SectionId)id;
    if (l->settings.present[section]) {
        diag_error(l->diag, E010, item->span, "section '%s' already stands at %s", item->text,
                   diag_place(l->diag, l->settings.section_span[section], item->span));
        return;
    }
    l->settings.present[section] = true;
    l->settings.section_span[section] = item->span;
    for (uint32_t i = 0; i < item->n; i++) {
        const Ast *kv = item->child[i];
        if (kv->kind != AST_kv) continue;
        if (!key_exists(l, section, kv->text)) {
            report_unknown_key(l, section, kv);
            continue;
        }
        Entry *first = entry_find(r, section, kv->text);
        if (first != NULL) {
            diag_error(l->diag, E010, kv->span, "'%s' already set at %s", kv->text,
                       diag_place(l->diag, first->span, kv->span));
            continue;
        }
        vec_push(l->arena, &r->entries,
                 (Entry){.section = section,
                         .key = kv->text,
                         .expr = kv->child[0],
                         .written = kv->child[0],
                         .span = kv->span});
    }
}

/* --- overrides --- */

static void report_unknown_setting(Reader *r, const char *name, Span span) {
    Lower *l = r->l;
    Suggest s = suggest_begin(name);
    const char *dot = strchr(name, '.');
    const char *last = dot != NULL ? dot + 1 : name;
    const char *same_key = NULL; /* the right key of another section, or without its section */
    for (int i = 0; i < KEY_COUNT; i++) {
        const char *full = arena_printf(l->arena, "%s.%s", section_table[key_table[i].section].name,
                                        key_table[i].name);
        suggest_offer(&s, full);
        if (same_key == NULL && strcmp(last, key_table[i].name) == 0) same_key = full;
    }
    for (uint32_t i = 0; i < r->entries.n; i++) {
        const Entry *e = &r->entries.data[i];
        const char *full = arena_printf(l->arena, "%s.%s", section_table[e->section].name, e->key);
        if (e->section == SECTION_config) full = e->key;
        suggest_offer(&s, full);
        if (same_key == NULL && strcmp(last, e->key) == 0) same_key = full;
    }
    const char *best = same_key != NULL ? same_key : s.best;
    DiagRef e =
        diag_error(l->diag, E022, span, "unknown setting '%s'%s", name,
                   best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", best) : "");
    diag_hint(l->diag, e, "-D takes SECTION.KEY=VALUE, or KEY=VALUE for a key of config");
}

static const char *strip_quotes(Arena *a, const char *text) {
    size_t n = strlen(text);
    bool quoted = n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n - 1] == text[0];
    return quoted ? arena_strndup(a, text + 1, n - 2) : text;
}

static void apply_override(Reader *r, const char *text) {
    Lower *l = r->l;
    uint32_t file = source_add(l->sources, "command line", text, strlen(text));
    const char *equals = strchr(text, '=');
    uint32_t n = equals != NULL ? (uint32_t)(equals - text) : (uint32_t)strlen(text);
    Span name_span = {file, 0, n};
    if (equals == NULL || n == 0) {
        diag_error(l->diag, E022, name_span, "expected -D KEY=VALUE, got '%s'", text);
        return;
    }
    const char *name = arena_strndup(l->arena, text, n), *dot = strchr(name, '.');
    SectionId section = SECTION_config;
    const char *key = name;
    if (dot != NULL) {
        int id = section_find(arena_strndup(l->arena, name, (size_t)(dot - name)));
        key = dot + 1;
        if (id < 0) {
            report_unknown_setting(r, name, name_span);
            return;
        }
        section = (SectionId)id;
    }
    Entry *e = entry_find(r, section, key);
    bool exists = section == SECTION_config ? e != NULL : key_exists(l, section, key);
    if (!exists) {
        report_unknown_setting(r, name, name_span);
        return;
    }
    if (e == NULL) {
        vec_push(l->arena, &r->entries,
                 (Entry){.section = section, .key = arena_strdup(l->arena, key)});
        e = &r->entries.data[r->entries.n - 1];
    }
    l->settings.present[section] = true;
    e->span = name_span;
    e->raw = strip_quotes(l->arena, equals + 1);
    e->raw_span = (Span){file, n + 1, (uint32_t)strlen(text)};
    e->expr = NULL;
}

/* An override's text becomes a word or string where such a key wants one, else an expression. */
static const Ast *override_expr(Reader *r, Entry *e, ArgKind kind) {
    Lower *l = r->l;
    if (e->expr != NULL || e->raw == NULL) return e->expr;
    bool raw = kind == ARG_word || kind == ARG_str || kind == ARG_strs;
    if (raw)
        e->expr = ast_new(l->arena, AST_string, e->raw_span, e->raw);
    else
        e->expr = parse_expression(l->arena, l->sources, l->diag, e->raw_span);
    return e->expr;
}

/* --- evaluation --- */

/* An override of config keeps the type of what it replaces; an integer may stand for a float. */
static void keep_config_type(Lower *l, const Entry *e, Value *v) {
    if (e->written == NULL || e->written == e->expr || v->kind == VALUE_none) return;
    Value before = expr_eval(l, e->written);
    if (before.kind == VALUE_none || before.kind == v->kind) return;
    if (before.kind == VALUE_float && v->kind == VALUE_int) {
        *v = value_float((double)v->dim.value);
        return;
    }
    DiagRef r = diag_error(l->diag, E019, e->raw_span, "'%s' is %s in the model, got %s", e->key,
                           value_describe(l->arena, &before), value_describe(l->arena, v));
    diag_note(l->diag, r, "set at %s", diag_place(l->diag, e->written->span, e->raw_span));
    v->kind = VALUE_none;
}

static void read_config(Reader *r) {
    Lower *l = r->l;
    for (uint32_t i = 0; i < r->entries.n; i++) {
        Entry *e = &r->entries.data[i];
        if (e->section != SECTION_config) continue;
        bool is_string = e->written != NULL && e->written->kind == AST_string;
        const Ast *expr = override_expr(r, e, is_string ? ARG_str : ARG_any);
        Value v = expr != NULL ? expr_eval(l, expr) : (Value){0};
        keep_config_type(l, e, &v);
        if (v.kind == VALUE_int) v.dim.text = e->key;
        vec_push(l->arena, &l->settings.config,
                 (ConfigEntry){.name = e->key, .value = v, .span = e->span});
    }
}

static void check_asserts(Lower *l, const Ast *item) {
    for (uint32_t i = 0; i < item->n; i++) {
        const Ast *stmt = item->child[i];
        if (stmt->kind != AST_assert) continue;
        Value v = expr_eval(l, stmt->child[0]);
        if (v.kind == VALUE_none || (v.kind == VALUE_bool && v.truth)) continue;
        if (v.kind != VALUE_bool) {
            diag_error(l->diag, E019, stmt->child[0]->span,
                       "the condition of assert must be true or false, got %s",
                       value_describe(l->arena, &v));
            continue;
        }
        const char *why =
            stmt->n > 1 ? stmt->child[1]->text : "it is false for the settings in force";
        diag_error(l->diag, E028, stmt->child[0]->span, "assertion failed: %s", why);
    }
}

static void read_dim(Lower *l, const Ast *decl) {
    DimDecl d = {.name = decl->text,
                 .span = decl->span,
                 .is_free = decl->op != AST_OP_assign,
                 .bound = INT64_MAX};
    const DimDecl *first = dim_find(l, decl->text);
    const char *taken = NULL;
    if (first != NULL) taken = diag_place(l->diag, first->span, decl->span);
    if (taken != NULL) {
        diag_error(l->diag, E010, decl->span, "dim '%s' already declared at %s", decl->text, taken);
        return;
    }
    d.valid = true;
    if (decl->n > 0) {
        Value v = expr_eval(l, decl->child[0]);
        if (v.kind != VALUE_none &&
            (v.kind != VALUE_int || v.dim.value < 1 || v.dim.free != NULL)) {
            diag_error(l->diag, E019, decl->child[0]->span,
                       "dim '%s' must be an integer >= 1, got %s", decl->text,
                       value_describe(l->arena, &v));
            v.kind = VALUE_none;
        }
        d.valid = v.kind != VALUE_none;
        if (d.valid && d.is_free) {
            d.bound = v.dim.value;
            d.bound_text = dim_with_value(l->arena, v.dim);
        }
        if (d.valid && !d.is_free) d.dim = dim_bound(v.dim.value, decl->text);
    }
    vec_push(l->arena, &l->settings.dims, d);
}

static void read_keys(Reader *r, SectionId section) {
    Lower *l = r->l;
    for (int k = 0; k < KEY_COUNT; k++) {
        if (key_table[k].section != section) continue;
        Signature sig =
            signature_parse(l->arena, section_table[section].name,
                            arena_printf(l->arena, "%s: %s", key_table[k].name, key_table[k].type));
        Entry *e = entry_find(r, section, key_table[k].name);
        if (e != NULL) {
            const Ast *expr = override_expr(r, e, sig.arg[0].kind);
            if (expr != NULL) l->settings.key[k] = eval_arg(l, &sig.arg[0], expr);
            l->settings.key_span[k] = e->span;
        } else {
            Value values[1] = {{0}};
            bind_args(l, &sig, NULL, NULL, (Span){0}, values);
            l->settings.key[k] = values[0];
        }
    }
}

static void read_dim_value(Reader *r, SectionId section, uint32_t index, DimValue *out) {
    Lower *l = r->l;
    const DimDecl *d = &l->settings.dims.data[index];
    Entry *e = entry_find(r, section, d->name);
    const Ast *expr = e != NULL ? override_expr(r, e, ARG_count) : NULL;
    if (e != NULL) out->span = e->span; /* given, if perhaps wrongly */
    out->given = e != NULL;
    if (expr == NULL || !d->is_free) return;
    Value v = expr_eval(l, expr);
    bool many = section == SECTION_generate && v.kind == VALUE_tuple;
    for (int i = 0; i < (many ? v.n : 1); i++) {
        const Value *one = many ? &v.item[i] : &v;
        if (one->kind == VALUE_none) return;
        if (one->kind != VALUE_int || one->dim.value < 1) {
            diag_error(l->diag, E019, expr->span, "'%s' must be an integer >= 1, got %s", d->name,
                       value_describe(l->arena, one));
            return;
        }
        if (one->dim.value > d->bound) {
            DiagRef ref =
                diag_error(l->diag, E019, expr->span, "%s = %" PRId64 " is over its bound %s",
                           d->name, one->dim.value, d->bound_text);
            diag_note(l->diag, ref, "declared at %s as %s <= %s",
                      diag_place(l->diag, d->span, expr->span), d->name, d->bound_text);
            return;
        }
    }
    out->value = many ? v.item[v.n - 1].dim.value : v.dim.value;
    out->all = v;
}

static void read_section(Reader *r, SectionId section) {
    Lower *l = r->l;
    read_keys(r, section);
    if (!section_table[section].has_dims) return;
    uint32_t n = l->settings.dims.n;
    l->settings.dim_value[section] = ARENA_ARRAY(l->arena, DimValue, n + 1);
    for (uint32_t i = 0; i < n; i++)
        read_dim_value(r, section, i, &l->settings.dim_value[section][i]);
    if (section == SECTION_train) return;
    for (uint32_t i = 0; i < n; i++) /* what is not given is train's */
        if (l->settings.dim_value[section][i].value == 0) {
            l->settings.dim_value[section][i] = l->settings.dim_value[SECTION_train][i];
            l->settings.dim_value[section][i].given = false;
        }
}

void settings_read(Lower *l, const char *const *overrides, int n) {
    Reader r = {.l = l};
    for (uint32_t f = 0; f < l->program->files.n; f++)
        for (uint32_t i = 0; i < l->program->files.data[f]->n; i++)
            if (l->program->files.data[f]->child[i]->kind == AST_section)
                collect_section(&r, l->program->files.data[f]->child[i]);
    for (int i = 0; i < n; i++) apply_override(&r, overrides[i]);
    read_config(&r);
    for (uint32_t f = 0; f < l->program->files.n; f++) {
        const Ast *file = l->program->files.data[f];
        for (uint32_t i = 0; i < file->n; i++) {
            const Ast *item = file->child[i];
            if (item->kind == AST_section) check_asserts(l, item);
            for (uint32_t k = 0; item->kind == AST_dims && k < item->n; k++)
                read_dim(l, item->child[k]);
        }
    }
    for (int s = 0; s < SECTION_COUNT; s++)
        if (s != SECTION_config) read_section(&r, (SectionId)s);
}

const char *settings_build_key(Arena *a, KeyId key) {
    if (key_table[key].when == RUN) return NULL;
    return arena_printf(a, "%s.%s", section_table[key_table[key].section].name,
                        key_table[key].name);
}

const char *settings_section_name(SectionId section) { return section_table[section].name; }

void settings_list(FILE *out) {
    for (int s = 0; s < SECTION_COUNT; s++) {
        fprintf(out, "%s: %s\n", section_table[s].name, section_table[s].doc);
        for (int k = 0; k < KEY_COUNT; k++)
            if ((int)key_table[k].section == s)
                fprintf(out, "  %-14s %-36s %s%s\n", key_table[k].name, key_table[k].type,
                        key_table[k].doc, key_table[k].when == BUILD ? " (part of the code)" : "");
    }
}

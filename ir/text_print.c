/* text_print.c - modules and graphs as text; see text.h and README.md for the grammar. */
#include "ir/text.h"
#include "ir/text_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_COLUMNS = 100 };

/* ---- atoms -------------------------------------------------------------------------------- */

/* The shortest decimal that reads back to the same bits. */
static void print_float(FILE *out, double x) {
    if (isnan(x)) {
        fputs("nan", out);
        return;
    }
    if (isinf(x)) {
        fputs(x < 0 ? "-inf" : "inf", out);
        return;
    }
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    fputs(text, out);
}

static void print_string(FILE *out, const char *s) {
    fputc('"', out);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_ints(FILE *out, int n, const int64_t *v) {
    fputc('[', out);
    for (int i = 0; i < n; i++) fprintf(out, "%s%lld", i > 0 ? "," : "", (long long)v[i]);
    fputc(']', out);
}

static void print_type(FILE *out, const Module *m, Type t) {
    const TypeInfo *info = type_info(m->types, t);
    fputs(dtype_name(info->dtype), out);
    print_ints(out, info->ndim, info->dim);
}

static void print_value(FILE *out, Val v) { fprintf(out, "%%%u", v.id - 1); }

static void print_addr(FILE *out, const Addr *addr) {
    fprintf(out, "@%s", text_region[addr->region]);
    if (addr->region == REGION_none) return;
    fprintf(out, "+%lld", (long long)addr->offset_bytes);
    if (addr->pitch_bytes != 0) fprintf(out, " pitch=%lld", (long long)addr->pitch_bytes);
    if (addr->shard_bytes != 0) fprintf(out, " shard=%lld", (long long)addr->shard_bytes);
    int n = REPEAT_DEPTH_MAX;
    while (n > 0 && addr->stride_bytes[n - 1] == 0) n--;
    if (n > 0) print_ints(out, n, addr->stride_bytes);
}

static void print_location(FILE *out, const Module *m, Scope scope, Span span) {
    fputs(" loc ", out);
    print_string(out, scope_path(m, scope));
    Place p = m->sources != NULL ? source_place(m->sources, span) : (Place){NULL, 0, 0};
    if (p.file == NULL) return;
    fputc(' ', out);
    print_string(out, p.file);
    fprintf(out, ":%u:%u", p.line, p.column);
}

/* Graph names are words with dots; anything else is quoted. */
static void print_name(FILE *out, const char *s) {
    bool word = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_';
    for (const char *p = s; word && *p != '\0'; p++)
        word = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
               *p == '_' || *p == '.';
    if (word)
        fputs(s, out);
    else
        print_string(out, s);
}

/* ---- nodes -------------------------------------------------------------------------------- */

static void print_attrs(FILE *out, const Node *n) {
    if (n->nattr == 0) return;
    fputs(" {", out);
    for (int i = 0; i < n->nattr; i++) {
        const Attr *a = &n->attr[i];
        fprintf(out, "%s%s=", i > 0 ? ", " : "", attr_name(a->key));
        switch (attr_kind(a->key)) {
        case ATTRKIND_int: fprintf(out, "%lld", (long long)a->i); break;
        case ATTRKIND_float: print_float(out, a->f); break;
        case ATTRKIND_ints: print_ints(out, a->n, a->v); break;
        case ATTRKIND_str: print_string(out, a->s); break;
        }
    }
    fputc('}', out);
}

static void print_graph(FILE *out, const Graph *g, int flags, int indent);

static void print_addrs(FILE *out, const Graph *g, const Node *n) {
    bool placed = false;
    for (int i = 0; i < n->nout; i++)
        placed |= g->val[node_out(n, i).id].addr.region != REGION_none;
    for (int i = 0; placed && i < n->nout; i++) {
        fputs(i > 0 ? ", " : " ", out);
        print_addr(out, &g->val[node_out(n, i).id].addr);
    }
}

static void print_node(FILE *out, const Graph *g, const Node *n, int flags, int indent) {
    fprintf(out, "%*s", indent, "");
    for (int i = 0; i < n->nout; i++) {
        if (i > 0) fputs(", ", out);
        print_value(out, node_out(n, i));
    }
    fprintf(out, " = %s", op_name(n->op));
    for (int i = 0; i < n->nin; i++) {
        fputs(i > 0 ? ", " : " ", out);
        print_value(out, n->in[i]);
    }
    print_attrs(out, n);
    for (int i = 0; i < n->nout; i++) {
        fputs(i > 0 ? ", " : " : ", out);
        print_type(out, g->mod, val_type(g, node_out(n, i)));
    }
    if (n->phase != PHASE_F) fprintf(out, " !%c", text_phase[n->phase]);
    print_addrs(out, g, n);
    if (flags & PRINT_LOCATIONS) print_location(out, g->mod, n->scope, n->span);
    if (n->body != NULL) {
        fputs(" {\n", out);
        print_graph(out, n->body, flags, indent + 2);
        fprintf(out, "%*s}", indent, "");
    }
    fputc('\n', out);
}

/* ---- graphs ------------------------------------------------------------------------------- */

static void print_port(FILE *out, const Port *p) {
    if (p->role == ROLE_none) return;
    const RoleWord *role = &text_role[p->role];
    fprintf(out, " %s", role->word);
    if (!role->indexed && p->index == 0 && p->use == 0 && p->name == NULL) return;
    fprintf(out, "(%d", p->index);
    if (p->use != 0) fprintf(out, ", %d", p->use);
    if (p->name != NULL) {
        fputs(", ", out);
        print_string(out, p->name);
    }
    fputc(')', out);
}

static void print_input(FILE *out, const Graph *g, int i) {
    print_value(out, g->in[i]);
    fputs(": ", out);
    print_type(out, g->mod, val_type(g, g->in[i]));
    print_port(out, &g->in_port[i]);
    const Addr *addr = &g->val[g->in[i].id].addr;
    if (addr->region == REGION_none) return;
    fputc(' ', out);
    print_addr(out, addr);
}

static void print_output(FILE *out, const Graph *g, int i) {
    print_value(out, g->out[i]);
    print_port(out, &g->out_port[i]);
}

typedef void PrintItem(FILE *out, const Graph *g, int i);

/* Items on one line when it fits, else one a line. */
static void print_items(FILE *out, const Graph *g, int n, PrintItem *item, int indent) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *line = open_memstream(&text, &bytes);
    if (line == NULL) {
        perror("infinic: out of memory");
        exit(5);
    }
    for (int i = 0; i < n; i++) {
        if (i > 0) fputs(", ", line);
        item(line, g, i);
    }
    fclose(line);
    bool fits = bytes + (size_t)indent + 20 <= LINE_COLUMNS;
    if (fits) fputs(text, out);
    free(text);
    for (int i = 0; !fits && i < n; i++) {
        fprintf(out, "%s\n%*s", i > 0 ? "," : "", indent + 4, "");
        item(out, g, i);
    }
}

static void print_graph(FILE *out, const Graph *g, int flags, int indent) {
    fprintf(out, "%*sgraph ", indent, "");
    if (g->name != NULL && g->name[0] != '\0') print_name(out, g->name);
    fputc('(', out);
    print_items(out, g, g->nin, print_input, indent);
    fputs(") {\n", out);
    for (int i = 0; i < g->nnode; i++) print_node(out, g, g->node[i], flags, indent + 2);
    fprintf(out, "%*sreturn ", indent + 2, "");
    print_items(out, g, g->nout, print_output, indent + 2);
    fprintf(out, "\n%*s}\n", indent, "");
}

void text_print_graph(const Graph *g, FILE *out, int flags) { print_graph(out, g, flags, 0); }

const char *text_graph_string(const Graph *g, Arena *arena) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        perror("infinic: out of memory");
        exit(5);
    }
    print_graph(out, g, 0, 0);
    fclose(out);
    const char *copy = arena_strndup(arena, text, bytes);
    free(text);
    return copy;
}

/* ---- the module's tables ------------------------------------------------------------------ */

static void print_param(FILE *out, const Module *m, int index, int flags) {
    const Param *p = &m->param[index];
    const TypeInfo *info = type_info(m->types, p->type);
    fprintf(out, "param %d ", index);
    print_string(out, p->name);
    fputc(' ', out);
    print_type(out, m, p->type);
    fprintf(out, " init=%s", text_init[p->init]);
    if (p->init_a != 0) {
        fputc('(', out);
        print_float(out, p->init_a);
        fputc(')', out);
    }
    if (p->nstack != 0) fprintf(out, " stack=%d", p->nstack);
    int nlogical = info->ndim - p->nstack;
    if (nlogical > 0 &&
        memcmp(p->logical, info->dim + p->nstack, (size_t)nlogical * sizeof p->logical[0]) != 0) {
        fputs(" logical=", out);
        print_ints(out, nlogical, p->logical);
    }
    if (p->transposed) fputs(" transposed", out);
    if (!p->trainable) fputs(" frozen", out);
    if (p->decay) fputs(" decay", out);
    if (p->uses != 0) fprintf(out, " uses=%d", p->uses);
    if (p->first != 0) fprintf(out, " first=%lld", (long long)p->first);
    if (p->origin != 0) fprintf(out, " origin=%d", p->origin);
    if (p->segment != 0) fprintf(out, " part=%d", p->segment);
    if (p->offset_elems != 0) fprintf(out, " offset=%lld", (long long)p->offset_elems);
    if (p->stride_elems != 0) fprintf(out, " stride=%lld", (long long)p->stride_elems);
    if (p->use_offset_elems != 0) fprintf(out, " use_offset=%lld", (long long)p->use_offset_elems);
    if (flags & PRINT_LOCATIONS) print_location(out, m, p->scope, p->span);
    fputc('\n', out);
}

static void print_setting(FILE *out, const Setting *s, const void *at) {
    fprintf(out, "  %s = ", s->key);
    switch (s->kind) {
    case SETTING_int64: fprintf(out, "%lld", (long long)*(const int64_t *)at); break;
    case SETTING_int: fprintf(out, "%d", *(const int *)at); break;
    case SETTING_float: print_float(out, *(const double *)at); break;
    case SETTING_bool: fputs(*(const bool *)at ? "true" : "false", out); break;
    case SETTING_string: print_string(out, *(const char *const *)at); break;
    case SETTING_word: fputs(s->words[*(const int *)at], out); break;
    }
    fputc('\n', out);
}

static bool setting_differs(const Setting *s, const void *a, const void *b) {
    switch (s->kind) {
    case SETTING_int64: return *(const int64_t *)a != *(const int64_t *)b;
    case SETTING_float: return memcmp(a, b, sizeof(double)) != 0;
    case SETTING_bool: return *(const bool *)a != *(const bool *)b;
    case SETTING_string: return *(const char *const *)a != NULL;
    case SETTING_int:
    case SETTING_word: break;
    }
    return *(const int *)a != *(const int *)b;
}

/* Only what differs from an empty module. */
static void print_settings(FILE *out, const Module *m) {
    Arena scratch = {0};
    const Module *empty = module_new(&scratch, NULL, NULL);
    bool open = false;
    for (int i = 0; i < text_setting_count; i++) {
        const Setting *s = &text_setting[i];
        const char *at = (const char *)m + s->offset;
        if (!setting_differs(s, at, (const char *)empty + s->offset)) continue;
        if (!open) fputs("settings {\n", out);
        open = true;
        print_setting(out, s, at);
    }
    if (open) fputs("}\n", out);
    arena_free(&scratch);
}

void text_print_module(const Module *m, FILE *out, int flags) {
    print_settings(out, m);
    for (int i = 0; i < m->nbuild; i++) {
        fputs("build ", out);
        print_string(out, m->build[i].key);
        fputc(' ', out);
        print_string(out, m->build[i].value);
        fputc('\n', out);
    }
    for (int i = 0; i < m->nparam; i++) print_param(out, m, i, flags);
    for (int i = 0; i < m->nalias; i++) {
        fputs("alias ", out);
        print_string(out, m->alias[i].name);
        fprintf(out, " %d\n", m->alias[i].param);
    }
    if (m->chunk != NULL) fprintf(out, "rank %d %d\n", m->rank, m->nrank);
    for (int c = 0; m->chunk != NULL && c < m->nchunk; c++)
        fprintf(out, "chunk %d %d\n", c, m->chunk[c]);
    for (int i = 0; i < m->nsegment; i++)
        fprintf(out, "segment %lld %lld%s%s\n", (long long)m->segment[i].offset_elems,
                (long long)m->segment[i].elems, m->segment[i].decay ? " decay" : "",
                m->segment[i].owned ? " owned" : "");
    for (int i = 0; i < m->nbucket; i++)
        fprintf(out, "bucket %d %lld %lld\n", m->bucket[i].local,
                (long long)m->bucket[i].offset_elems, (long long)m->bucket[i].elems);
    for (int i = REGION_none + 1; i < REGION_count; i++)
        if (m->region_bytes[i] != 0)
            fprintf(out, "region %s %lld\n", text_region[i], (long long)m->region_bytes[i]);
    for (int i = 0; i < m->ngraph; i++) print_graph(out, m->graph[i], flags, 0);
}

/* options.c - parses the command line by the table and explains mistakes. */
#include "runtime/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum ArgumentKind {
    ARG_none,
    ARG_optional,
    ARG_text,
    ARG_count,
    ARG_whole,
    ARG_real,
    ARG_positive,
    ARG_words
} ArgumentKind;

typedef struct Command {
    const char *name, *help;
} Command;

typedef struct Option {
    const char *flag;
    ArgumentKind kind;
    const char *value;
    uint32_t commands;
    const char *help;
} Option;

static const Command commands[CMD_COUNT] = {
    [CMD_none] = {"", ""},
#define COMMAND(name, help) [CMD_##name] = {#name, help},
#include "runtime/options.def"
};

#define ON(name) (1u << CMD_##name)
static const Option options[OPT_COUNT] = {
#define OPTION(id, flag, kind, value, commands, help)                                              \
    [OPT_##id] = {flag, ARG_##kind, value, commands, help},
#include "runtime/options.def"
};
#undef ON

enum { NAME_MAX_COMPARED = 63 };

/* Levenshtein distance, with names cut at NAME_MAX_COMPARED. */
static int edit_distance(const char *a, const char *b) {
    int row[NAME_MAX_COMPARED + 1];
    int n = (int)strnlen(a, NAME_MAX_COMPARED), m = (int)strnlen(b, NAME_MAX_COMPARED);
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *inf_nearest_name(const char *name, const char *const *candidates, int count) {
    const char *best = NULL;
    int limit = 1 + (int)strnlen(name, NAME_MAX_COMPARED) / 3;
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(name, candidates[i]);
        if (distance <= limit) {
            limit = distance - 1;
            best = candidates[i];
        }
    }
    return best;
}

/* "train.B" is named by "train.B" and by "B". */
static bool setting_is(const PlanSetting *s, const char *name, size_t length) {
    const char *dot = strrchr(s->key, '.');
    const char *last = dot ? dot + 1 : s->key;
    return (strlen(s->key) == length && strncmp(s->key, name, length) == 0) ||
           (strlen(last) == length && strncmp(last, name, length) == 0);
}

/* When `name` is a setting that is part of the code, says how to build with another value. */
static InfCode explain_fixed(InfError *e, const Plan *plan, InfCommand command, const char *name,
                             size_t length, const char *value) {
    const PlanSetting *found = NULL;
    size_t own = strlen(commands[command].name);
    for (uint32_t i = 0; i < plan->nsetting; i++) {
        const PlanSetting *s = &plan->setting[i];
        if (!setting_is(s, name, length)) continue;
        /* The section that is called like the command comes first. */
        bool better = strncmp(s->key, commands[command].name, own) == 0 && s->key[own] == '.';
        if (!found || better) found = s;
    }
    if (!found) return INF_OK;
    return inf_fail(e, INF_USAGE, "%.*s is fixed at build time: infinic %s -D %s=%s", (int)length,
                    name, plan->file, found->key, value ? value : found->value);
}

static InfCode fail_unknown_command(InfError *e, const char *name) {
    const char *names[CMD_COUNT];
    for (int c = 1; c < CMD_COUNT; c++) names[c - 1] = commands[c].name;
    const char *near = inf_nearest_name(name, names, CMD_COUNT - 1);
    if (near) return inf_fail(e, INF_USAGE, "unknown command '%s'; did you mean '%s'?", name, near);
    return inf_fail(e, INF_USAGE, "unknown command '%s'; --help lists them", name);
}

static InfCode fail_unknown_flag(InfError *e, InfCommand command, const char *name, size_t length) {
    const char *names[OPT_COUNT];
    char typed[NAME_MAX_COMPARED + 1];
    int count = 0;
    snprintf(typed, sizeof typed, "%.*s", (int)length, name);
    for (int o = 0; o < OPT_COUNT; o++) {
        bool here = options[o].commands & 1u << command;
        if (!here && strcmp(options[o].flag, typed) == 0) {
            InfCommand other = CMD_none;
            while (!(options[o].commands & 1u << other)) other++;
            return inf_fail(e, INF_USAGE, "--%s is an option of %s, not of %s", typed,
                            commands[other].name, commands[command].name);
        }
        if (here) names[count++] = options[o].flag;
    }
    const char *near = inf_nearest_name(typed, names, count);
    if (near)
        return inf_fail(e, INF_USAGE, "unknown option '--%s' of %s; did you mean '--%s'?", typed,
                        commands[command].name, near);
    return inf_fail(e, INF_USAGE, "unknown option '--%s' of %s; %s --help lists them", typed,
                    commands[command].name, commands[command].name);
}

static bool is_word_of(const char *text, const char *words) {
    size_t length = strlen(text);
    for (const char *at = words; length > 0; at++) {
        if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return true;
        at = strchr(at, '|');
        if (!at) return false;
    }
    return false;
}

/* Converts and checks the argument of an option that has one. */
static InfCode convert(InfError *e, const Option *o, InfOptionValue *v) {
    char *end = NULL;
    errno = 0;
    switch (o->kind) {
    case ARG_count:
    case ARG_whole: {
        int64_t least = o->kind == ARG_count;
        v->whole = strtoll(v->text, &end, 10);
        if (end == v->text || *end || errno || v->whole < least)
            return inf_fail(e, INF_USAGE, "--%s needs a whole number of at least %d, got '%s'",
                            o->flag, (int)least, v->text);
        return INF_OK;
    }
    case ARG_real:
    case ARG_positive:
        v->real = strtod(v->text, &end);
        if (end == v->text || *end || !isfinite(v->real) || v->real < 0 ||
            (o->kind == ARG_positive && v->real == 0))
            return inf_fail(e, INF_USAGE, "--%s needs a finite number %s 0, got '%s'", o->flag,
                            o->kind == ARG_positive ? "above" : "of at least", v->text);
        return INF_OK;
    case ARG_words:
        if (!is_word_of(v->text, o->value))
            return inf_fail(e, INF_USAGE, "--%s needs one of %s, got '%s'", o->flag, o->value,
                            v->text);
        return INF_OK;
    default:
        if (v->text && !*v->text)
            return inf_fail(e, INF_USAGE, "--%s needs a %s", o->flag, o->value);
        return INF_OK;
    }
}

typedef struct Cursor {
    int argc;
    char **argv;
    int at;
} Cursor;

static InfCode parse_flag(InfError *e, const Plan *plan, Cursor *c, InfOptions *out) {
    const char *name = c->argv[c->at] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const char *next = c->at + 1 < c->argc ? c->argv[c->at + 1] : NULL;
    int id = 0;
    while (id < OPT_COUNT &&
           !((options[id].commands & 1u << out->command) && strlen(options[id].flag) == length &&
             strncmp(options[id].flag, name, length) == 0))
        id++;
    if (id == OPT_COUNT) {
        const char *value = equals ? equals + 1 : next && next[0] != '-' ? next : NULL;
        TRY(explain_fixed(e, plan, out->command, name, length, value));
        return fail_unknown_flag(e, out->command, name, length);
    }

    const Option *o = &options[id];
    InfOptionValue *v = &out->value[id];
    if (v->given) return inf_fail(e, INF_USAGE, "--%s is given twice", o->flag);
    *v = (InfOptionValue){.given = true, .text = equals ? equals + 1 : NULL};
    if (o->kind == ARG_none && equals)
        return inf_fail(e, INF_USAGE, "--%s takes no argument", o->flag);
    if (o->kind != ARG_none && o->kind != ARG_optional && !equals) {
        if (!next || strncmp(next, "--", 2) == 0)
            return inf_fail(e, INF_USAGE, "--%s needs an argument: --%s %s", o->flag, o->flag,
                            o->value);
        v->text = next;
        c->at++;
    }
    c->at++;
    return convert(e, o, v);
}

/* Something that is not a --flag: -D, -h, key=value or a stray word. */
static InfCode parse_word(InfError *e, const Plan *plan, Cursor *c, InfOptions *out) {
    const char *word = c->argv[c->at];
    if (strcmp(word, "-h") == 0) {
        out->help = true;
        c->at++;
        return INF_OK;
    }
    if (strncmp(word, "-D", 2) == 0) {
        const char *setting = word[2] ? word + 2 : c->at + 1 < c->argc ? c->argv[c->at + 1] : "";
        return inf_fail(e, INF_USAGE, "-D is an option of the compiler: infinic %s -D %s",
                        plan->file, setting);
    }
    const char *equals = strchr(word, '=');
    TRY(explain_fixed(e, plan, out->command, word, equals ? (size_t)(equals - word) : strlen(word),
                      equals ? equals + 1 : NULL));
    return inf_fail(e, INF_USAGE, "unexpected argument '%s'; %s --help lists the options", word,
                    commands[out->command].name);
}

InfCode inf_options_parse(InfError *e, const Plan *plan, int argc, char **argv, InfOptions *out) {
    *out = (InfOptions){0};
    Cursor c = {argc, argv, 2};
    if (argc < 2)
        return inf_fail(e, INF_USAGE, "a command is needed: train, eval, ...; --help lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        out->help = true;
        return INF_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        out->version = true;
        return INF_OK;
    }
    for (int i = 1; i < CMD_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0) out->command = (InfCommand)i;
    if (out->command == CMD_none) return fail_unknown_command(e, argv[1]);
    while (c.at < argc) {
        if (strncmp(argv[c.at], "--", 2) == 0 && argv[c.at][2])
            TRY(parse_flag(e, plan, &c, out));
        else
            TRY(parse_word(e, plan, &c, out));
    }
    out->help = out->help || out->value[OPT_help].given;
    return INF_OK;
}

static void help_all(FILE *out, const Plan *plan) {
    fprintf(out, "usage: %s COMMAND [options]\n\ncommands:\n", plan->model);
    for (int i = 1; i < CMD_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out,
            "\n%s COMMAND --help lists the options of a command.\n"
            "Built from %s by infinic %s for %s.\n"
            "Exit codes: 0 ok, 2 usage, 4 bad data or weights, 5 files and devices,\n"
            "6 non-finite numbers, 75 stopped by a signal.\n",
            plan->model, plan->file, plan->compiler, plan->target);
}

void inf_options_help(FILE *out, const Plan *plan, InfCommand command) {
    if (command == CMD_none) {
        help_all(out, plan);
        return;
    }
    fprintf(out, "usage: %s %s [options]\n%s\n\noptions:\n", plan->model, commands[command].name,
            commands[command].help);
    for (int o = 0; o < OPT_COUNT; o++) {
        if (!(options[o].commands & 1u << command)) continue;
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s%s", options[o].flag,
                 options[o].kind == ARG_none       ? ""
                 : options[o].kind == ARG_optional ? "[="
                 : options[o].kind == ARG_words    ? "="
                                                   : " ",
                 options[o].value, options[o].kind == ARG_optional ? "]" : "");
        fprintf(out, "  %-22s %s%s\n", left, strlen(left) > 22 ? "\n                         " : "",
                options[o].help);
    }
}

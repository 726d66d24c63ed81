/* options.c - parsing and describing infinic's options, all from options.def. */
#include "frontend/options.h"

#include "frontend/signature.h"
#include "frontend/suggest.h"

#include <stdlib.h>
#include <string.h>

typedef enum OptionKind {
    KIND_OPT_flag,
    KIND_OPT_text,
    KIND_OPT_list,
    KIND_OPT_words,
    KIND_OPT_optional,
    KIND_OPT_bytes
} OptionKind;

static const struct {
    char letter;
    const char *name;
    OptionKind kind;
    const char *argument;
    const char *help;
} table[OPT_COUNT] = {
#define OPTION(id, letter, name, kind, argument, help)                                             \
    {letter, name, KIND_OPT_##kind, argument, help},
#include "frontend/options.def"
};

/* --- parsing --- */

static const char *parse_bytes(Arena *a, const char *text, int64_t *bytes) {
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},       {"KB", 1e3},      {"MB", 1e6},        {"GB", 1e9},
                 {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
    char *end = NULL;
    double number = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        double value = number * units[i].factor;
        if (!(value >= 1 && value < 9e18)) break;
        *bytes = (int64_t)value;
        return NULL;
    }
    return arena_printf(a, "'%s' is no number of bytes, such as 500MB", text);
}

static const char *spelling(Arena *a, int id) {
    return table[id].name != NULL ? arena_printf(a, "--%s", table[id].name)
                                  : arena_printf(a, "-%c", table[id].letter);
}

/* Take an option's argument. */
static const char *accept(Options *o, Arena *a, int id, const char *text) {
    OptionValue *v = &o->value[id];
    bool words = table[id].kind == KIND_OPT_words || table[id].kind == KIND_OPT_optional;
    v->given = true;
    v->text = text;
    if (words && text != NULL && !signature_has_word(table[id].argument, text)) {
        char *list = arena_strdup(a, table[id].argument);
        for (char *c = list; *c != '\0'; c++) *c = *c == '|' ? ' ' : *c;
        return arena_printf(a, "%s takes one of: %s; got '%s'", spelling(a, id), list, text);
    }
    if (table[id].kind == KIND_OPT_list) vec_push(a, &v->all, text);
    if (table[id].kind == KIND_OPT_bytes) return parse_bytes(a, text, &v->bytes);
    return NULL;
}

/* An option was recognised; `attached` is the rest of its word, or NULL. */
static const char *take(Options *o, Arena *a, int id, const char *attached, int argc, char **argv,
                        int *i) {
    OptionKind kind = table[id].kind;
    if (kind == KIND_OPT_flag) {
        if (attached != NULL) return arena_printf(a, "%s takes no argument", spelling(a, id));
        return accept(o, a, id, NULL);
    }
    if (attached != NULL || kind == KIND_OPT_optional) return accept(o, a, id, attached);
    if (*i + 1 >= argc)
        return arena_printf(a, "%s needs an argument: %s", spelling(a, id), table[id].argument);
    return accept(o, a, id, argv[++*i]);
}

static const char *parse_long(Options *o, Arena *a, int argc, char **argv, int *i) {
    const char *word = argv[*i] + 2;
    size_t n = strcspn(word, "=");
    const char *attached = word[n] == '=' ? word + n + 1 : NULL;
    Suggest near = suggest_begin(arena_strndup(a, word, n));
    for (int id = 0; id < OPT_COUNT; id++) {
        if (table[id].name == NULL) continue;
        if (strlen(table[id].name) == n && strncmp(table[id].name, word, n) == 0)
            return take(o, a, id, attached, argc, argv, i);
        suggest_offer(&near, table[id].name);
    }
    if (near.best == NULL) return arena_printf(a, "unknown option '--%s'", near.wanted);
    return arena_printf(a, "unknown option '--%s'; did you mean '--%s'?", near.wanted, near.best);
}

static const char *parse_letter(Options *o, Arena *a, int argc, char **argv, int *i) {
    const char *word = argv[*i] + 1;
    for (int id = 0; id < OPT_COUNT; id++)
        if (table[id].letter != 0 && table[id].letter == word[0])
            return take(o, a, id, word[1] != '\0' ? word + 1 : NULL, argc, argv, i);
    return arena_printf(a, "unknown option '%s'", argv[*i]);
}

const char *options_parse(Options *o, Arena *a, int argc, char **argv) {
    bool only_files = false; /* after -- */
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *problem = NULL;
        if (!only_files && strcmp(word, "--") == 0)
            only_files = true;
        else if (!only_files && strncmp(word, "--", 2) == 0)
            problem = parse_long(o, a, argc, argv, &i);
        else if (!only_files && word[0] == '-' && word[1] != '\0')
            problem = parse_letter(o, a, argc, argv, &i);
        else if (i == 1 && strcmp(word, "tokenize") == 0)
            o->tokenize = true;
        else if (o->input == NULL)
            o->input = word;
        else
            problem = arena_printf(a, "one file at a time: '%s' and '%s'", o->input, word);
        if (problem != NULL) return problem;
    }
    return NULL;
}

/* --- describing --- */

/* "-o FILE", "--emit=exe|c|..", "-h, --help" */
static const char *usage_of(Arena *a, int id) {
    const char *argument = table[id].argument;
    const char *letter = table[id].letter != 0 ? arena_printf(a, "-%c", table[id].letter) : "";
    if (table[id].name == NULL)
        return arena_printf(a, "%s%s%s", letter, *argument != '\0' ? " " : "", argument);
    const char *open = table[id].kind == KIND_OPT_optional ? "[=" : *argument != '\0' ? "=" : "";
    const char *close = table[id].kind == KIND_OPT_optional ? "]" : "";
    return arena_printf(a, "%s%s--%s%s%s%s", letter, *letter != '\0' ? ", " : "", table[id].name,
                        open, argument, close);
}

void options_print_help(FILE *out) {
    Arena a = {0};
    fputs("infinic - compile a model file into one executable that trains and evaluates it\n\n"
          "usage: infinic [options] model.it\n"
          "       infinic tokenize TEXT -o FILE [--tokenizer=DIR|bytes]\n\n",
          out);
    for (int id = 0; id < OPT_COUNT; id++) {
        const char *usage = usage_of(&a, id);
        if (strlen(usage) > 24)
            fprintf(out, "  %s\n  %-24s  %s\n", usage, "", table[id].help);
        else
            fprintf(out, "  %-24s  %s\n", usage, table[id].help);
    }
    fputs("\nexit codes: 0 ok, 1 something is wrong with the model or -D, 2 usage, 3 internal "
          "error,\n"
          "4 bad text or tokenizer, 5 files or the C compiler, 75 interrupted\n",
          out);
    arena_free(&a);
}

/* Text for troff: '-' and '\' are written out. */
static void print_roff(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '-' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
}

void options_print_man(FILE *out) {
    Arena a = {0};
    fputs(".TH INFINIC 1\n.SH NAME\ninfinic \\- compile a model file into an executable that "
          "trains it\n"
          ".SH SYNOPSIS\n.B infinic\n[options] model.it\n.SH OPTIONS\n",
          out);
    for (int id = 0; id < OPT_COUNT; id++) {
        fputs(".TP\n.B ", out);
        print_roff(out, usage_of(&a, id));
        fputc('\n', out);
        print_roff(out, table[id].help);
        fputc('\n', out);
    }
    arena_free(&a);
}

void options_print_completion(FILE *out) {
    fputs("# bash completion of infinic; source this file\n_infinic() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]}\n    case $word in\n    -*) "
          "COMPREPLY=($(compgen -W \"",
          out);
    for (int id = 0; id < OPT_COUNT; id++) {
        if (table[id].name != NULL)
            fprintf(out, "--%s ", table[id].name);
        else
            fprintf(out, "-%c ", table[id].letter);
    }
    fputs("\" -- \"$word\")) ;;\n    *) COMPREPLY=($(compgen -f -X '!*.i[tr]' -- \"$word\")) ;;\n  "
          "  esac\n}\n"
          "complete -o default -F _infinic infinic\n",
          out);
}

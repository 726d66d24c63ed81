/* main.c - the driver: the whole pipeline on one screen, and what each option asks of it.
 *
 * The only file that sees every room of the compiler. Exit codes are those of `exit_code`.
 */
#include "codegen/codegen.h"
#include "frontend/lower.h"
#include "frontend/options.h"
#include "ir/text.h"
#include "ir/work.h"
#include "passes/costs.h"
#include "runtime/plan.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARCHS_MAX = 8 };
enum exit_code { EXIT_OK = 0, EXIT_DIAGNOSTICS = 1, EXIT_USAGE = 2, EXIT_IO = 5, EXIT_SIGNAL = 75 };

extern const unsigned char inf_embed_runtime_archive[], inf_embed_runtime_archive_end[];
extern const unsigned char inf_embed_plan_h[], inf_embed_plan_h_end[];

typedef struct Driver {
    Arena arena, scratch;
    Sources sources;
    Diag diag;
    Options options;
    Module *mod;
    InputLimits limits;
    const Costs *costs;
    bool chunk_loss_given, recompute_given; /* the model or -D says what the plan might choose */
    int64_t attention_width;
    VEC(const char *) archs; /* CUDA architectures */
} Driver;

static bool given(const Driver *r, OptionId id) { return r->options.value[id].given; }

static const char *text_of(const Driver *r, OptionId id) { return r->options.value[id].text; }

static bool emits(const Driver *r, const char *what) {
    return given(r, OPT_emit) && strcmp(text_of(r, OPT_emit), what) == 0;
}

/* --- signals: temporary files go, then the program --- */

static void on_signal(int number) {
    (void)number;
    codegen_cleanup();
    _exit(EXIT_SIGNAL);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* --- output --- */

/* Results were written to standard output: did they arrive? */
static int finish_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_OK;
    fprintf(stderr, "infinic: standard output: %s\n", strerror(errno));
    return EXIT_IO;
}

static int usage_error(const char *problem) {
    fprintf(stderr, "infinic: %s\n", problem);
    return EXIT_USAGE;
}

/* The name of the executable: the model's, without folder and .it. */
static const char *default_output(Driver *r) {
    const char *slash = strrchr(r->options.input, '/');
    const char *base = slash != NULL ? slash + 1 : r->options.input;
    size_t n = strlen(base);
    if (n > 3 && strcmp(base + n - 3, ".it") == 0) return arena_strndup(&r->arena, base, n - 3);
    return arena_printf(&r->arena, "%s.out", base);
}

/* --- the model's text --- */

static bool is_ir(const char *path) {
    size_t n = strlen(path);
    return n > 3 && strcmp(path + n - 3, ".ir") == 0;
}

static bool read_ir(Driver *r) {
    const char *problem;
    bool missing;
    uint32_t file = source_load(&r->sources, r->options.input, &problem, &missing);
    if (file == 0) diag_error(&r->diag, E023, (Span){0}, "'%s' %s", r->options.input, problem);
    return file != 0 && text_read_module(r->mod, file);
}

/* model.it to checked IR. With -d ast the tree is printed and nothing more is done. */
static bool read_model(Driver *r, bool *printed) {
    ModelText *text = parse_program(&r->arena, &r->sources, &r->diag, r->options.input);
    if (given(r, OPT_dump) && strcmp(text_of(r, OPT_dump), "ast") == 0) {
        if (text->files.n > 0 && r->diag.error_count == 0) ast_print(stdout, text->files.data[0]);
        *printed = true;
        return r->diag.error_count == 0;
    }
    if (text->files.n == 0 || r->diag.error_count > 0) return false;
    Lower lower = {.arena = &r->arena,
                   .diag = &r->diag,
                   .sources = &r->sources,
                   .mod = r->mod,
                   .program = text};
    const OptionValue *defines = &r->options.value[OPT_define];
    lower_program(&lower, defines->all.data, (int)defines->all.n);
    r->chunk_loss_given = lower.settings.key_span[KEY_train_chunk_loss].file != 0;
    r->recompute_given = lower.settings.key_span[KEY_train_recompute].file != 0;
    if (r->mod->train.dtype == DT_bf16 && r->mod->target == TARGET_c && !given(r, OPT_check))
        diag_warn(&r->diag, WARN_BF16, lower.settings.key_span[KEY_train_dtype],
                  "dtype = bf16 runs in f32 on the CPU");
    return r->diag.error_count == 0;
}

/* --costs FILE. */
static bool read_costs(Driver *r) {
    const char *problem;
    bool missing;
    if (!given(r, OPT_costs)) return true;
    uint32_t file = source_load(&r->sources, text_of(r, OPT_costs), &problem, &missing);
    if (file == 0) diag_error(&r->diag, E023, (Span){0}, "'%s' %s", text_of(r, OPT_costs), problem);
    r->costs = file != 0 ? costs_read(r->mod, file) : NULL;
    return r->costs != NULL;
}

/* --- the pipeline --- */

/* Bounds of batch values and the like are facts of the model as written; passes hide them. */
static void find_facts(Driver *r) {
    const Graph *g = module_graph(r->mod, "train");
    int count = 0;
    for (int i = 0; g != NULL && i < g->nin; i++) count += g->in_port[i].role == ROLE_data;
    DataLimit *limit = ARENA_ARRAY(&r->arena, DataLimit, count + 1);
    for (int i = 0; i < count; i++) limit[i] = limits_of_input(g, i);
    r->limits = (InputLimits){.limit = limit, .count = count};
    if (g != NULL) r->attention_width = work_attention_width(g);
}

static PassOptions pass_options(const Driver *r) {
    bool ast = given(r, OPT_dump) && strcmp(text_of(r, OPT_dump), "ast") == 0;
    return (PassOptions){.no_fuse = given(r, OPT_no_fuse),
                         .no_reuse = given(r, OPT_no_reuse),
                         .verify_passes = given(r, OPT_verify_passes),
                         .time_passes = given(r, OPT_time_passes),
                         .print_locations = given(r, OPT_locations),
                         .schedule_only = given(r, OPT_dump_schedule) || emits(r, "schedule"),
                         .costs = r->costs,
                         .memory_limit_bytes = r->options.value[OPT_memory_limit].bytes,
                         .may_chunk_loss = !r->chunk_loss_given,
                         .may_recompute = !r->recompute_given,
                         .dump = ast ? NULL : text_of(r, OPT_dump),
                         .stop_after = text_of(r, OPT_stop_after),
                         .only = text_of(r, OPT_only),
                         .dump_to = stdout};
}

static int print_text(char *text) {
    if (text == NULL) return usage_error("that format cannot be printed");
    fputs(text, stdout);
    free(text);
    return finish_output();
}

/* From the finished plan to what was asked for. */
static int produce(Driver *r, const Program *program) {
    const char *format = text_of(r, OPT_dump_schedule);
    if (given(r, OPT_dump_schedule) || emits(r, "schedule"))
        return print_text(
            inf_schedule_text(codegen_plan(program), format != NULL ? format : "table"));
    if (emits(r, "params")) return print_text(inf_params_text(codegen_plan(program)));
    if (emits(r, "kernels") || emits(r, "c") || emits(r, "plan")) {
        if (emits(r, "kernels")) codegen_print_kernels(program, stdout);
        if (emits(r, "plan")) codegen_print_plan(program, stdout);
        if (emits(r, "c")) codegen_print_c(program, stdout);
        return finish_output();
    }
    LinkOptions link = {.output = given(r, OPT_output) ? text_of(r, OPT_output) : default_output(r),
                        .march = text_of(r, OPT_march),
                        .verbose = given(r, OPT_verbose),
                        .archive = inf_embed_runtime_archive,
                        .archive_bytes =
                            (size_t)(inf_embed_runtime_archive_end - inf_embed_runtime_archive),
                        .plan_h = inf_embed_plan_h,
                        .plan_h_bytes = (size_t)(inf_embed_plan_h_end - inf_embed_plan_h)};
    return codegen_link(program, &link);
}

/* text -> AST -> IR -> passes -> kernels and plan -> executable */
static int compile(Driver *r) {
    bool printed = false;
    r->chunk_loss_given = r->recompute_given = is_ir(r->options.input);
    bool read = is_ir(r->options.input) ? read_ir(r) : read_model(r, &printed);
    if (!read || !read_costs(r)) return EXIT_DIAGNOSTICS;
    if (printed) return finish_output();
    if (given(r, OPT_check)) return EXIT_OK;
    find_facts(r);
    PassOptions passes = pass_options(r);
    PassContext ctx = {.mod = r->mod, .scratch = &r->scratch, .options = &passes};
    if (!passes_run(&ctx)) return EXIT_DIAGNOSTICS;
    if (emits(r, "ir"))
        text_print_module(r->mod, stdout, given(r, OPT_locations) ? PRINT_LOCATIONS : 0);
    if (emits(r, "ir") || passes.dump != NULL || passes.stop_after != NULL || passes.only != NULL)
        return finish_output();
    CodegenOptions options = {.limits = r->limits,
                              .attention_width = r->attention_width,
                              .march = text_of(r, OPT_march),
                              .version = INFINIC_VERSION,
                              .arch = r->archs.data,
                              .narch = (int)r->archs.n};
    Module *const *rank = ctx.rank != NULL ? ctx.rank : &r->mod;
    int nrank = ctx.rank != NULL ? ctx.nrank : 1;
    return produce(r, codegen_build(rank, nrank, ctx.table, &options, &r->arena));
}

/* `infinic tokenize TEXT -o FILE`: text to tokens; no model is involved. */
static int tokenize(Driver *r) {
    for (int id = 0; id < OPT_COUNT; id++)
        if (given(r, id) && id != OPT_output && id != OPT_tokenizer)
            return usage_error("tokenize takes -o and --tokenizer only");
    if (r->options.input == NULL) return usage_error("no text is given: tokenize TEXT -o FILE");
    if (!given(r, OPT_output)) return usage_error("no place for the tokens is given: -o FILE");
    int code = inf_tokenize(r->options.input, text_of(r, OPT_output),
                            given(r, OPT_tokenizer) ? text_of(r, OPT_tokenizer) : "bytes");
    return code == EXIT_OK ? finish_output() : code;
}

/* --- options that stop early, and mistakes in options --- */

static int explain(Driver *r) {
    DiagCode code = diag_code_parse(text_of(r, OPT_explain));
    if (code == DIAG_NONE)
        return usage_error(arena_printf(&r->arena,
                                        "there is no diagnostic '%s'; the codes are E001 to E%03d",
                                        text_of(r, OPT_explain), DIAG_CODE_COUNT - 1));
    printf("E%03d: %s\n\n%s", (int)code, diag_title(code), diag_explain(code));
    return finish_output();
}

static bool stops_early(Driver *r, int *code) {
    if (given(r, OPT_help))
        options_print_help(stdout);
    else if (given(r, OPT_version))
        printf("infinic %s\n", INFINIC_VERSION);
    else if (given(r, OPT_man))
        options_print_man(stdout);
    else if (given(r, OPT_completion))
        options_print_completion(stdout);
    else if (given(r, OPT_settings))
        settings_list(stdout);
    else if (given(r, OPT_explain)) {
        *code = explain(r);
        return true;
    } else if (given(r, OPT_dump) && strcmp(text_of(r, OPT_dump), "list") == 0) {
        printf("%-12s %s\n", "ast", "the model's text as it was read");
        passes_list(stdout);
    } else {
        return false;
    }
    *code = finish_output();
    return true;
}

/* Splits --arch at commas; false when a part is no architecture or there are too many. */
static bool read_archs(Driver *r) {
    const char *at = text_of(r, OPT_arch);
    while (at != NULL) {
        size_t n = strcspn(at, ",");
        const char *arch = arena_strndup(&r->arena, at, n);
        int used = 0;
        if (sscanf(arch, "sm_%*d%n", &used) < 0 || used < 4 || n > (size_t)used + 1) return false;
        if (r->archs.n >= ARCHS_MAX) return false;
        vec_push(&r->arena, &r->archs, arch);
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return true;
}

/* What to compile for: as asked; a GPU that answers is taken when nothing is. */
static Target choose_target(Driver *r) {
    const char *word = given(r, OPT_target) ? text_of(r, OPT_target) : "auto";
    if (strcmp(word, "cpu") == 0) return TARGET_c;
    const char *arch = codegen_device_arch(&r->arena);
    if (arch != NULL && r->archs.n == 0) vec_push(&r->arena, &r->archs, arch);
    return strcmp(word, "cuda") == 0 || (arch != NULL && codegen_has_nvrtc()) ? TARGET_cuda
                                                                              : TARGET_c;
}

/* NULL, or what is wrong with the options that are given. */
static const char *check_options(Driver *r) {
    const OptionId passes[] = {OPT_dump, OPT_stop_after, OPT_only};
    const OptionValue *warn = &r->options.value[OPT_warn];
    if (r->options.input == NULL) return "no model is given; --help says more";
    if (given(r, OPT_tokenizer))
        return "--tokenizer belongs to tokenize: infinic tokenize TEXT -o FILE";
    if (!read_archs(r))
        return arena_printf(&r->arena, "--arch=%s: sm_90a, or several with commas between them",
                            text_of(r, OPT_arch));
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
        const char *name = text_of(r, passes[i]);
        bool known = name == NULL || passes_known(name) ||
                     (passes[i] == OPT_dump && strcmp(name, "ast") == 0);
        if (!known)
            return arena_printf(&r->arena, "there is no pass '%s'; -d list names them", name);
    }
    if (given(r, OPT_error_format) && strcmp(text_of(r, OPT_error_format), "json") == 0)
        r->diag.format = DIAG_JSON;
    for (uint32_t i = 0; i < warn->all.n; i++)
        if (!diag_set_warning(&r->diag, warn->all.data[i]))
            return arena_printf(&r->arena, "there is no warning '-W%s'", warn->all.data[i]);
    return NULL;
}

int main(int argc, char **argv) {
    static Driver driver;
    Driver *r = &driver;
    int code = EXIT_OK;
    if (argc == IMAGE_JOB_ARGS && strcmp(argv[1], IMAGE_JOB) == 0) return image_job(argv + 2);
    catch_signals();
    atexit(codegen_cleanup);
    const char *problem = options_parse(&r->options, &r->arena, argc, argv);
    if (problem != NULL) return usage_error(problem);
    sources_init(&r->sources, &r->arena);
    diag_init(&r->diag, &r->arena, &r->sources, stderr);
    if (stops_early(r, &code)) return code;
    if (r->options.tokenize) return tokenize(r);
    problem = check_options(r);
    if (problem != NULL) return usage_error(problem);
    r->mod = module_new(&r->arena, &r->sources, &r->diag);
    const char *slash = strrchr(r->options.input, '/');
    r->mod->target = choose_target(r);
    r->mod->file = slash != NULL ? slash + 1 : r->options.input;
    code = compile(r);
    diag_finish(&r->diag);
    if (code == EXIT_OK && r->diag.error_count > 0) code = EXIT_DIAGNOSTICS; /* -Werror */
    arena_free(&r->scratch);
    arena_free(&r->arena);
    return code;
}

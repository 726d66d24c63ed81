/* Weight files as people have them: with the prefix or without, tied or untied, with buffers that
 * are no parameters, in 16 bits, sharded; and one report of what does not fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/checkpoint.h"
#include "runtime/params.h"
#include "runtime/safetensors.h"
#include "tests/runtime/toy.h"

enum { HEAD = 1024 };

/* A small GPT-2: two stacked matrices stored [in, out], an embedding of 3 rows padded to 4, tied.
 */
static const PlanParam blocks[] = {
    {.name = "transformer.h.*.c_attn.weight",
     .nstack = 1,
     .ndim = 2,
     .stack = {2},
     .dim = {2, 6},
     .stored = {2, 6},
     .transposed = 1,
     .trainable = 1,
     .uses = 1,
     .place = "4:3"},
    {.name = "transformer.wte.weight",
     .offset = HEAD,
     .ndim = 2,
     .dim = {3, 2},
     .stored = {4, 2},
     .trainable = 1,
     .uses = 1,
     .place = "9:3"},
};
static const PlanAlias aliases[] = {{"lm_head.weight", 1}};

typedef struct Fixture {
    Plan plan;
    InfEngine engine;
    InfParams params;
    char *dir;
} Fixture;

static int set_up(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    InfError e = {0};
    f->plan = toy_plan;
    f->plan.param = blocks;
    f->plan.nparam = 2;
    f->plan.alias = aliases;
    f->plan.nalias = 1;
    f->plan.checkpoint_prefix = "transformer.";
    f->plan.checkpoint_skip = "*.attn.bias *.attn.masked_?ias";
    f->plan.flat_bytes = f->plan.state_bytes = 2048;
    f->plan.region_bytes[PLAN_REGION_param] = 2048;
    f->plan.region_bytes[PLAN_REGION_state] = 4096;
    f->plan.nstate = 2;
    f->plan.train.optimizer = PLAN_OPTIM_adamw;
    f->dir = temp_make();
    *state = f;
    return inf_engine_open(&e, &f->plan, 1, 0, &f->engine) != INF_OK ||
           inf_params_open(&e, &f->plan, &f->params) != INF_OK;
}

static int tear_down(void **state) {
    Fixture *f = *state;
    inf_params_close(&f->params);
    inf_engine_close(&f->engine);
    temp_remove(f->dir);
    free(f);
    return 0;
}

static const float numbers[16] = {0.5f, 1, -2, 3, 4, -5, 6, 7, 8, 9, 10, 11, 12, -13, 14, 0.25f};
static const float others[16] = {1};
static const uint16_t brains[16] = {0x3f00, 0x3f80, 0xc000, 0x4040, 0x4080, 0xc0a0, 0x40c0, 0x40e0,
                                    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0xc150, 0x4160, 0x3e80};
static const uint16_t halves[16] = {0x3800, 0x3c00, 0xc000, 0x4200, 0x4400, 0xc500, 0x4600, 0x4700,
                                    0x4800, 0x4880, 0x4900, 0x4980, 0x4a00, 0xca80, 0x4b00, 0x3400};

#define MATRIX(name)                                                                               \
    { name, INF_DTYPE_F32, 2, {2, 6}, numbers }
#define TABLE(name)                                                                                \
    { name, INF_DTYPE_F32, 2, {3, 2}, numbers }
#define SCALAR(name)                                                                               \
    { name, INF_DTYPE_F32, 0, {0}, numbers }

enum { MOST = 9 };
typedef struct FileCase {
    InfTensorOut tensor[MOST];
    const char *says; /* NULL: it fits */
} FileCase;

static const float *at(const Fixture *f, int64_t offset) {
    return inf_engine_at(&f->engine, PLAN_REGION_param, offset);
}

static void clear(Fixture *f) { memset(inf_engine_at(&f->engine, PLAN_REGION_param, 0), 0, 2048); }

static void assert_loaded(const Fixture *f) {
    assert_memory_equal(at(f, 0), numbers, 48);
    assert_memory_equal(at(f, 48), numbers, 48);
    assert_memory_equal(at(f, HEAD), numbers, 24);
    assert_true(at(f, HEAD)[6] == 0 && at(f, HEAD)[7] == 0); /* the padding row */
}

static void load(Fixture *f, const char *path, const char *says) {
    InfError e = {0};
    clear(f);
    InfCode code = inf_params_load(&e, &f->params, &f->engine, path);
    if (!says) {
        if (code != INF_OK) fail_msg("%s", e.text);
        assert_loaded(f);
        return;
    }
    assert_int_equal(code, INF_DATA);
    if (!strstr(e.text, says)) fail_msg("'%s' lacks '%s'", e.text, says);
    for (int i = 0; i < 512; i++) assert_true(at(f, 0)[i] == 0); /* nothing was written */
    inf_error_free(&e);
}

static void put(const char *path, const FileCase *c) {
    InfTensorOut out[MOST];
    InfError e = {0};
    int count = 0;
    memcpy(out, c->tensor, sizeof out);
    while (count < MOST && out[count].name) count++;
    assert_int_equal(inf_tensors_write(&e, path, out, count), INF_OK);
}

#define LAYERS MATRIX("transformer.h.0.c_attn.weight"), MATRIX("transformer.h.1.c_attn.weight")

/* ... without the prefix */
#define SHORT_LAYERS MATRIX("h.0.c_attn.weight"), MATRIX("h.1.c_attn.weight")

static void test_names(void **state) {
    static const FileCase cases[] = {
        {{LAYERS, TABLE("transformer.wte.weight")}, NULL},
        {{SHORT_LAYERS, TABLE("wte.weight")}, NULL},
        {{LAYERS, TABLE("wte.weight")}, NULL},
        {{LAYERS, TABLE("transformer.wte.weight"), TABLE("lm_head.weight")}, NULL},
        {{SHORT_LAYERS, TABLE("wte.weight"), TABLE("lm_head.weight")}, NULL},
        {{LAYERS, TABLE("lm_head.weight")}, NULL},
        {{LAYERS, TABLE("transformer.wte.weight"), SCALAR("transformer.h.0.attn.bias"),
          SCALAR("transformer.h.1.attn.masked_bias")},
         NULL},
        {{SHORT_LAYERS, TABLE("wte.weight"), SCALAR("h.0.attn.bias")}, NULL},
        {{LAYERS, TABLE("transformer.wte.weight"), SCALAR("transformer.h.0.attn.bias2")},
         "0 missing, 0 mis-shaped, 1 unexpected\n  unexpected  transformer.h.0.attn.bias2 []"},
        {{LAYERS, TABLE("transformer.wte.weight"), TABLE("wte.weight")},
         "\n  unexpected  wte.weight [3, 2]"},
        {{LAYERS, TABLE("transformer.wte.weight"), TABLE("transformer.lm_head.weight")},
         "\n  unexpected  transformer.lm_head.weight"},
        {{LAYERS,
          TABLE("transformer.wte.weight"),
          {"lm_head.weight", INF_DTYPE_F32, 2, {3, 2}, others}},
         "1 untied\n  untied      lm_head.weight has other values than transformer.wte.weight; the "
         "model ties them"},
        {{LAYERS,
          TABLE("transformer.wte.weight"),
          {"lm_head.weight", INF_DTYPE_F32, 1, {4}, others}},
         "1 untied"},
        {{LAYERS}, "\n  missing     transformer.wte.weight [3, 2] (declared at toy.it:9:3)"},
        {{TABLE("transformer.wte.weight")}, "2 missing, 0 mis-shaped, 0 unexpected"},
        {{LAYERS, {"transformer.wte.weight", INF_DTYPE_F32, 2, {4, 2}, numbers}},
         "transformer.wte.weight is [4, 2] in the file, [3, 2] in the model"},
        {{{"h.0.c_attn.weight", INF_DTYPE_F32, 2, {6, 2}, numbers},
          MATRIX("h.1.c_attn.weight"),
          TABLE("wte.weight")},
         "transformer.h.0.c_attn.weight is [6, 2] in the file, [2, 6] in the model; it is "
         "transposed: Conv1D stores [in, out], the file looks like a Linear's"},
        {{LAYERS, {"wte.weight", INF_DTYPE_F32, 2, {2, 3}, numbers}},
         "it is transposed: Linear stores [out, in], the file looks like a Conv1D's"},
        {{{.name = NULL}}, "3 missing, 0 mis-shaped, 0 unexpected"},
    };
    Fixture *f = *state;
    const char *path = temp_path(f->dir, "m.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(path, &cases[i]);
        load(f, path, cases[i].says);
    }
}

/* A model that says nothing of a prefix: the report says what to say. */
static void test_prefix_hint(void **state) {
    static const FileCase cases[] = {
        {{SHORT_LAYERS, TABLE("wte.weight"), TABLE("lm_head.weight")},
         "= hint: the file leaves out a prefix; say so in toy.it: checkpoint { prefix = "
         "\"transformer.\" }"},
        {{SHORT_LAYERS, TABLE("lm_head.weight")}, "prefix = \"transformer.\" }"},
        {{MATRIX("h.0.c_attn.weight"), TABLE("wte.weight")},
         "3 missing, 0 mis-shaped, 2 unexpected"},
    };
    Fixture *f = *state;
    const char *path = temp_path(f->dir, "m.safetensors");
    f->plan.checkpoint_prefix = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(path, &cases[i]);
        load(f, path, cases[i].says);
    }
}

/* Weights in 16 bits become f32; whole numbers are refused by name. */
static void test_other_types(void **state) {
    static const struct {
        InfDtype dtype;
        const void *values;
    } types[] = {{INF_DTYPE_BF16, brains}, {INF_DTYPE_F16, halves}};
    Fixture *f = *state;
    const char *path = temp_path(f->dir, "m.safetensors");
    for (int i = 0; i < 2; i++) {
        InfDtype d = types[i].dtype;
        FileCase c = {{{"h.0.c_attn.weight", d, 2, {2, 6}, types[i].values},
                       {"h.1.c_attn.weight", d, 2, {2, 6}, types[i].values},
                       {"wte.weight", d, 2, {3, 2}, types[i].values},
                       TABLE("lm_head.weight")},
                      NULL};
        put(path, &c);
        load(f, path, NULL);
    }
    FileCase whole = {{LAYERS, {"wte.weight", INF_DTYPE_I32, 2, {3, 2}, numbers}}, NULL};
    InfError e = {0};
    put(path, &whole);
    assert_int_equal(inf_params_load(&e, &f->params, &f->engine, path), INF_DATA);
    assert_non_null(strstr(e.text, "'wte.weight' is I32; floating-point values are needed"));
    inf_error_free(&e);
}

static void test_shards(void **state) {
    static const char index[] = "{\"metadata\":{\"total_size\":120},\"weight_map\":{"
                                "\"h.0.c_attn.weight\":\"model-00001-of-00002.safetensors\","
                                "\"h.1.c_attn.weight\":\"model-00002-of-00002.safetensors\","
                                "\"wte.weight\":\"model-00001-of-00002.safetensors\"}}";
    static const FileCase first = {{MATRIX("h.0.c_attn.weight"), TABLE("wte.weight")}, NULL},
                          second = {{MATRIX("h.1.c_attn.weight")}, NULL};
    Fixture *f = *state;
    put(temp_path(f->dir, "model-00001-of-00002.safetensors"), &first);
    file_put(temp_path(f->dir, "model.safetensors.index.json"), index, sizeof index - 1);
    load(f, f->dir, "model-00002-of-00002.safetensors is missing");
    put(temp_path(f->dir, "model-00002-of-00002.safetensors"), &second);
    load(f, f->dir, NULL);
}

/* Optimizer state by name or by index; what does not fit is one report, and nothing is written. */
static void test_optimizer_state(void **state) {
    static const int64_t seven = 7;
#define STATE(name, rows, columns)                                                                 \
    { name, INF_DTYPE_F32, 2, {rows, columns}, numbers }
#define COUNT                                                                                      \
    { "adam.t", INF_DTYPE_I64, 0, {0}, &seven }
    static const FileCase cases[] = {
        {{STATE("adam.m.transformer.h.0.c_attn.weight", 2, 6),
          STATE("adam.m.transformer.h.1.c_attn.weight", 2, 6),
          STATE("adam.m.transformer.wte.weight", 3, 2),
          STATE("adam.v.transformer.h.0.c_attn.weight", 2, 6),
          STATE("adam.v.transformer.h.1.c_attn.weight", 2, 6),
          STATE("adam.v.transformer.wte.weight", 3, 2), COUNT},
         NULL},
        {{STATE("adam.m.0", 2, 6), STATE("adam.m.1", 2, 6), STATE("adam.m.2", 3, 2),
          STATE("adam.v.0", 2, 6), STATE("adam.v.1", 2, 6), STATE("adam.v.2", 3, 2), COUNT},
         NULL},
        {{STATE("adam.m.0", 2, 6), STATE("adam.m.1", 2, 6), STATE("adam.m.2", 3, 2),
          STATE("adam.v.0", 2, 6), STATE("adam.v.1", 2, 6), COUNT},
         "does not fit toy.it\n  missing     adam.v.transformer.wte.weight"},
        {{STATE("adam.m.0", 2, 6), STATE("adam.m.1", 2, 6), STATE("adam.m.2", 3, 2),
          STATE("adam.v.0", 2, 6), STATE("adam.v.1", 6, 2), STATE("adam.v.2", 3, 2), COUNT},
         "mis-shaped  adam.v.transformer.h.1.c_attn.weight is [6, 2] in the file, [2, 6] in the "
         "model"},
        {{STATE("adam.m.0", 2, 6), STATE("adam.m.1", 2, 6), STATE("adam.m.2", 3, 2),
          STATE("adam.v.0", 2, 6), STATE("adam.v.1", 2, 6), STATE("adam.v.2", 3, 2),
          STATE("adam.v.3", 3, 2), COUNT},
         "\n  unexpected  adam.v.3"},
        {{STATE("sgd.momentum.0", 2, 6), {"sgd.t", INF_DTYPE_I64, 0, {0}, &seven}},
         "is the state of sgd; this program trains with adamw"},
        {{STATE("adam.m.0", 2, 6), {"adam.t", INF_DTYPE_F32, 0, {0}, numbers}},
         "'adam.t' is missing or not one I64"},
        {{STATE("adam.m.0", 2, 6)}, "'adam.t' is missing or not one I64"},
    };
    Fixture *f = *state;
    const char *path = temp_path(f->dir, "optimizer.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        InfError e = {0};
        int64_t updates = 0;
        float *m = inf_engine_at(&f->engine, PLAN_REGION_state, 0);
        memset(m, 0, 4096);
        put(path, &cases[i]);
        InfCode code = inf_optimizer_load(&e, &f->params, &f->engine, path, &updates);
        if (cases[i].says) {
            assert_int_equal(code, INF_DATA);
            if (!strstr(e.text, cases[i].says)) fail_msg("'%s' lacks '%s'", e.text, cases[i].says);
            for (int k = 0; k < 1024; k++) assert_true(m[k] == 0);
            inf_error_free(&e);
            continue;
        }
        if (code != INF_OK) fail_msg("%s", e.text);
        assert_int_equal(updates, 7);
        for (int k = 0; k < 2; k++) {
            assert_memory_equal(m + k * 512, numbers, 48);
            assert_memory_equal(m + k * 512 + 12, numbers, 48);
            assert_memory_equal(m + k * 512 + HEAD / 4, numbers, 24);
            assert_true(m[k * 512 + HEAD / 4 + 6] == 0);
        }
    }
}

static void list(const Fixture *f, InfParamsFormat format, InfCode want, const char *says) {
    InfError e = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    InfCode code = inf_params_print(&e, &f->plan, format, out);
    fclose(out);
    assert_int_equal(code, want);
    const char *said = code == INF_OK ? text : e.text;
    if (strcmp(said, says) != 0) fail_msg("'%s' is not '%s'", said, says);
    inf_error_free(&e);
    free(text);
}

/* The list: in the order of the full names, an alias when asked for. */
static void test_list(void **state) {
    static const char layers[] =
        "transformer.h.0.c_attn.weight  [2, 6]            12  zeros              toy.it:4:3\n"
        "transformer.h.1.c_attn.weight  [2, 6]            12  zeros              toy.it:4:3\n";
    static const char table[] =
        "transformer.wte.weight         [3, 2]             6  zeros              toy.it:9:3\n"
        "30 parameters in 3 tensors; 32 stored, with padding rows\n";
    Fixture *f = *state;
    char all[1024];
    snprintf(all, sizeof all, "%s%s", layers, table);
    list(f, (InfParamsFormat){.prefix = NULL}, INF_OK, all);
    snprintf(all, sizeof all,
             "lm_head.weight                 [3, 2]  alias of transformer.wte.weight\n%s%s", layers,
             table);
    list(f, (InfParamsFormat){.aliases = true}, INF_OK, all);
    static const char direct[] =
        "transformer.wte.weight  [3, 2]             6  zeros              toy.it:9:3\n"
        "6 parameters in 1 tensors; 8 stored, with padding rows\n";
    list(f, (InfParamsFormat){.prefix = "transformer.wte", .no_recurse = true}, INF_OK, direct);
    list(f, (InfParamsFormat){.prefix = "transformer.wte."}, INF_OK, direct);
    list(f, (InfParamsFormat){.prefix = "transformer.wte.weight"}, INF_OK, direct);
    list(f, (InfParamsFormat){.prefix = "transformer.wte", .json = true}, INF_OK,
         "[{\"name\":\"transformer.wte.weight\",\"shape\":[3,2],\"count\":6,\"init\":\"zeros\","
         "\"place\":\"9:3\",\"trainable\":true}]\n");
    list(f, (InfParamsFormat){.prefix = "lm_head", .aliases = true, .json = true}, INF_OK,
         "[{\"name\":\"lm_head.weight\",\"shape\":[3,2],\"alias_of\":\"transformer.wte.weight\"}]"
         "\n");
    list(f, (InfParamsFormat){.prefix = "transformer", .no_recurse = true}, INF_USAGE,
         "no parameter lies directly below 'transformer'; its parts: h, wte");
    list(f, (InfParamsFormat){.prefix = "transformer.h.", .no_recurse = true}, INF_USAGE,
         "no parameter lies directly below 'transformer.h.'; its parts: 0, 1");
    list(f, (InfParamsFormat){.prefix = "transformer.w"}, INF_USAGE,
         "no parameter lies below 'transformer.w'");
}

/* Padding rows are never saved, the prefix always is, a tied tensor once; NaN is not. */
static void test_saving(void **state) {
    Fixture *f = *state;
    InfError e = {0};
    InfTensors set;
    const char *path = temp_path(f->dir, "saved.safetensors");
    float *w = inf_engine_at(&f->engine, PLAN_REGION_param, 0);
    for (int i = 0; i < 512; i++) w[i] = (float)i;
    assert_int_equal(inf_params_save(&e, &f->params, &f->engine, path, INF_VALUES_weights, 1), 0);
    assert_int_equal(inf_tensors_open(&e, path, &set), INF_OK);
    assert_int_equal(set.count, 3);
    const InfTensor *t = inf_tensors_find(&set, "transformer.wte.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->bytes, 24);
    assert_non_null(inf_tensors_find(&set, "transformer.h.1.c_attn.weight"));
    inf_tensors_close(&set);
    w[HEAD / 4 + 7] = NAN; /* padding: nobody's business */
    assert_int_equal(inf_params_save(&e, &f->params, &f->engine, path, INF_VALUES_weights, 1), 0);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        const char *other = temp_path(f->dir, "bad.safetensors");
        w[HEAD / 4 + 5] = bad[i];
        InfCode code = inf_params_save(&e, &f->params, &f->engine, other, INF_VALUES_weights, 1);
        assert_int_equal(code, INF_NONFINITE);
        assert_non_null(
            strstr(e.text, "'transformer.wte.weight' holds a number that is not finite"));
        assert_null(file_get(other, NULL));
        inf_error_free(&e);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_names), TEST(test_prefix_hint),     TEST(test_other_types), TEST(test_shards),
        TEST(test_list),  TEST(test_optimizer_state), TEST(test_saving)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

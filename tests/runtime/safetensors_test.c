/* safetensors: what is read, every way in which a file is refused, what is written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/safetensors.h"
#include "tests/runtime/toy.h"

static void expect_bad(const char *path, const char *says) {
    InfError e = {0};
    InfTensors set;
    InfCode code = inf_tensors_open(&e, path, &set);
    if (code != INF_DATA || !strstr(e.text, says))
        fail_msg("code %d, '%s' lacks '%s'", (int)code, e.text ? e.text : "", says);
    inf_error_free(&e);
}

#define ENTRY(name, dtype, shape, begin, end)                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static void test_header_mutants(void **state) {
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } rows[] = {
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"{", 0, "bad JSON"},
        {"{}}", 0, "bad JSON"},
        {"{} x", 0, "bad JSON"},
        {"{\"a\":{}}", 0, "must have exactly dtype, shape and data_offsets"},
        {"{\"a\":[1]}", 0, "is not an object"},
        {"{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("a", "F32", "[1]", 0, 4) "}", 4, "bad JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "bad JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "must have exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "must have exactly"},
        {"{" ENTRY("a", "F31", "[1]", 0, 4) "}", 4, "unknown dtype 'F31'"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is not a string"},
        {"{" ENTRY("a", "F32", "1", 0, 4) "}", 4, "shape is not a list"},
        {"{" ENTRY("a", "F32", "[1.0]", 0, 4) "}", 4, "not an integer"},
        {"{" ENTRY("a", "F32", "[-1]", 0, 4) "}", 4, "not an integer"},
        {"{" ENTRY("a", "F32", "[true]", 0, 4) "}", 4, "not an integer"},
        {"{" ENTRY("a", "F32", "[9223372036854775808]", 0, 4) "}", 4, "bad JSON"},
        {"{" ENTRY("a", "F32", "[9223372036854775807, 2]", 0, 4) "}", 4, "more than 2^64"},
        {"{" ENTRY("a", "F32", "[4611686018427387904]", 0, 0) "}", 0, "more than 2^64"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "rank 9"},
        {"{" ENTRY("a", "F32", "[2]", 0, 4) "}", 4, "span 4 bytes, but F32 [2] takes 8"},
        {"{" ENTRY("a", "F32", "[1]", 4, 0) "}", 4, "0 <= begin <= end"},
        {"{" ENTRY("a", "F32", "[1]", -4, 0) "}", 4, "0 <= begin <= end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
         "not [begin, end]"},
        {"{" ENTRY("a", "F32", "[1]", 4, 8) "}", 8, "4 bytes before 'a' belong to no tensor"},
        {"{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("b", "F32", "[1]", 8, 12) "}", 12,
         "4 bytes before 'b'"},
        {"{" ENTRY("a", "F32", "[2]", 0, 8) "," ENTRY("b", "F32", "[2]", 4, 12) "}", 12,
         "'b' overlaps 'a'"},
        {"{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("b", "F32", "[1]", 0, 4) "}", 4, "overlaps"},
        {"{" ENTRY("a", "F32", "[1]", 0, 4) "}", 3, "ends after the end of the file"},
        {"{" ENTRY("a", "F32", "[1]", 0, 4) "}", 5, "1 bytes at its end belong to no tensor"},
        {"{" ENTRY("", "F32", "[1]", 0, 4) "}", 4, "empty name"},
        {"{" ENTRY("a\\u0007", "F32", "[1]", 0, 4) "}", 4, "control character 0x07"},
        {"{" ENTRY("a\\u0000b", "F32", "[1]", 0, 4) "}", 4, "bad JSON"},
        {"{" ENTRY("a\xff", "F32", "[1]", 0, 4) "}", 4, "bad JSON"},
        {"{\"__metadata__\":3}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"n\":3}}", 0, "'n' is not a string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[[[[[[1]]]]]]]]],\"data_offsets\":[0,4]}}", 4,
         "nests deeper"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tensors_put(path, rows[i].header, rows[i].data);
        expect_bad(path, rows[i].says);
    }
    temp_remove(dir);
}

/* A literal and its length without the final zero. */
#define BYTES(text) text, sizeof(text) - 1

static void test_file_mutants(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
        const char *says;
    } rows[] = {
        {BYTES(""), "truncated: 0 bytes"},
        {BYTES("\x02\0\0\0\0\0\0"), "truncated: 7 bytes"},
        {BYTES("\x03\0\0\0\0\0\0\0{}"), "or truncated: its header would have 3 bytes"},
        {BYTES("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "its header would have 18446744073709551615"},
        {BYTES("\0\0\0\0\0\0\0\x80{}"), "would have"},
        {BYTES("\0\0\0\0\0\0\0\0"), "does not start with '{'"},
        {BYTES("\x01\xe1\xf5\x05\0\0\0\0{}"), "at most 100000000"},
        {BYTES("PK\x03\x04 the archive of torch.save"), "this is a zip archive"},
        {BYTES("\x80\x02}q\x01 an old pickle of torch"), "this is a Python pickle"},
        {BYTES("<!DOCTYPE html><html></html>"), "this is an HTML page"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"), "git-LFS pointer"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_put(path, rows[i].bytes, rows[i].count);
        expect_bad(path, rows[i].says);
    }
    static const char *const pickles[] = {"model.pt", "m.pth", "pytorch_model.bin", "m.ckpt",
                                          "m.pkl"};
    for (size_t i = 0; i < 5; i++) {
        file_put(temp_path(dir, pickles[i]), "PK\x03\x04", 4);
        expect_bad(temp_path(dir, pickles[i]), "is a Python pickle, which can run any program");
    }
    expect_bad(temp_path(dir, "none.safetensors"), "no such weights file");
    remove(path);
    expect_bad(dir, "pytorch_model.bin: a .bin file is a Python pickle");
    remove(temp_path(dir, "pytorch_model.bin"));
    expect_bad(dir, "a .pt file");
    remove(temp_path(dir, "model.pt"));
    expect_bad(dir, "a folder with neither model.safetensors nor");
    temp_remove(dir);
}

static void test_long_and_many_names(void **state) {
    (void)state;
    char *dir = temp_make(), header[4096], name[1100];
    const char *path = temp_path(dir, "m.safetensors");
    for (int length = 1024; length <= 1025; length++) {
        memset(name, 'n', (size_t)length);
        name[length] = '\0';
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", name);
        tensors_put(path, header, 4);
        InfError e = {0};
        InfTensors set;
        assert_int_equal(inf_tensors_open(&e, path, &set), length == 1024 ? INF_OK : INF_DATA);
        if (length == 1024) inf_tensors_close(&set);
        inf_error_free(&e);
    }
    temp_remove(dir);
}

/* Any order in the header, zero-size entries at a boundary, scalars, metadata, padding spaces. */
static void test_legal_oddities(void **state) {
    static const char header[] = "{" ENTRY("b", "F32", "[1]", 8, 12) "," ENTRY(
        "z", "I8", "[0, 7]", 8, 8) ","
                                   "\"__metadata__\":{\"format\":\"pt\"}," ENTRY("a", "F64", "[]",
                                                                                 0, 8) "}   ";
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    tensors_put(path, header, 12);
    InfError e = {0};
    InfTensors set;
    assert_int_equal(inf_tensors_open(&e, path, &set), INF_OK);
    assert_int_equal(set.count, 3);
    assert_string_equal(set.tensors[0].name, "a");
    assert_string_equal(set.tensors[2].name, "z");
    assert_int_equal(inf_tensors_find(&set, "z")->count, 0);
    assert_null(inf_tensors_find(&set, "q"));
    float value = 1;
    assert_int_equal(inf_tensors_read_f32(&e, &set, inf_tensors_find(&set, "a"), &value), INF_OK);
    assert_true(value == 0);
    assert_int_equal(inf_tensors_read_f32(&e, &set, inf_tensors_find(&set, "z"), &value), INF_DATA);
    inf_error_free(&e);
    inf_tensors_close(&set);
    temp_remove(dir);
}

static void test_conversions(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    static const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7C00, 0x7BFF, 0x8000};
    static const float wide[] = {1.0f, -2.0f, 0x1p-24f, INFINITY, 65504.0f, -0.0f};
    static const uint16_t brains[] = {0x3F80, 0xC000, 0x7F80, 0x0080, 0x4049, 0x8000};
    static const float brain_wide[] = {1.0f, -2.0f, INFINITY, 0x1p-126f, 3.140625f, -0.0f};
    InfTensorOut out[] = {{"h", INF_DTYPE_F16, 1, {6}, halves},
                          {"b", INF_DTYPE_BF16, 1, {6}, brains}};
    InfError e = {0};
    InfTensors set;
    float got[6];
    assert_int_equal(inf_tensors_write(&e, path, out, 2), INF_OK);
    assert_int_equal(inf_tensors_open(&e, path, &set), INF_OK);
    assert_int_equal(inf_tensors_read_f32(&e, &set, inf_tensors_find(&set, "h"), got), INF_OK);
    assert_memory_equal(got, wide, sizeof got);
    assert_int_equal(inf_tensors_read_f32(&e, &set, inf_tensors_find(&set, "b"), got), INF_OK);
    assert_memory_equal(got, brain_wide, sizeof got);
    inf_tensors_close(&set);
    temp_remove(dir);
}

/* Written names are sorted, the header is strict JSON, the bytes are the same every time. */
static void test_writing(void **state) {
    (void)state;
    char *dir = temp_make();
    static const float x[] = {1, 2, 3, 4, 5, 6};
    InfError e = {0};
    char *bytes[2];
    size_t count[2];
    for (int i = 0; i < 2; i++) {
        InfTensorOut out[] = {{"h.10.w", INF_DTYPE_F32, 2, {2, 3}, x},
                              {"h.2.w", INF_DTYPE_F32, 1, {1}, x},
                              {"a", INF_DTYPE_F32, 0, {0}, x}};
        const char *path = temp_path(dir, i ? "1.safetensors" : "0.safetensors");
        assert_int_equal(inf_tensors_write(&e, path, out, 3), INF_OK);
        bytes[i] = file_get(path, &count[i]);
    }
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(bytes[0], bytes[1], count[0]);
    uint64_t length = 0;
    memcpy(&length, bytes[0], 8);
    assert_int_equal(length % 8, 0);
    json_t *root = json_loadb(bytes[0] + 8, length, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(root, "__metadata__"), "format")), "pt");
    json_decref(root);
    const char *a = strstr(bytes[0] + 8, "\"a\""), *ten = strstr(bytes[0] + 8, "h.10.w");
    assert_true(a < ten && ten < strstr(bytes[0] + 8, "h.2.w"));
    assert_int_equal(inf_tensors_write(&e, "/nonexistent/x.safetensors", NULL, 0), INF_IO);
    inf_error_free(&e);
    assert_int_equal(inf_tensors_write(&e, "/dev/full/x", NULL, 0), INF_IO);
    inf_error_free(&e);
    free(bytes[0]);
    free(bytes[1]);
    temp_remove(dir);
}

static void test_shards(void **state) {
    static const struct {
        const char *index, *says;
    } rows[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}", "is missing"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\",\"b\":\"2.safetensors\"}}",
         "beside the index"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "beside the index"},
        {"{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"2.safetensors\"}}", "not in its shard"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\"}}", NULL},
        {"{\"weight_map\":{\"b\":\"1.safetensors\"}}", "not in its shard"},
        {"{\"weight_map\":{\"a\":7}}", "is not a string"},
        {"{\"weight_map\":[]}", "no object 'weight_map'"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"4.safetensors\"}}", "in two shards"},
        {"[]", "does not start with '{'"},
    };
    (void)state;
    char *dir = temp_make();
    const char *index = temp_path(dir, "model.safetensors.index.json");
    tensors_put(temp_path(dir, "1.safetensors"), "{" ENTRY("a", "F32", "[1]", 0, 4) "}", 4);
    tensors_put(temp_path(dir, "2.safetensors"), "{" ENTRY("b", "F32", "[1]", 0, 4) "}", 4);
    tensors_put(temp_path(dir, "4.safetensors"),
                "{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("c", "F32", "[1]", 4, 8) "}", 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_put(index, rows[i].index, strlen(rows[i].index));
        if (rows[i].says) expect_bad(index, rows[i].says);
    }
    static const char good[] = "{\"metadata\":{\"total_size\":8},\"weight_map\":"
                               "{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    file_put(index, good, strlen(good));
    InfError e = {0};
    InfTensors set;
    assert_int_equal(inf_tensors_open(&e, dir, &set), INF_OK);
    assert_int_equal(set.count, 2);
    inf_tensors_close(&set);
    temp_remove(dir);
}

/* One report of everything that does not fit the model, with a hint for a transposed matrix. */
static void test_fit_report(void **state) {
    (void)state;
    char *dir = temp_make();
    toy_data(dir, "train", 8);
    const char *path = temp_path(dir, "m.safetensors");
    tensors_put(path,
                "{" ENTRY("fc.weight", "F32", "[4,2]", 0, 32) "," ENTRY(
                    "head.weight", "F32", "[2,4]", 32, 64) "," ENTRY("x", "F32", "[1]", 64, 68) "}",
                68);
    Run r = RUN(&toy_plan, "train", "--data", dir, "--init", path);
    assert_int_equal(r.code, 4);
    assert_non_null(strstr(r.err, "[E025]"));
    assert_non_null(strstr(r.err, "1 missing, 1 mis-shaped, 1 unexpected"));
    assert_non_null(strstr(r.err, "missing     fc.bias [2] (declared at toy.it:2:3)"));
    assert_non_null(strstr(r.err, "fc.weight is [4, 2] in the file, [2, 4] in the model; it is "
                                  "transposed"));
    assert_non_null(strstr(r.err, "unexpected  x [1]"));
    run_free(&r);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_mutants),
        cmocka_unit_test(test_file_mutants),
        cmocka_unit_test(test_long_and_many_names),
        cmocka_unit_test(test_legal_oddities),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_fit_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Weight files that are wrong in one way: eight mutants or more for each check of safetensors.c and
 * tensors.c. Every one is refused with the file's name, none is believed, none ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/safetensors.h"
#include "tests/runtime/toy.h"

static int refused; /* by the test at hand */

static void expect_refused(const char *path, const char *says) {
    InfError e = {0};
    InfTensors set;
    InfCode code = inf_tensors_open(&e, path, &set);
    if (code == INF_OK) fail_msg("%s: is believed (it should say '%s')", path, says);
    if (!strstr(e.text, says)) fail_msg("'%s' lacks '%s'", e.text, says);
    inf_error_free(&e);
    refused++;
}

static void expect_header(const char *dir, const char *header, size_t bytes, const char *says) {
    const char *path = temp_path(dir, "m.safetensors");
    tensors_put(path, header, bytes);
    expect_refused(path, says);
}

/* Headers of one entry "a" with one part of it exchanged. */
static void expect_entries(const char *form, const char *const *parts, int count, size_t bytes,
                           const char *says) {
    char *dir = temp_make(), header[4096];
    assert_true(count >= 8);
    for (int i = 0; i < count; i++) {
        const char *gap = strstr(form, "@");
        snprintf(header, sizeof header, "%.*s%s%s", (int)(gap - form), form, parts[i], gap + 1);
        expect_header(dir, header, bytes, says);
    }
    temp_remove(dir);
}

#define PARTS(...)                                                                                 \
    (const char *const[]){__VA_ARGS__},                                                            \
        (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void test_short_files(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    for (size_t bytes = 0; bytes < 8; bytes++) {
        file_put(path, "\2\0\0\0\0\0\0", bytes);
        expect_refused(path, "a safetensors file has at least 8");
    }
    temp_remove(dir);
}

static void test_header_length(void **state) {
    static const uint64_t lengths[] = {3,          4,          255,
                                       65536,      100000001,  UINT32_MAX,
                                       INT64_MAX,  UINT64_MAX, UINT64_MAX - 7,
                                       1ull << 63, 1ull << 32, 100000000};
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "m.safetensors");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char bytes[10] = {[8] = '{', [9] = '}'};
        for (int k = 0; k < 8; k++) bytes[k] = (unsigned char)(lengths[i] >> (8 * k));
        file_put(path, bytes, sizeof bytes);
        expect_refused(path, "its header would have");
    }
    temp_remove(dir);
}

static void test_first_byte(void **state) {
    (void)state;
    expect_entries("@", PARTS("", " {}", "[]", "\n{}", "\xef\xbb\xbf{}", "\"a\"", "null", "0", "}"),
                   0, "does not start with '{'");
}

static void test_utf8(void **state) {
    (void)state;
    expect_entries("{\"@\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                   PARTS("\xff", "\x80", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                         "\xe2\x82", "\xf0\x80\x80\x80", "a\xc3(", "\xfe\xfe"),
                   4, "bad JSON");
}

static void test_strict_json(void **state) {
    (void)state;
    expect_entries("@",
                   PARTS("{", "{}}", "{}x", "{},", "{}{}", "{} 0", "{\"a\"}", "{'a':1}", "{a:1}",
                         "{\"a\":01}", "{\"a\":1,}", "{\"a\":NaN}", "{/**/}", "{\"a\":+1}",
                         "{\"a\":\"\t\"}", "{\"a\":\"\\x\"}", "{\"a\":tru}"),
                   0, "bad JSON");
}

static void test_depth(void **state) {
    (void)state;
    char *dir = temp_make();
    for (size_t depth = 9, i = 0; i < 8; i++, depth *= 6) {
        const char *open = i % 2 ? "[" : "{\"a\":";
        size_t width = strlen(open), at = 5;
        char *header = malloc(6 + depth * (width + 1));
        assert_non_null(header);
        memcpy(header, "{\"x\":", 5);
        for (size_t k = 0; k < depth; k++, at += width) memcpy(header + at, open, width);
        header[at] = '\0';
        expect_header(dir, header, 0, "nests deeper");
        free(header);
    }
    temp_remove(dir);
}

#define GOOD "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"

static void test_duplicates(void **state) {
    (void)state;
    expect_entries(
        "{@}",
        PARTS(
            "\"a\":" GOOD ",\"a\":" GOOD, "\"a\":" GOOD ",\"\\u0061\":" GOOD,
            "\"__metadata__\":{},\"__metadata__\":{}", "\"__metadata__\":{\"x\":\"1\",\"x\":\"1\"}",
            "\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}",
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}",
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}",
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"d\\u0074ype\":\"F32\",\"data_offsets\":[0,4]"
            "}"),
        4, "bad JSON");
}

static void test_metadata(void **state) {
    (void)state;
    expect_entries("{\"__metadata__\":@}",
                   PARTS("3", "null", "true", "\"pt\"", "[]", "{\"a\":1}", "{\"a\":null}",
                         "{\"a\":{}}", "{\"a\":\"1\",\"b\":[]}", "{\"a\":false}"),
                   0, "__metadata__");
}

static void test_entries(void **state) {
    (void)state;
    expect_entries("{\"a\":@}",
                   PARTS("{\"shape\":[1],\"data_offsets\":[0,4]}",
                         "{\"dtype\":\"F32\",\"data_offsets\":[0,4]}",
                         "{\"dtype\":\"F32\",\"shape\":[1]}", "{}", "{\"x\":1}",
                         "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"strides\":[1]}",
                         "{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}",
                         "{\"Dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"),
                   4, "must have exactly dtype, shape and data_offsets");
    expect_entries("{\"a\":@}",
                   PARTS("1", "[]", "null", "true", "\"F32\"", "0.5", "[" GOOD "]", "-1"), 4,
                   "is not an object");
}

static void test_dtypes(void **state) {
    (void)state;
    expect_entries("{\"a\":{\"dtype\":@,\"shape\":[1],\"data_offsets\":[0,4]}}",
                   PARTS("\"f32\"", "\"F32 \"", "\"\"", "\"F128\"", "\"float\"", "\"none\"",
                         "\"I4\"", "\"F3\"", "\"F322\""),
                   4, "unknown dtype");
    expect_entries("{\"a\":{\"dtype\":@,\"shape\":[1],\"data_offsets\":[0,4]}}",
                   PARTS("1", "null", "true", "[]", "{}", "[\"F32\"]", "-1", "1.5"), 4,
                   "dtype is not a string");
}

static void test_extents(void **state) {
    (void)state;
    expect_entries("{\"a\":{\"dtype\":\"F32\",\"shape\":[@],\"data_offsets\":[0,4]}}",
                   PARTS("-1", "1.0", "1e0", "\"1\"", "null", "true", "[1]", "{}", "1,-1",
                         "-9223372036854775808"),
                   4, "not an integer in 0 .. 2^63-1");
    expect_entries("{\"a\":{\"dtype\":\"F32\",\"shape\":@,\"data_offsets\":[0,4]}}",
                   PARTS("1", "\"1\"", "null", "true", "{}", "1.0", "{\"0\":1}", "false"), 4,
                   "shape is not a list");
    expect_entries("{\"a\":{\"dtype\":\"F32\",\"shape\":[@],\"data_offsets\":[0,4]}}",
                   PARTS("9223372036854775808", "18446744073709551616", "1,9223372036854775808",
                         "-9223372036854775809", "99999999999999999999999", "9223372036854775808,0",
                         "0,18446744073709551615", "1e999"),
                   4, "bad JSON");
    expect_entries(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1@],\"data_offsets\":[0,4]}}",
        PARTS(",1", ",1,1", ",1,1,1", ",0", ",1,1,1,1,1,1,1,1", ",2", ",1,2", ",0,0,0"), 4,
        "at most 8 is allowed");
}

static void test_products(void **state) {
    (void)state;
    expect_entries("{\"a\":{\"dtype\":\"F32\",\"shape\":[@],\"data_offsets\":[0,4]}}",
                   PARTS("9223372036854775807,2,2", "4611686018427387904", "4294967296,4294967296",
                         "65536,65536,65536,65536", "2147483648,2147483648,4",
                         "9223372036854775807,9223372036854775807", "3,6148914691236517206",
                         "256,256,256,256,256,256,256,256", "9223372036854775807"),
                   4, "more than 2^64 bytes");
}

static void test_offsets(void **state) {
    (void)state;
    expect_entries("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":@}}",
                   PARTS("[4,0]", "[-4,0]", "[0,-4]", "[0.0,4.0]", "[\"0\",\"4\"]", "[0]",
                         "[0,4,8]", "[]", "null", "{}", "4", "[null,4]", "[[0,4]]"),
                   4, "data_offsets is not [begin, end]");
    expect_entries("{\"a\":{@}}",
                   PARTS("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]",
                         "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]",
                         "\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,4]",
                         "\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,4]",
                         "\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]",
                         "\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]",
                         "\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,5]",
                         "\"dtype\":\"I64\",\"shape\":[1,0,7],\"data_offsets\":[0,4]"),
                   4, "its offsets span");
}

/* Two entries of one byte each, and where they say they are; the file has `bytes` of data. */
static void test_layout(void **state) {
    static const struct {
        int a, b;
        size_t bytes;
        const char *says;
    } rows[] = {
        {1, 2, 3, "belong to no tensor"},
        {0, 2, 3, "belong to no tensor"},
        {2, 0, 3, "belong to no tensor"},
        {3, 4, 5, "belong to no tensor"},
        {0, 9, 10, "belong to no tensor"},
        {9, 0, 10, "belong to no tensor"},
        {0, 1, 3, "belong to no tensor"},
        {1, 0, 99, "belong to no tensor"},
        {0, 0, 2, "overlaps"},
        {1, 1, 2, "belong to no tensor"},
        {0, 1, 1, "ends after the end"},
        {1, 0, 1, "ends after the end"},
        {0, 1, 0, "ends after the end"},
        {0, 0, 1, "overlaps"},
    };
    (void)state;
    char *dir = temp_make(), header[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}}",
                 rows[i].a, rows[i].a + 1, rows[i].b, rows[i].b + 1);
        expect_header(dir, header, rows[i].bytes, rows[i].says);
    }
    /* [0, 4) and the ways in which another range can reach into it, or into what follows. */
    for (int begin = 0; begin < 4; begin++)
        for (int length = 1; length < 4; length++) {
            snprintf(header, sizeof header,
                     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                     "\"b\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                     length, begin, begin + length);
            expect_header(dir, header, 7, begin == 0 && length < 4 ? "overlaps" : "overlaps 'a'");
        }
    temp_remove(dir);
}

static void test_names(void **state) {
    (void)state;
    const char *form = "{\"x@\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    expect_entries(form,
                   PARTS("\\n", "\\t", "\\u0001", "\\u001f", "\\u007f", "\\u0080", "\\u009f",
                         "a\\rb", "\\b", "\xc2\x85"),
                   4, "control character");
    char name[8][1300];
    const char *parts[8];
    for (int i = 0; i < 8; i++) {
        size_t length = 1024 + (size_t)i * (size_t)i * 5;
        memset(name[i], i % 2 ? 'n' : '.', length);
        name[i][length] = '\0';
        parts[i] = name[i];
    }
    expect_entries(form, parts, 8, 4, "at most 1024 are allowed");
}

/* Whatever is no regular file; looking does not wait for a writer. */
static void test_no_regular_files(void **state) {
    (void)state;
    char *dir = temp_make(), path[300];
    static const char *const names[] = {"pipe.safetensors", "link.safetensors", "loop.safetensors",
                                        "gone.safetensors"};
    snprintf(path, sizeof path, "%s/%s", dir, names[0]);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(path, "a device or pipe");
    assert_int_equal(symlink(path, temp_path(dir, names[1])), 0);
    expect_refused(temp_path(dir, names[1]), "a device or pipe");
    assert_int_equal(symlink("loop.safetensors", temp_path(dir, names[2])), 0);
    expect_refused(temp_path(dir, names[2]), "no such weights file");
    assert_int_equal(symlink("nowhere", temp_path(dir, names[3])), 0);
    expect_refused(temp_path(dir, names[3]), "no such weights file");
    expect_refused("/dev/zero", "a device or pipe");
    expect_refused("/dev/null", "a device or pipe");
    mkdir(temp_path(dir, "folder.safetensors"), 0700);
    expect_refused(temp_path(dir, "folder.safetensors"), "a folder with neither");
    expect_refused("", "no such weights file");
    temp_remove(dir);
}

static void test_indices(void **state) {
    (void)state;
    char *dir = temp_make(), text[512];
    static const char *const shards[] = {"../s.safetensors",
                                         "/tmp/s.safetensors",
                                         ".s.safetensors",
                                         "a/s.safetensors",
                                         "",
                                         "..",
                                         "s.bin",
                                         "s.safetensors/",
                                         "s"};
    static const char *const maps[] = {"[]",         "3",
                                       "null",       "\"s.safetensors\"",
                                       "true",       "{\"a\":null}",
                                       "{\"a\":{}}", "{\"a\":[\"s.safetensors\"]}"};
    static const char *const wrong[] = {"{\"b\":\"s.safetensors\"}",
                                        "{}",
                                        "{\"a\":\"s.safetensors\",\"b\":\"s.safetensors\"}",
                                        "{\"a\":\"2s.safetensors\",\"z\":\"s.safetensors\"}",
                                        "{\"a\":\"gone.safetensors\"}",
                                        "{\"a\":\"s.safetensors\",\"z\":\"gone.safetensors\"}",
                                        "{\"a\":\"twice.safetensors\",\"z\":\"s.safetensors\"}",
                                        "{\"A\":\"s.safetensors\"}",
                                        "{\"a \":\"s.safetensors\"}"};
    (void)state;
    const char *index = temp_path(dir, "model.safetensors.index.json");
    tensors_put(temp_path(dir, "s.safetensors"), "{\"a\":" GOOD "}", 4);
    tensors_put(temp_path(dir, "2s.safetensors"), "{\"z\":" GOOD "}", 4);
    tensors_put(temp_path(dir, "twice.safetensors"), "{\"a\":" GOOD "}", 4);
    for (size_t i = 0; i < 9; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", shards[i]);
        file_put(index, text, strlen(text));
        expect_refused(index, "a shard is a .safetensors file beside the index");
    }
    for (size_t i = 0; i < 8; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":%s}", maps[i]);
        file_put(index, text, strlen(text));
        expect_refused(index, "model.safetensors.index.json: ");
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":%s}", wrong[i]);
        file_put(index, text, strlen(text));
        expect_refused(index, "model.safetensors.index.json: ");
    }
    temp_remove(dir);
}

static int count_refusals(void **state) {
    (void)state;
    return refused >= 8 ? refused = 0 : -1;
}

#define TEST(name) cmocka_unit_test_teardown(name, count_refusals)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_short_files), TEST(test_header_length),
        TEST(test_first_byte),  TEST(test_utf8),
        TEST(test_strict_json), TEST(test_depth),
        TEST(test_duplicates),  TEST(test_metadata),
        TEST(test_entries),     TEST(test_dtypes),
        TEST(test_extents),     TEST(test_products),
        TEST(test_offsets),     TEST(test_layout),
        TEST(test_names),       TEST(test_no_regular_files),
        TEST(test_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

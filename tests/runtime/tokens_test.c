/* Token files: every format gives the same samples, sets of shards follow each other, and what each
 * kind of damage is called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/token_file.h"
#include "runtime/tokens.h"
#include "tests/runtime/toy.h"

enum { TOKENS = 23, LENGTH = 4 };

typedef struct Bytes {
    unsigned char at[4096];
    size_t count;
} Bytes;

static void put(Bytes *b, const void *from, size_t count) {
    assert_true(b->count + count <= sizeof b->at);
    memcpy(b->at + b->count, from, count);
    b->count += count;
}

static void put_header(Bytes *b, int32_t magic, int32_t version, int32_t count) {
    int32_t header[INF_TOKEN_HEADER_WORDS] = {magic, version, count};
    put(b, header, sizeof header);
}

/* Token i of the tests is 7 i + first, little-endian in `width` bytes. */
static void put_tokens(Bytes *b, int width, int first, int count) {
    for (int i = 0; i < count; i++) {
        int64_t token = 7 * i + first;
        put(b, &token, (size_t)width);
    }
}

static void put_npy(Bytes *b, const char *dictionary) {
    unsigned char start[10] = "\x93NUMPY\x01";
    size_t length = strlen(dictionary);
    start[8] = (unsigned char)length;
    put(b, start, sizeof start);
    put(b, dictionary, length);
}

static InfTokens read_good(const char *pattern, uint64_t length, int64_t vocabulary) {
    InfError e = {0};
    InfTokens t;
    bool absent;
    char *why;
    if (inf_tokens_read(&e, pattern, length, vocabulary, &t, &absent, &why) != INF_OK || absent)
        fail_msg("%s: %s", pattern, e.text ? e.text : why);
    return t;
}

/* Sample k is tokens [k LENGTH, k LENGTH + LENGTH] of 7 i + first. */
static void expect_samples(const InfTokens *t, uint64_t from, uint64_t count, int first) {
    for (uint64_t k = 0; k < count; k++) {
        const char *row = (const char *)t->rows + (from + k) * (LENGTH + 1) * t->width;
        for (uint64_t i = 0; i <= LENGTH; i++)
            assert_int_equal(inf_token_at(t, row, i), 7 * (int)(k * LENGTH + i) + first);
    }
}

static void test_formats(void **state) {
    static const struct {
        const char *descr; /* NULL: a header of llm.c, "": raw */
        int width, magic, version;
    } rows[] = {
        {NULL, 2, INF_TOKEN_MAGIC_U16, 1},
        {NULL, 4, INF_TOKEN_MAGIC_U32, 7},
        {"", 2, 0, 0},
        {"<u2", 2, 0, 0},
        {"<u4", 4, 0, 0},
        {"<i2", 2, 0, 0},
        {"<i4", 4, 0, 0},
        {"<i8", 8, 0, 0},
        {"<u8", 8, 0, 0},
        {"|u1", 1, 0, 0},
        {"|i1", 1, 0, 0},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "tokens");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Bytes b = {.count = 0};
        char text[128];
        int count = rows[i].width == 1 ? 17 : TOKENS;
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }\n",
                 rows[i].descr ? rows[i].descr : "", count);
        if (!rows[i].descr)
            put_header(&b, rows[i].magic, rows[i].version, count);
        else if (*rows[i].descr)
            put_npy(&b, text);
        put_tokens(&b, rows[i].width, 3, count);
        file_put(path, b.at, b.count);
        for (int wide = 0; wide < 2; wide++) {
            InfTokens t = read_good(path, LENGTH, wide ? 100000 : 1000);
            assert_int_equal(t.width, wide ? 4 : 2);
            assert_int_equal(t.samples, (count - 1) / LENGTH);
            assert_int_equal(t.tokens, count);
            expect_samples(&t, 0, t.samples, 3);
            inf_tokens_free(&t);
        }
    }
    temp_remove(dir);
}

/* Shards come in the order of their names, and no sample reaches over the end of one. */
static void test_shards(void **state) {
    static const int counts[] = {TOKENS, 5, 4, 1, 14};
    (void)state;
    char *dir = temp_make();
    for (int s = 4; s >= 0; s--) {
        Bytes b = {.count = 0};
        char name[32];
        snprintf(name, sizeof name, "train-%d.bin", s);
        put_header(&b, INF_TOKEN_MAGIC_U16, 1, counts[s]);
        put_tokens(&b, 2, 100 * s, counts[s]);
        file_put(temp_path(dir, name), b.at, b.count);
    }
    InfTokens t = read_good(temp_path(dir, "train-*.bin"), LENGTH, 1000);
    assert_int_equal(t.files, 5);
    assert_int_equal(t.tokens, 47);
    assert_int_equal(t.samples, 5 + 1 + 0 + 0 + 3);
    expect_samples(&t, 0, 5, 0);
    expect_samples(&t, 5, 1, 100);
    expect_samples(&t, 6, 3, 400);
    inf_tokens_free(&t);
    /* A file that is really called so. */
    Bytes b = {.count = 0};
    put_tokens(&b, 2, 9, 10);
    file_put(temp_path(dir, "train-*.bin"), b.at, b.count);
    t = read_good(temp_path(dir, "train-*.bin"), LENGTH, 1000);
    assert_int_equal(t.files, 1);
    expect_samples(&t, 0, 2, 9);
    inf_tokens_free(&t);
    temp_remove(dir);
}

/* More than one chunk, with a rest. */
static void test_large(void **state) {
    enum { COUNT = 700001, WIDE = 1000 };
    uint16_t *token = malloc(COUNT * sizeof *token);
    (void)state;
    char *dir = temp_make();
    for (uint32_t i = 0; i < COUNT; i++) token[i] = (uint16_t)(i % 65521);
    file_put(temp_path(dir, "raw"), token, COUNT * sizeof *token);
    InfTokens t = read_good(temp_path(dir, "raw"), WIDE, 65536);
    assert_int_equal(t.samples, 700);
    for (uint64_t k = 0; k < t.samples; k++)
        assert_memory_equal((uint16_t *)t.rows + k * (WIDE + 1), token + k * WIDE, 2 * (WIDE + 1));
    inf_tokens_free(&t);
    t = read_good(temp_path(dir, "raw"), 600000, 65536); /* a sample longer than a chunk */
    assert_int_equal(t.samples, 1);
    assert_memory_equal(t.rows, token, 2 * 600001);
    inf_tokens_free(&t);
    t = read_good(temp_path(dir, "raw"), 700001, 65536);
    assert_int_equal(t.samples, 0);
    inf_tokens_free(&t);
    free(token);
    temp_remove(dir);
}

static void expect_bad(const char *path, const char *says) {
    InfError e = {0};
    InfTokens t;
    bool absent;
    char *why;
    assert_int_equal(inf_tokens_read(&e, path, LENGTH, 500, &t, &absent, &why), INF_DATA);
    if (!strstr(e.text, says)) fail_msg("'%s' lacks '%s'", e.text, says);
    assert_non_null(strstr(e.text, path));
    assert_null(t.rows);
    inf_error_free(&e);
}

typedef struct Mutant {
    int32_t magic, version, count; /* magic 0: no header */
    const char *npy;               /* a dictionary, or NULL */
    int width, tokens;             /* what follows */
    int extra;                     /* bytes more, or fewer */
    const char *says;
} Mutant;

static const Mutant mutants[] = {
    {20240520, 1, 10, NULL, 2, 9, 0, "truncated: the header says 10 tokens of 2 bytes, so 1044"},
    {20240520, 1, 10, NULL, 2, 11, 0, "too long: the header says 10 tokens"},
    {20240520, 1, 10, NULL, 2, 10, 1, "too long: the header says 10 tokens"},
    {20240520, 1, 10, NULL, 2, 10, -1, "truncated: the header says 10 tokens"},
    {20240520, 1, 10, NULL, 4, 10, 0, "it looks like u32 tokens under a header for u16"},
    {20240801, 7, 10, NULL, 2, 10, 0, "it looks like u16 tokens under a header for u32"},
    {20240520, 1, -1, NULL, 2, 10, 0, "the header says 4294967295 tokens"},
    {20240801, 7, -1, NULL, 4, 10, 0, "the header says 4294967295 tokens"},
    {20240520, 2, 10, NULL, 2, 10, 0, "version 2 of a token file with magic 20240520; version 1"},
    {20240801, 1, 10, NULL, 4, 10, 0, "version 1 of a token file with magic 20240801; version 7"},
    {20240520, 1, 10, NULL, 2, 10, -100, "truncated: 944 bytes; the header alone takes 1024"},
    {20240520, 1, 10, NULL, 2, 0, -900, "truncated: 124 bytes; the header alone takes 1024"},
    {(int32_t)0x88d83401, 0, 0, NULL, 2, 10, 0, "wrong order (big-endian)"},
    {20240520, 1, 73, NULL, 2, 73, 0,
     "token 72 (at byte 1168) is 504; the model's vocabulary is 0"},
    {0, 0, 0, NULL, 2, 73, 0, "the file has no header, so it was read as raw u16"},
    {0, 0, 0, NULL, 2, 8, 1, "17 bytes, an odd number, and no header"},
    {0, 0, 0, NULL, 4, 10, 0, "every second 16-bit word is 0: it looks like u32"},
    {0, 0, 0, "{'descr': '<f4', 'shape': (10,)}", 4, 10, 0, "NumPy array of type '<f4'"},
    {0, 0, 0, "{'descr': '>u2', 'shape': (10,)}", 2, 10, 0, "big-endian integers"},
    {0, 0, 0, "{'descr': '<u2', 'shape': (2, 5)}", 2, 10, 0, "of shape (2, 5); tokens are of rank"},
    {0, 0, 0, "{'descr': '<u2', 'shape': ()}", 2, 10, 0, "of shape ()"},
    {0, 0, 0, "{'descr': '<u2', 'shape': (99999999999999999999,)}", 2, 10, 0, "of shape ("},
    {0, 0, 0, "{'descr': '<u2', 'shape': (9223372036854775808,)}", 2, 10, 0, "more than 2^64"},
    {0, 0, 0, "{'descr': '<u2', 'shape': (11,)}", 2, 10, 0, "truncated: the header says 11"},
    {0, 0, 0, "{'shape': (10,)}", 2, 10, 0, "lacks 'descr' or 'shape'"},
    {0, 0, 0, "{'descr': [('a', '<u2')], 'shape': (10,)}", 2, 10, 0, "NumPy array of type ["},
    {0, 0, 0, "{'descr': '<u2', 'shape': (4,)}", 2, 4, -20, "whose header claims"},
    {0, 0, 0, "{'descr': '<i8', 'shape': (73,)}", 8, 73, 0, "is 504; the model's vocabulary"},
};

static void test_mutants(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "mutant");
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        const Mutant *m = &mutants[i];
        Bytes b = {.count = 0};
        if (m->magic) put_header(&b, m->magic, m->version, m->count);
        if (m->npy) put_npy(&b, m->npy);
        put_tokens(&b, m->width, 0, m->tokens);
        b.count += (size_t)m->extra;
        file_put(path, b.at, b.count);
        expect_bad(path, m->says);
    }
    temp_remove(dir);
}

#define BYTES(text) text, sizeof(text) - 1

static void test_other_files(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
        const char *says;
    } rows[] = {
        {BYTES(""), "empty file; tokens are needed"},
        {BYTES("Call me Ishmael. Some years ago"),
         "this is text; make tokens of it: infinic tokeniz"},
        {BYTES("<!DOCTYPE html><html>"), "this is an HTML page"},
        {BYTES("\x1f\x8b\x08 and more"), "this is a gzip file"},
        {BYTES("PK\x03\x04 and more bytes"), "this is a zip archive"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"), "this is a git-LFS pointer"},
        {BYTES("\x93NUMPY"), "truncated inside the header of a NumPy array"},
        {BYTES("\x93NUMPY\x09\0\x10\0 and more"), "version 9 of the NumPy format"},
        {BYTES("\x93NUMPY\x02\0\xff\xff\xff\xff and"), "whose header claims 4294967295 bytes"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "other");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_put(path, rows[i].bytes, rows[i].count);
        expect_bad(path, rows[i].says);
    }
    expect_bad(dir, "is a folder, not a file");
    temp_remove(dir);
}

/* Values that 32 bits cannot hold are named as they are. */
static void test_values(void **state) {
    static const struct {
        const char *descr;
        int width;
        int64_t value;
        const char *says;
    } rows[] = {
        {"<i8", 8, INT64_C(1) << 40, "token 5 (at byte 98) is 1099511627776"},
        {"<i8", 8, -1, "is -1;"},
        {"<i4", 4, -100, "is -100;"},
        {"<u4", 4, UINT32_MAX, "is 4294967295;"},
        {"<i2", 2, -1, "is -1;"},
        {"<u2", 2, 65535, "is 65535;"},
        {"|i1", 1, -1, "is -1;"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "values.npy");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Bytes b = {.count = 0};
        char text[64];
        snprintf(text, sizeof text, "{'descr': '%s', 'shape': (10,), 'more': 1 }   \n",
                 rows[i].descr);
        put_npy(&b, text);
        put_tokens(&b, rows[i].width, 0, 5);
        put(&b, &rows[i].value, (size_t)rows[i].width);
        put_tokens(&b, rows[i].width, 0, 4);
        file_put(path, b.at, b.count);
        expect_bad(path, rows[i].says);
    }
    temp_remove(dir);
}

static void test_absent(void **state) {
    static const char *const names[] = {"/nowhere/train.bin", "/nowhere/train-*.bin"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        InfError e = {0};
        InfTokens t;
        bool absent = false;
        char *why = NULL;
        assert_int_equal(inf_tokens_read(&e, names[i], LENGTH, 500, &t, &absent, &why), INF_OK);
        assert_true(absent);
        assert_non_null(strstr(why, i ? "no file has such a name" : "there is no such file"));
        free(why);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_shards),
        cmocka_unit_test(test_large),   cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

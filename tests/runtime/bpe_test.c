/* Tokenizers: what the `tokenizers` library makes of texts (tests/reference/bpe_cases.json), both
 * forms of files, texts that come back byte for byte, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/bpe.h"
#include "runtime/plan.h"
#include "runtime/unicode.h"
#include "tests/runtime/toy.h"

static InfBpe *open_good(const char *where) {
    InfError e = {0};
    InfBpe *b = NULL;
    if (inf_bpe_open(&e, where, &b) != INF_OK) fail_msg("%s", e.text);
    return b;
}

static void expect_tokens(InfBpe *b, const char *text, size_t bytes, const json_t *want) {
    InfError e = {0};
    int32_t *token;
    size_t count;
    assert_int_equal(inf_bpe_encode_all(&e, b, text, bytes, &token, &count), INF_OK);
    for (size_t i = 0; i < count && i < json_array_size(want); i++)
        if (token[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("'%s': token %zu is %d, not %d", text, i, token[i],
                     (int)json_integer_value(json_array_get(want, i)));
    if (count != json_array_size(want))
        fail_msg("'%s': %zu tokens, not %zu", text, count, json_array_size(want));
    free(token);
}

/* Tokens' bytes one behind the other are the text. */
static void expect_back(InfBpe *b, const char *text, size_t bytes) {
    InfError e = {0};
    int32_t *token;
    size_t count, at = 0;
    assert_int_equal(inf_bpe_encode_all(&e, b, text, bytes, &token, &count), INF_OK);
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const char *part = inf_bpe_token(b, token[i], &n);
        assert_true(token[i] < inf_bpe_vocabulary(b) && n > 0 && at + n <= bytes);
        assert_memory_equal(text + at, part, n);
        at += n;
    }
    assert_int_equal(at, bytes);
    free(token);
}

static json_t *read_cases(void) {
    json_t *root = json_load_file("tests/reference/bpe_cases.json", JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    return root;
}

static void check_cases(const char *where, const char *key) {
    json_t *root = read_cases(), *row;
    InfBpe *b = open_good(where);
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, row) {
        json_t *text = json_object_get(row, "text");
        expect_tokens(b, json_string_value(text), json_string_length(text),
                      json_object_get(row, key));
        expect_back(b, json_string_value(text), json_string_length(text));
    }
    assert_true(i > 40);
    inf_bpe_close(b);
    json_decref(root);
}

static void test_cases(void **state) {
    (void)state;
    check_cases("tests/reference/bpe_gpt2.json", "gpt2");
    check_cases("tests/reference/bpe_llama3.json", "llama3");
}

/* The same tokenizer as tokenizer.json in a folder, and as vocab.json with merges.txt. */
static void test_folders(void **state) {
    (void)state;
    char *dir = temp_make();
    size_t bytes;
    char *text = file_get("tests/reference/bpe_gpt2.json", &bytes);
    json_t *root = json_loads(text, 0, NULL), *model = json_object_get(root, "model"), *row;
    FILE *merges = fopen(temp_path(dir, "merges.txt"), "w");
    size_t i;
    fputs("#version: 0.2\n", merges);
    json_array_foreach(json_object_get(model, "merges"), i, row)
        fprintf(merges, "%s %s\n", json_string_value(json_array_get(row, 0)),
                json_string_value(json_array_get(row, 1)));
    fclose(merges);
    json_dump_file(json_object_get(model, "vocab"), temp_path(dir, "vocab.json"), 0);
    check_cases(dir, "gpt2");
    file_put(temp_path(dir, "tokenizer.json"), text, bytes);
    check_cases(dir, "gpt2");
    json_decref(root);
    free(text);
    temp_remove(dir);
}

static void test_any_bytes(void **state) {
    char all[512];
    static const char *const where[] = {"bytes", "tests/reference/bpe_gpt2.json",
                                        "tests/reference/bpe_llama3.json"};
    (void)state;
    for (int i = 0; i < 512; i++) all[i] = (char)(i < 256 ? i : (i * 167) >> 3);
    for (int k = 0; k < 3; k++) {
        InfBpe *b = open_good(where[k]);
        expect_back(b, all, sizeof all);
        size_t bytes;
        assert_string_equal(inf_bpe_token(b, -1, &bytes), "");
        assert_string_equal(inf_bpe_token(b, inf_bpe_vocabulary(b), &bytes), "");
        assert_int_equal(bytes, 0);
        inf_bpe_close(b);
    }
}

/* A word without end takes no time beyond n log n. */
static void test_long_word(void **state) {
    enum { BYTES = 1 << 17 };
    char *text = malloc(BYTES);
    (void)state;
    InfBpe *b = open_good("tests/reference/bpe_gpt2.json");
    for (int i = 0; i < BYTES; i++) text[i] = "theandof"[(i % 4099 * (i % 31)) % 8];
    expect_back(b, text, BYTES);
    memset(text, ' ', BYTES);
    expect_back(b, text, BYTES);
    inf_bpe_close(b);
    free(text);
}

static void test_utf8(void **state) {
    static const struct {
        const char *text;
        uint32_t code, bytes;
        InfCharClass class;
    } rows[] = {
        {"A", 'A', 1, INF_CHAR_letter},
        {"\xc3\x9f", 0xdf, 2, INF_CHAR_letter},
        {"\xe0\xa5\xa7", 0x967, 3, INF_CHAR_number},
        {"\xe3\x80\x80", 0x3000, 3, INF_CHAR_space},
        {"\xf0\x9f\x98\x80", 0x1f600, 4, INF_CHAR_other},
        {"\xc0\x80", 0xfffd, 1, INF_CHAR_other},         /* overlong */
        {"\xed\xa0\x80", 0xfffd, 1, INF_CHAR_other},     /* surrogate */
        {"\xf4\x90\x80\x80", 0xfffd, 1, INF_CHAR_other}, /* beyond U+10FFFF */
        {"\xf8\x88\x80\x80", 0xfffd, 1, INF_CHAR_other},
        {"\xe3\x80", 0xfffd, 1, INF_CHAR_other}, /* cut */
        {"\x80", 0xfffd, 1, INF_CHAR_other},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        InfChar c = inf_char_at(rows[i].text, strlen(rows[i].text));
        if (c.code != rows[i].code || c.bytes != rows[i].bytes || c.class != rows[i].class)
            fail_msg("row %zu: U+%04X of %u bytes, class %d", i, c.code, c.bytes, c.class);
    }
    assert_int_equal(inf_char_at("", 0).bytes, 0);
}

static void expect_bad(const char *where, const char *says) {
    InfError e = {0};
    InfBpe *b;
    assert_int_equal(inf_bpe_open(&e, where, &b), INF_DATA);
    assert_null(b);
    if (!strstr(e.text, says)) fail_msg("'%s' lacks '%s'", e.text, says);
    inf_error_free(&e);
}

#define MODEL(rest) "{\"model\": {\"type\": \"BPE\", " rest "}, \"pre_tokenizer\": " LEVEL "}"
#define LEVEL       "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"

static void test_mutants(void **state) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "does not start with '{'"},
        {"{", "bad JSON"},
        {"[]", "does not start with '{'"},
        {"{}", "the model is 'of no type'"},
        {"{\"model\": {\"type\": \"WordPiece\"}}",
         "the model is 'WordPiece'; byte-level BPE is read"},
        {"{\"model\": {\"type\": \"BPE\"}}", "lacks its vocab or its merges"},
        {MODEL("\"vocab\": {\"a\": -1}, \"merges\": []"), "the id of 'a' is not in 0 to"},
        {MODEL("\"vocab\": {\"a\": 99999999999}, \"merges\": []"), "the id of 'a'"},
        {MODEL("\"vocab\": {\"a\": 1.5}, \"merges\": []"), "the id of 'a'"},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []"), "token 0 is both"},
        {MODEL("\"vocab\": {\"\": 0}, \"merges\": []"), "token 0 has no text"},
        {MODEL("\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []"), "bad JSON: duplicate"},
        {MODEL("\"vocab\": {\"\xe2\x96\x81the\": 0}, \"merges\": []"), "not byte-level BPE"},
        {MODEL("\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]"), "merge 1, of 'a' and 'b'"},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [[\"a\", \"b\"]]"), "no token"},
        {MODEL("\"vocab\": {\"a\": 0}, \"merges\": [7]"), "a merge = 7 is not understood"},
        {MODEL("\"dropout\": 0.1, \"vocab\": {\"a\": 0}, \"merges\": []"), "dropout = 0.1"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"normalizer\": {\"type\": "
         "\"NFC\"}}",
         "normalizer = {\"type\":\"NFC\"} is not understood"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": null}",
         "pre_tokenizer = "},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": " LEVEL
         ", \"added_tokens\": [{\"id\": 1, \"content\": \"<x>\", \"lstrip\": true}]}",
         "an added token"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "tokenizer.json");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_put(path, rows[i].text, strlen(rows[i].text));
        expect_bad(path, rows[i].says);
        expect_bad(dir, rows[i].says);
    }
    remove(path);
    expect_bad(dir, "neither tokenizer.json nor vocab.json with merges.txt");
    expect_bad("/nowhere/at/all", "there is no such tokenizer; it is 'bytes', or a folder");
    file_put(temp_path(dir, "vocab.json"), "{\"a\": 0}", 8);
    file_put(temp_path(dir, "merges.txt"), "a\n", 2);
    expect_bad(dir, "merges.txt: 'a' is no pair of tokens");
    temp_remove(dir);
}

/* A byte that the vocabulary lacks is met in the text. */
static void test_lacking_byte(void **state) {
    static const char text[] = MODEL("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []");
    InfError e = {0};
    int32_t *token;
    size_t count;
    (void)state;
    char *dir = temp_make();
    file_put(temp_path(dir, "tokenizer.json"), text, sizeof text - 1);
    InfBpe *b = open_good(dir);
    expect_back(b, "abba", 4);
    assert_int_equal(inf_bpe_encode_all(&e, b, "abc", 3, &token, &count), INF_DATA);
    assert_non_null(strstr(e.text, "no token for the byte 0x63"));
    assert_null(token);
    inf_error_free(&e);
    inf_bpe_close(b);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_any_bytes),    cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_utf8),         cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_lacking_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

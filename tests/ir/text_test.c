/* text_test.c - the IR's text: round trips, mistakes at their place, hostile bytes. */
#include "tests/ir/fixture.h"

#include "ir/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVERY "tests/ir/corpus/text_fuzz/every.txt"

static char *read_file(const char *path, size_t *bytes) {
    FILE *in = fopen(path, "rb");
    if (in == NULL) return NULL;
    char *text = calloc(1, 1 << 20);
    if (text != NULL) *bytes = fread(text, 1, (1 << 20) - 1, in);
    fclose(in);
    return text;
}

/* every.txt holds every op, attribute, role, region and setting, in the printer's own words. */
static void test_round_trip_of_everything(void **state) {
    (void)state;
    size_t bytes = 0;
    char *text = read_file(EVERY, &bytes);
    assert_non_null(text);
    Fixture f, again;
    fixture_read_bytes(&f, text, bytes);
    assert_string_equal(f.message, "");
    const char *once = fixture_print(&f, 0);
    fixture_read(&again, once);
    assert_string_equal(again.message, "");
    assert_string_equal(fixture_print(&again, 0), once);
    for (int op = OP_none + 1; op < OP_count; op++) {
        char word[64];
        snprintf(word, sizeof word, " = %s ", op_name((Op)op));
        assert_non_null(strstr(once, word));
    }
    for (int key = ATTR_none + 1; key < ATTR_count_; key++) {
        char word[64];
        snprintf(word, sizeof word, "%s=", attr_name((AttrKey)key));
        assert_non_null(strstr(once, word));
    }
    fixture_free(&f);
    fixture_free(&again);
    free(text);
}

/* The file is what the printer writes, byte for byte but for line breaks. */
static void test_printing_is_the_file(void **state) {
    (void)state;
    size_t bytes = 0;
    char *text = read_file(EVERY, &bytes);
    Fixture f;
    fixture_read_bytes(&f, text, bytes);
    const char *once = fixture_print(&f, 0);
    size_t i = 0, j = 0;
    for (;;) {
        while (text[i] == ' ' || text[i] == '\n') i++;
        while (once[j] == ' ' || once[j] == '\n') j++;
        assert_int_equal(text[i], once[j]);
        if (text[i] == '\0') break;
        i++, j++;
    }
    fixture_free(&f);
    free(text);
}

static void test_every_truncation_is_a_diagnostic(void **state) {
    (void)state;
    size_t bytes = 0;
    char *text = read_file(EVERY, &bytes);
    size_t step = getenv("INFINIC_LONG") != NULL ? 1 : 7;
    for (size_t n = 0; n + 2 < bytes; n += step) {
        Fixture f;
        fixture_read_bytes(&f, text, n);
        assert_false(f.ok);
        assert_string_not_equal(f.message, "");
        fixture_free(&f);
    }
    free(text);
}

static void test_a_damaged_byte_never_crashes(void **state) {
    (void)state;
    size_t bytes = 0;
    char *text = read_file(EVERY, &bytes);
    size_t step = getenv("INFINIC_LONG") != NULL ? 1 : 13;
    static const char damage[] = {'\0', '"', '{', '9', '-', '%', (char)0xFF, 'z'};
    for (size_t n = 0; n < bytes; n += step) {
        char kept = text[n];
        text[n] = damage[n / step % sizeof damage];
        Fixture f;
        fixture_read_bytes(&f, text, bytes);
        assert_true(f.ok || f.message[0] != '\0');
        fixture_free(&f);
        text[n] = kept;
    }
    free(text);
}

static void test_floats_read_back_to_the_same_bits(void **state) {
    (void)state;
    static const char *const exact[] = {"0.1",    "1e-300",
                                        "5e-324", "1.7976931348623157e+308",
                                        "-0",     "0.30000000000000004",
                                        "inf",    "-inf",
                                        "nan",    "1",
                                        "-2.5"};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        char text[200], want[64];
        snprintf(text, sizeof text, "graph f() { %%0 = const {value=%s} : f32[] return %%0 }",
                 exact[i]);
        snprintf(want, sizeof want, "{value=%s}", exact[i]);
        Fixture f;
        fixture_read(&f, text);
        assert_string_equal(f.message, "");
        assert_non_null(strstr(fixture_print(&f, 0), want));
        fixture_free(&f);
    }
}

static void test_types_may_be_left_out_and_lines_joined(void **state) {
    (void)state;
    Fixture f;
    fixture_read(&f,
                 "# a comment\ngraph f(%0: f32[4,8], %1: f32[4,8]) { %2 = mul %0, %1  return %2 }");
    assert_string_equal(f.message, "");
    assert_string_equal(fixture_print(&f, 0), "graph f(%0: f32[4,8], %1: f32[4,8]) {\n"
                                              "  %2 = mul %0, %1 : f32[4,8]\n"
                                              "  return %2\n"
                                              "}\n");
    fixture_free(&f);
}

static void test_locations_name_scope_and_place(void **state) {
    (void)state;
    Fixture f;
    fixture_read(&f,
                 "graph f(%0: f32[2]) {\n  %1 = neg %0 loc \"a.b\" \"m.it\":3:4\n  return %1\n}");
    assert_string_equal(f.message, "");
    assert_string_equal(scope_path(f.m, f.m->graph[0]->node[0]->scope), "a.b");
    assert_non_null(strstr(fixture_print(&f, PRINT_LOCATIONS),
                           "%1 = neg %0 : f32[2] loc \"a.b\" \"test.ir\":2:3\n"));
    fixture_free(&f);
}

/* ---- mistakes --------------------------------------------------------------------------- */

typedef struct Mistake {
    const char *text, *place, *message;
} Mistake;

static const Mistake mistakes[] = {
    {"", "1:1", "error[E030]: the text has no graph"},
    {"grph f() {}", "1:1", "expected graph, param, settings"},
    {"graph f(%0: f32[2]) { %2 = neg %0 return %2 }", "1:23", "%1 is next"},
    {"graph f(%0: f32[2]) { %1 = neg %1 return %1 }", "1:32",
     "a value that is defined above, got '%1'"},
    {"graph f(%0: f32[2]) { %1 = nog %0 return %1 }", "1:28",
     "an operation of ir/ops.def, got 'nog'"},
    {"graph f(%0: f32[2], %1: f32[3]) { %2 = add %0, %1 return %2 }", "1:35",
     "add: operands differ: f32[2] and f32[3]"},
    {"graph f(%0: f32[2]) { %1 = neg %0, %0 return %1 }", "1:23", "1 operand is needed, got 2"},
    {"graph f(%0: f32[2]) { %1 = neg %0 : f32[3] return %1 }", "1:23",
     "the result is f32[2], not f32[3]"},
    {"graph f(%0: f32[2]) { %1, %2 = neg %0 return %1 }", "1:23",
     "2 results are named, there are 1"},
    {"graph f(%0: f32[2]) { %1 = reduce_sum %0 return %1 }", "1:23", "attribute 'axes' is missing"},
    {"graph f(%0: f32[2]) { %1 = reduce_sum %0 {axes=[0], axes=[0]} return %1 }", "1:23",
     "attribute 'axes' is given twice"},
    {"graph f(%0: f32[2]) { %1 = neg %0 {axis=0} return %1 }", "1:23",
     "no attribute 'axis' is known here"},
    {"graph f(%0: f32[2]) { %1 = neg %0 {axle=0} return %1 }", "1:36",
     "an attribute of ir/attrs.def"},
    {"graph f(%0: f32[2]) { %1 = reshape %0 return %1 }", "1:23",
     "the result type must be written"},
    {"graph f(%0: f33[2]) { return %0 }", "1:13", "a type such as f32[4,8], got 'f33'"},
    {"graph f(%0: f32[-1]) { return %0 }", "1:13", "dimensions are not negative"},
    {"graph f(%0: f32[9223372036854775807,2]) { return %0 }", "1:13", "below 2^63"},
    {"graph f(%0: f32[9223372036854775808]) { return %0 }", "1:17", "the number is not within"},
    {"graph f(%0: f32[1,1,1,1,1,1,1,1,1]) { return %0 }", "1:33",
     "error[E026]: a list has more than 8 values"},
    {"graph f(%0: f32[2] wight(0)) { return %0 }", "1:20", "expected ',', got 'wight'"},
    {"graph f(%0: f32[2] weight(0)) { return %0 }", "1:1", "there is no such parameter"},
    {"graph f(%0: f32[2]) { return %0 } graph f(%0: f32[2]) { return %0 }", "1:41",
     "two graphs of this name"},
    {"graph f(%0: f32[2]) { return %0 ", "1:33", "expected ',', the text ends"},
    {"graph f(%0: f32[2]) { %1 = neg %0 !X return %1 }", "1:36", "a phase F, I, W or U, got 'X'"},
    {"graph f(%0: f32[2]) { %1 = neg %0 @moon+1 return %1 }", "1:36", "a region, got 'moon'"},
    {"settings { train.batches = 3 }", "1:12", "a setting of ir/text_words.c, got 'train.batches'"},
    {"settings { train.optimizer = lion }", "1:30", "one of its words, got 'lion'"},
    {"settings { train.batch = 3.5 }", "1:26", "an integer, got '3.5'"},
    {"settings { train.clip = 0x10 }", "1:25", "a number, got '0x10'"},
    {"settings { train.clip = 1e999 }", "1:25", "a number, got '1e999'"},
    {"settings { name = \"a\nb\" }", "1:19", "no closing quote on its line"},
    {"settings { name = \"\\q\" }", "1:19", "a string knows only"},
    {"param 1 \"w\" f32[2] init=zeros", "1:7", "parameter 0 is next, got 1"},
    {"param 0 \"w\" f32[2] init=ones stack=2", "1:36", "not within 0 and 1"},
    {"param 0 \"w\" f32[2] init=ones logical=[1,1]", "1:38",
     "the logical shape has 2 axes, the stored one 1"},
    {"segment 0 1 segment 1 1 segment 2 1 segment 3 1 segment 4 1", "1:57", "at most 4 segments"},
    {"graph f(%0: f32[2]) { %1 = kernel %0 {name=\"k\", form=\"map\"} { graph(%0: f32[3]) { %1 = "
     "neg %0 return %1 } } return %1 }",
     "1:23", "operand 0 is f32[2], the body has f32[3]"},
    {"graph f(%0: f32[2]) \x01", "1:21", "unexpected byte 0x01"},
};

static void test_mistakes_are_told_at_their_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        Fixture f;
        fixture_read(&f, mistakes[i].text);
        char place[32];
        snprintf(place, sizeof place, "test.ir:%s: ", mistakes[i].place);
        if (f.ok || strstr(f.message, place) != f.message ||
            strstr(f.message, mistakes[i].message) == NULL)
            fail_msg("%s\nwanted %s%s\ngot    %s", mistakes[i].text, place, mistakes[i].message,
                     f.message);
        assert_int_equal(f.diag.error_count, 1);
        fixture_free(&f);
    }
}

/* ---- hostile texts ---------------------------------------------------------------------- */

static char *repeated(const char *begin, const char *part, int n) {
    size_t part_bytes = strlen(part);
    char *text = calloc(1, strlen(begin) + part_bytes * (size_t)n + 1);
    if (text == NULL) abort();
    strcpy(text, begin);
    char *at = text + strlen(begin);
    for (int i = 0; i < n; i++, at += part_bytes) memcpy(at, part, part_bytes);
    return text;
}

static void assert_refused(const char *begin, const char *part, int n, const char *message) {
    char *text = repeated(begin, part, n);
    Fixture f;
    fixture_read(&f, text);
    assert_false(f.ok);
    if (strstr(f.message, message) == NULL) fail_msg("wanted %s, got %s", message, f.message);
    fixture_free(&f);
    free(text);
}

static void test_hostile_texts_are_refused(void **state) {
    (void)state;
    assert_refused("graph f(%0: f32[2]) { ",
                   "%1 = repeat %0 {count=2, ncarry=1, nconst=0, reverse=0} { graph(%0: f32[2]) {",
                   5000, "regions are nested deeper than 4");
    assert_refused("", "(((((((((", 10000, "expected graph");
    assert_refused("graph f(%0: f32[2]) { %1 = concat %0", ", %0", 100000,
                   "attribute 'axis' is missing");
    assert_refused("graph ", "a", 100000, "a token has 100000 bytes, the limit is 4096");
    assert_refused("graph f() { %", "9", 4000, "a value such as %3");
    assert_refused("graph f(%0: f32[2]) { %1 = neg %0 @slot+", "9", 400,
                   "the number is not within");
    assert_refused("graph f(%0: f32[2]) { %1 = neg %0 {", "axis=1, ", 1000, "an attribute of");
    assert_refused("graph f(", "%0: f32[2] none, ", 10, "expected ',', got 'none'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_of_everything),
        cmocka_unit_test(test_printing_is_the_file),
        cmocka_unit_test(test_every_truncation_is_a_diagnostic),
        cmocka_unit_test(test_a_damaged_byte_never_crashes),
        cmocka_unit_test(test_floats_read_back_to_the_same_bits),
        cmocka_unit_test(test_types_may_be_left_out_and_lines_joined),
        cmocka_unit_test(test_locations_name_scope_and_place),
        cmocka_unit_test(test_mistakes_are_told_at_their_place),
        cmocka_unit_test(test_hostile_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* IDX files: what is read, and what each kind of damage is called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <zlib.h>

#include "runtime/idx.h"
#include "tests/runtime/toy.h"

/* Three 2 x 2 images. */
static const char good[] = "\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x02"
                           "abcdefghijkl";
enum { GOOD_BYTES = 16 + 12 };

static void put_gz(const char *path, const void *bytes, unsigned count) {
    gzFile out = gzopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(gzwrite(out, bytes, count), count);
    assert_int_equal(gzclose(out), Z_OK);
}

static void expect_bad(const char *path, int ndim, const char *says) {
    InfError e = {0};
    uint32_t dims[3];
    uint8_t *values = NULL;
    uint64_t bytes = 0;
    assert_int_equal(inf_idx_read(&e, path, ndim, dims, &values, &bytes), INF_DATA);
    if (!strstr(e.text, says)) fail_msg("'%s' lacks '%s'", e.text, says);
    assert_non_null(strstr(e.text, path));
    inf_error_free(&e);
}

static void test_plain_and_gzip(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *plain = temp_path(dir, "plain"), *gz = temp_path(dir, "gz");
    file_put(plain, good, GOOD_BYTES);
    put_gz(gz, good, GOOD_BYTES);
    for (int i = 0; i < 2; i++) {
        InfError e = {0};
        uint32_t dims[3];
        uint8_t *values = NULL;
        uint64_t bytes = 0;
        assert_int_equal(inf_idx_read(&e, i ? gz : plain, 3, dims, &values, &bytes), INF_OK);
        assert_int_equal(dims[0], 3);
        assert_int_equal(dims[1], 2);
        assert_int_equal(dims[2], 2);
        assert_int_equal(bytes, 12);
        assert_memory_equal(values, "abcdefghijkl", 12);
        InfImages images = {.pixels = values, .pixel_bytes = bytes};
        inf_images_free(&images);
    }
    temp_remove(dir);
}

/* A literal and its length without the final zero. */
#define BYTES(text) text, sizeof(text) - 1

static void test_mutants(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
        int ndim;
        const char *says;
    } rows[] = {
        {BYTES(""), 3, "empty file; an IDX file of images starts with 16 bytes"},
        {BYTES("\0\0\x08"), 3, "truncated: 3 bytes; the header alone takes 16"},
        {good, 15, 3, "truncated: 15 bytes; the header alone takes 16"},
        {good, GOOD_BYTES - 1, 3, "truncated: the header says 28 bytes in all, the file has 27"},
        {good, GOOD_BYTES + 1, 3, "1 bytes too long"},
        {BYTES("\x03\x08\0\0\x03\0\0\0"), 3, "wrong order (little-endian)"},
        {BYTES("\0\0\x08\x01\0\0\0\x04"
               "abcd"),
         3, "rank 1 (labels); images have rank 3"},
        {good, GOOD_BYTES, 1, "rank 3 (images); labels have rank 1"},
        {BYTES("\0\0\x0D\x03\0\0\0\x01"), 3, "holds f32 values; bytes are needed"},
        {BYTES("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 3, "2^64"},
        {BYTES("\0\0\x08\x03\x7f\xff\xff\xff\0\0\0\x1c\0\0\0\x1c"), 3,
         "truncated: the header says"},
        {BYTES("\0\0\x08\x03\0\0\0\x01\0\0\0\0\0\0\0\x02"), 3, "extent 0 on axis 1"},
        {BYTES("\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x02"), 3, "extent 0 on axis 0"},
        {BYTES("<!DOCTYPE html><html>"), 3, "this is an HTML page"},
        {BYTES("\n  <html><body>404"), 3, "this is an HTML page"},
        {BYTES("PK\x03\x04 and more bytes"), 3, "this is a zip archive"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"), 3, "this is a git-LFS pointer"},
        {BYTES("\x80\x04\x95 and more bytes"), 3, "this is a Python pickle"},
        {BYTES("\x89PNG\r\n\x1a\n and more"), 3, "this is a PNG image"},
        {BYTES("label,pixel1,pixel2\n1,0,0"), 3, "not an IDX file: starts with 6c 61 62 65"},
    };
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "mutant");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_put(path, rows[i].bytes, rows[i].count);
        expect_bad(path, rows[i].ndim, rows[i].says);
    }
    temp_remove(dir);
}

static void test_damaged_gzip(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "gz"), *cut = temp_path(dir, "cut");
    /* A few kilobytes that do not compress, so that cutting loses values. */
    enum { SIDE = 64 };
    unsigned char *bytes = calloc(16 + SIDE * SIDE, 1);
    assert_non_null(bytes);
    memcpy(bytes, "\0\0\x08\x03\0\0\0\x01\0\0\0\x40\0\0\0\x40", 16);
    uint32_t x = 1;
    for (int i = 0; i < SIDE * SIDE; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[16 + i] = (unsigned char)(x >> 24);
    }
    put_gz(path, bytes, 16 + SIDE * SIDE);
    size_t count;
    char *packed = file_get(path, &count);
    file_put(cut, packed, count / 2);
    expect_bad(cut, 3, "truncated");
    file_put(cut, packed, 12);
    expect_bad(cut, 3, "truncated");
    packed[count / 2] ^= 0x55;
    packed[count / 2 + 1] ^= 0x55;
    file_put(cut, packed, count);
    expect_bad(cut, 3, "gzip");
    free(packed);

    put_gz(path, bytes, SIDE * SIDE);
    expect_bad(path, 3, "truncated: 4080 bytes of values, the header says 4096");
    memcpy(bytes + 4, "\0\0\0\x02", 4);
    bytes[8 + 3] = bytes[12 + 3] = 8;
    put_gz(path, bytes, 16 + 129);
    expect_bad(path, 3, "longer than the 128 bytes");
    memcpy(bytes + 4, "\x7f\xff\xff\xff", 4);
    put_gz(path, bytes, 16 + 128);
    expect_bad(path, 3, "(compressed)");
    put_gz(path, "<html></html>", 13);
    expect_bad(path, 3, "this is an HTML page");
    free(bytes);
    temp_remove(dir);
}

static void test_folder_is_no_file(void **state) {
    (void)state;
    char *dir = temp_make();
    expect_bad(dir, 3, "is a folder, not a file");
    expect_bad("/dev/zero", 3, "is a device or pipe, not a file");
    temp_remove(dir);
}

static InfCode read_split(const char *dir, const char *split, InfImages *images, bool *absent,
                          char **text) {
    InfError e = {0};
    InfCode code = inf_images_read(&e, dir, split, images, absent, text);
    if (code != INF_OK) *text = e.text;
    return code;
}

static void test_names(void **state) {
    static const char *const spellings[][2] = {
        {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
        {"train-images.idx3-ubyte", "train-labels.idx1-ubyte"},
        {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"},
        {"train-images.idx3-ubyte.gz", "train-labels-idx1-ubyte"},
    };
    static const char labels[] = "\0\0\x08\x01\0\0\0\x03\x00\x01\x09";
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char *dir = temp_make(), *text = NULL;
        const char *image = temp_path(dir, spellings[i][0]),
                   *label = temp_path(dir, spellings[i][1]);
        InfImages images;
        bool absent;
        if (strstr(image, ".gz"))
            put_gz(image, good, GOOD_BYTES);
        else
            file_put(image, good, GOOD_BYTES);
        if (strstr(label, ".gz"))
            put_gz(label, labels, 11);
        else
            file_put(label, labels, 11);
        assert_int_equal(read_split(dir, "train", &images, &absent, &text), INF_OK);
        assert_false(absent);
        assert_int_equal(images.count, 3);
        assert_memory_equal(images.labels, "\x00\x01\x09", 3);
        InfError e = {0};
        assert_int_equal(inf_images_check_labels(&e, &images, dir, 10), INF_OK);
        assert_int_equal(inf_images_check_labels(&e, &images, dir, 9), INF_DATA);
        assert_non_null(strstr(e.text, "label 9 of image 2 is out of range"));
        inf_error_free(&e);
        inf_images_free(&images);
        temp_remove(dir);
    }
}

static void test_missing_files_list_what_is_there(void **state) {
    (void)state;
    char *dir = temp_make(), *text = NULL;
    InfImages images;
    bool absent;
    file_put(temp_path(dir, "readme.txt"), "hello", 5);
    assert_int_equal(read_split(dir, "test", &images, &absent, &text), INF_OK);
    assert_true(absent);
    assert_non_null(strstr(text, "t10k-images-idx3-ubyte"));
    assert_non_null(strstr(text, "there is readme.txt"));
    free(text);
    assert_int_equal(read_split("/nonexistent/dir", "test", &images, &absent, &text), INF_OK);
    assert_true(absent);
    assert_non_null(strstr(text, "No such file"));
    free(text);

    toy_data(dir, "train", 3);
    remove(temp_path(dir, "train-labels-idx1-ubyte"));
    assert_int_equal(read_split(dir, "train", &images, &absent, &text), INF_DATA);
    assert_non_null(strstr(text, "no labels"));
    assert_non_null(strstr(text, "train-images-idx3-ubyte"));
    free(text);

    file_put(temp_path(dir, "train-labels-idx1-ubyte"), "\0\0\x08\x01\0\0\0\x02\x01\x01", 10);
    assert_int_equal(read_split(dir, "train", &images, &absent, &text), INF_DATA);
    assert_non_null(strstr(text, "holds 3 images but"));
    assert_non_null(strstr(text, "holds 2 labels"));
    free(text);
    temp_remove(dir);
}

/* The same mistakes through an executable: exit 4, and a hint where to look. */
static void test_exit_codes(void **state) {
    (void)state;
    char *dir = temp_make();
    Run r = RUN(&toy_plan, "train");
    assert_int_equal(r.code, 4);
    assert_non_null(strstr(r.err, "/nonexistent/toy"));
    assert_non_null(strstr(r.err, "hint"));
    run_free(&r);
    toy_data(dir, "train", 7);
    r = RUN(&toy_plan, "train", "--data", dir);
    assert_int_equal(r.code, 4);
    assert_non_null(strstr(r.err, "holds 7 samples; one step needs 8"));
    run_free(&r);
    toy_data(dir, "train", 9);
    file_put(temp_path(dir, "train-images-idx3-ubyte"), good, GOOD_BYTES);
    r = RUN(&toy_plan, "train", "--data", dir);
    assert_int_equal(r.code, 4);
    run_free(&r);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_gzip),
        cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_damaged_gzip),
        cmocka_unit_test(test_folder_is_no_file),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_missing_files_list_what_is_there),
        cmocka_unit_test(test_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

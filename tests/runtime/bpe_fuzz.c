/* Fuzz target: any bytes as tokenizer.json, and as a text for one. The reader must answer without a
 * sanitizer's complaint; a text must come back from its tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/infinic_fuzz_XXXXXX";

static void remove_input(void) { unlink(path); }

static void round_trip(InfBpe *b, const uint8_t *data, size_t size) {
    InfError e = {0};
    int32_t *token;
    size_t count, at = 0;
    if (inf_bpe_encode_all(&e, b, (const char *)data, size, &token, &count) == INF_OK) {
        for (size_t i = 0; i < count; i++) {
            size_t bytes;
            const char *text = inf_bpe_token(b, token[i], &bytes);
            if (bytes == 0 || bytes > size - at || memcmp(text, data + at, bytes) != 0) abort();
            at += bytes;
        }
        if (at != size) abort();
        free(token);
    }
    inf_error_free(&e);
}

static InfBpe *open_reference(const char *name) {
    InfError e = {0};
    InfBpe *b = NULL;
    if (inf_bpe_open(&e, name, &b) != INF_OK) inf_error_print(&e, "bpe_fuzz");
    if (!b) abort();
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static InfBpe *reference[2];
    if (fd < 0) {
        fd = mkstemp(path);
        atexit(remove_input);
        reference[0] = open_reference("tests/reference/bpe_gpt2.json");
        reference[1] = open_reference("tests/reference/bpe_llama3.json");
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    for (int i = 0; i < 2; i++) round_trip(reference[i], data, size);
    InfError e = {0};
    InfBpe *b;
    if (inf_bpe_open(&e, path, &b) == INF_OK) round_trip(b, data, size);
    inf_bpe_close(b);
    inf_error_free(&e);
    return 0;
}

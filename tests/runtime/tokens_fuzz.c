/* Fuzz target: any bytes as a token file. The reader must answer, in bounded memory, without a
 * sanitizer's complaint, and give tokens of the vocabulary only. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/infinic_fuzz_XXXXXX";

static void remove_input(void) { unlink(path); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemp(path);
        atexit(remove_input);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    static const int64_t vocabularies[] = {1, 500, 65536, 128256, INT32_MAX};
    for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies; v++) {
        InfError e = {0};
        InfTokens t;
        bool absent = false;
        char *why = NULL;
        uint64_t length = 1 + v * v;
        if (inf_tokens_read(&e, path, length, vocabularies[v], &t, &absent, &why) == INF_OK) {
            for (uint64_t i = 0; i < t.samples * (length + 1); i++) {
                int32_t token = inf_token_at(&t, t.rows, i);
                if (token < 0 || token >= vocabularies[v]) abort();
            }
            inf_tokens_free(&t);
        }
        free(why);
        inf_error_free(&e);
    }
    return 0;
}

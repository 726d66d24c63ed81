/* Fuzz target: any bytes as a weights file. Every tensor of a file that is accepted can be read. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/infinic_fuzz_XXXXXX";

static void remove_input(void) { unlink(path); }

static void read_all(const InfTensors *set) {
    for (int i = 0; i < set->count; i++) {
        const InfTensor *t = &set->tensors[i];
        InfError e = {0};
        float *values = malloc((size_t)t->count * sizeof *values + 1);
        if (!values || inf_tensors_find(set, t->name) != t) abort();
        if (inf_tensors_read_f32(&e, set, t, values) == INF_IO) abort();
        free(values);
        inf_error_free(&e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemp(path);
        atexit(remove_input);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    InfError e = {0};
    InfTensors set;
    if (inf_tensors_open(&e, path, &set) == INF_OK) {
        read_all(&set);
        inf_tensors_close(&set);
    }
    inf_error_free(&e);
    return 0;
}

/* Fuzz target: any bytes as an IDX file of images and of labels. The reader must answer, in bounded
 * memory, without a sanitizer's complaint. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/idx.h"

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
    for (int ndim = 1; ndim <= 3; ndim += 2) {
        InfError e = {0};
        uint32_t dims[3];
        InfImages images = {0};
        if (inf_idx_read(&e, path, ndim, dims, &images.pixels, &images.pixel_bytes) == INF_OK)
            inf_images_free(&images);
        inf_error_free(&e);
    }
    return 0;
}

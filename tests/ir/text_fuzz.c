/* text_fuzz.c - any bytes given to the IR reader end in a module or in diagnostics; what was read
 * prints, and reads back to the same text. */
#include "tests/ir/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Fixture f;
    fixture_read_bytes(&f, (const char *)data, size);
    if (f.ok == (f.message[0] != '\0')) abort();
    if (f.ok) {
        Fixture again;
        const char *once = fixture_print(&f, 0);
        fixture_read(&again, once);
        if (!again.ok || strcmp(fixture_print(&again, 0), once) != 0) abort();
        fixture_free(&again);
    }
    fixture_free(&f);
    return 0;
}

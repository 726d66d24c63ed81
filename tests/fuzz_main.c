/* fuzz_main.c - run a fuzz target without a fuzzing engine.
 *
 * usage: TARGET CORPUS_FOLDER
 *
 * Replays every file of the corpus in order of name; then makes mutants of them (bytes changed,
 * cut out, copied, spliced) from a fixed seed: 300 on every run, for a minute with INFINIC_LONG=1.
 * The target crashes, asserts or trips a sanitizer when something is wrong; the input at hand lies
 * in the file ./fuzz-TARGET.input of $BUILD then. The same targets link with libFuzzer.
 */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIZE_MAX_BYTES = 1 << 16, FILES_MAX = 4096, MUTANTS = 300 };

typedef struct {
    uint8_t *data;
    size_t size;
} Input;

static Input corpus[FILES_MAX];
static int corpus_count;
static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t random_below(size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return n ? (uint32_t)((state >> 33) % n) : 0;
}

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static int load(const char *folder) {
    struct dirent **names;
    int n = scandir(folder, &names, visible, alphasort);
    for (int i = 0; i < n && corpus_count < FILES_MAX; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        FILE *f = fopen(path, "rb");
        if (!f) return perror(path), -1;
        Input *in = &corpus[corpus_count++];
        in->data = malloc(SIZE_MAX_BYTES);
        in->size = fread(in->data, 1, SIZE_MAX_BYTES, f);
        fclose(f);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return n;
}

/* Changes `x` (of `size` bytes, room for SIZE_MAX_BYTES) in one way; returns the new size. */
static size_t mutate(uint8_t *x, size_t size) {
    size_t at = random_below(size), n = 1 + random_below(size - at < 64 ? size - at : 64);
    const Input *other = &corpus[random_below((size_t)corpus_count)];
    if (size == 0) return 0;
    if (at + n > size) n = size - at;
    switch (random_below(5)) {
    case 0: x[at] ^= (uint8_t)(1u << random_below(8)); return size;
    case 1: x[at] = (uint8_t)random_below(256); return size;
    case 2: memmove(x + at, x + at + n, size - at - n); return size - n;
    case 3:
        if (size + n > SIZE_MAX_BYTES) return size;
        memmove(x + at + n, x + at, size - at);
        return size + n;
    default:
        if (n > other->size) n = other->size;
        memcpy(x + at, other->data + random_below(other->size - n + 1), n);
        return size;
    }
}

static int try_input(const char *note, const uint8_t *data, size_t size) {
    FILE *f = fopen(note, "wb");
    if (!f) return perror(note), 1;
    fwrite(data, 1, size, f);
    if (fclose(f) != 0) return perror(note), 1;
    uint8_t *copy = malloc(size ? size : 1); // exact size: sanitizers see reads past the end
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]), 2;
    if (load(argv[1]) <= 0) return fprintf(stderr, "%s: no corpus\n", argv[1]), 1;
    const char *build = getenv("BUILD"), *name = strrchr(argv[0], '/');
    char note[PATH_MAX];
    snprintf(note, sizeof note, "%s/fuzz-%s.input", build ? build : ".", name ? name + 1 : argv[0]);
    for (int i = 0; i < corpus_count; i++)
        if (try_input(note, corpus[i].data, corpus[i].size) != 0) return 1;
    static uint8_t mutant[SIZE_MAX_BYTES];
    const char *longer = getenv("INFINIC_LONG");
    time_t end = time(NULL) + 60;
    int n = 0;
    for (; longer && *longer == '1' ? time(NULL) < end : n < MUTANTS; n++) {
        const Input *seed = &corpus[random_below((size_t)corpus_count)];
        size_t size = seed->size;
        memcpy(mutant, seed->data, size);
        for (uint32_t k = 1 + random_below(8); k > 0; k--) size = mutate(mutant, size);
        if (try_input(note, mutant, size) != 0) return 1;
    }
    remove(note);
    for (int i = 0; i < corpus_count; i++) free(corpus[i].data);
    printf("%d files and %d mutants\n", corpus_count, n);
    return 0;
}

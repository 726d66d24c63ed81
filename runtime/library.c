/* library.c - finds shared libraries and their functions. */
#include "runtime/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static const char *const folders[] = {"lib64", "lib", "targets/x86_64-linux/lib"};

/* Tries "base/folder/name"; what was tried is added to `tried`. */
static void *open_below(const char *base, const char *name, FILE *tried) {
    char path[PATH_BYTES];
    for (size_t i = 0; base && *base && i < sizeof folders / sizeof *folders; i++) {
        if (snprintf(path, sizeof path, "%s/%s/%s", base, folders[i], name) >= PATH_BYTES) continue;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        fprintf(tried, ", %s", path);
    }
    return NULL;
}

static void *open_any(const InfLibrary *which, FILE *tried) {
    const char *const bases[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (const char *const *name = which->names; *name; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        fprintf(tried, "%s%s", name == which->names ? "" : ", ", *name);
    }
    for (const char *const *name = which->names; which->toolkit && *name; name++)
        for (int i = 0; i < 3; i++) {
            bool seen = false;
            for (int k = 0; k < i; k++)
                seen = seen || (bases[i] && bases[k] && strcmp(bases[i], bases[k]) == 0);
            void *library = seen ? NULL : open_below(bases[i], *name, tried);
            if (library) return library;
        }
    return NULL;
}

InfCode inf_library_open(InfError *e, const InfLibrary *which, const InfSymbol *symbols, int count,
                         void **out) {
    char *tried = NULL;
    size_t length = 0;
    FILE *list = open_memstream(&tried, &length);
    if (!list) return inf_fail(e, INF_IO, "out of memory");
    void *library = open_any(which, list);
    fclose(list);
    if (!library)
        inf_fail(e, INF_IO, "%s is missing: looked for %s\n  = hint: %s", which->what, tried,
                 which->hint);
    free(tried);
    if (!library) return INF_IO;
    for (int i = 0; i < count; i++) {
        void *address = dlsym(library, symbols[i].name);
        memcpy(symbols[i].to, &address, sizeof address);
        if (address) continue;
        inf_fail(e, INF_IO, "%s (%s) is too old: it has no function %s\n  = hint: update it",
                 which->what, which->names[0], symbols[i].name);
        dlclose(library);
        return INF_IO;
    }
    *out = library;
    return INF_OK;
}

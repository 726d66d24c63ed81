/* library.h - shared libraries found at run time, so that an executable starts, explains itself
 * and fails politely where they are missing.
 */
#ifndef INF_RUNTIME_LIBRARY_H
#define INF_RUNTIME_LIBRARY_H

#include "runtime/status.h"

typedef struct InfSymbol {
    const char *name;
    void *to; /* the function pointer that receives the address */
} InfSymbol;

/* Opens the first of `names` (NULL at the end) that the loader finds, or that lies in the lib
 * folders of CUDA_HOME, CUDA_PATH or /usr/local/cuda, and looks up `count` symbols in it. A missing
 * library and a missing symbol are INF_IO.
 *   what   "the NVIDIA driver", for the message
 *   hint   what to do when it is missing
 *   out    for dlclose */
InfCode inf_library_open(InfError *e, const char *const *names, const char *what, const char *hint,
                         const InfSymbol *symbols, int count, void **out);

#endif

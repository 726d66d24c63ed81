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

typedef struct InfLibrary {
    const char *const *names; /* to try in this order; NULL at the end */
    bool toolkit;             /* also look where CUDA toolkits lie: CUDA_HOME, ... */
    const char *what;         /* "the NVIDIA driver", for messages */
    const char *hint;         /* what to do when it is missing */
} InfLibrary;

/* Opens the first name that is found and looks up `count` symbols in it. A missing library and a
 * missing symbol are INF_IO.
 *   out    for dlclose */
InfCode inf_library_open(InfError *e, const InfLibrary *library, const InfSymbol *symbols,
                         int count, void **out);

#endif

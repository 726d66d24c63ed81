/* nvrtc.h - NVIDIA's compiler of CUDA C, found at run time: no GPU and no toolkit's headers needed.
 *
 * A handle may be used by several threads at once, each compiling its own program.
 */
#ifndef INFINIC_CODEGEN_NVRTC_H
#define INFINIC_CODEGEN_NVRTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct Nvrtc Nvrtc;

/* NULL when no library is found; `why` (when given) then gets what was looked for, and what to do.
 */
Nvrtc *nvrtc_open(FILE *why);
void nvrtc_close(Nvrtc *n);

int nvrtc_version(const Nvrtc *n); /* 1000 * major + 10 * minor, as CUDA counts */

/* Whether "sm_90a" or "compute_80" is an architecture that this library knows; `why` as above. */
bool nvrtc_knows(const Nvrtc *n, const char *arch, FILE *why);

typedef struct NvrtcImage {
    unsigned char *bytes; /* fresh memory; NULL: it failed */
    size_t n;
    char *log; /* fresh memory, may be NULL */
} NvrtcImage;

/* Compiles a program without includes to a cubin ("sm_..") or to PTX ("compute_.."). */
NvrtcImage nvrtc_compile(const Nvrtc *n, const char *source, const char *name, const char *arch);

/* Everything beside the source and the architecture that the result depends on. */
const char *nvrtc_options_text(void);

#endif

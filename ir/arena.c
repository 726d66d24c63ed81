/* arena.c - bump allocation over a list of chunks; see arena.h. */
#include "ir/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, CHUNK_BYTES_MIN = 64 * 1024, EXIT_WORLD = 5 };

struct ArenaChunk {
    ArenaChunk *next;
    size_t used;
    size_t cap;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

static void memory_exhausted(size_t bytes) {
    fprintf(stderr, "infinic: out of memory: %zu more bytes were asked for\n", bytes);
    exit(EXIT_WORLD);
}

/* True when this call is the one that INFINIC_FAIL_ALLOC names (counting from 1). */
static int fails_on_purpose(void) {
    static unsigned long long fail_at = 0, calls = 0;
    static int known = 0;
    if (!known) {
        const char *text = getenv("INFINIC_FAIL_ALLOC");
        fail_at = text != NULL ? strtoull(text, NULL, 10) : 0;
        known = 1;
    }
    calls++;
    return calls == fail_at;
}

void *mem_alloc(size_t bytes) {
    void *p = fails_on_purpose() ? NULL : calloc(1, bytes > 0 ? bytes : 1);
    if (p == NULL) memory_exhausted(bytes);
    return p;
}

void mem_free(void *p) { free(p); }

static ArenaChunk *chunk_new(size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(ArenaChunk)) memory_exhausted(bytes);
    ArenaChunk *c = mem_alloc(sizeof(ArenaChunk) + bytes);
    c->cap = bytes;
    return c;
}

void *arena_alloc(Arena *a, size_t bytes) {
    if (bytes > SIZE_MAX - ARENA_ALIGN) memory_exhausted(bytes);
    size_t need = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (need == 0) need = ARENA_ALIGN;
    ArenaChunk *c = a->chunks;
    if (c == NULL || c->cap - c->used < need) {
        /* Chunks double up to a bound, so a large module costs few system calls. */
        size_t cap = CHUNK_BYTES_MIN;
        if (c != NULL && c->cap < (size_t)16 * 1024 * 1024) cap = c->cap * 2;
        if (cap < need) cap = need;
        ArenaChunk *fresh = chunk_new(cap);
        fresh->next = c;
        a->chunks = c = fresh;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->bytes_used += need;
    return p;
}

void *arena_alloc_array(Arena *a, size_t n, size_t size) {
    if (size != 0 && n > SIZE_MAX / size) memory_exhausted(SIZE_MAX);
    return arena_alloc(a, n * size);
}

char *arena_strndup(Arena *a, const char *s, size_t n) {
    char *copy = arena_alloc(a, n + 1);
    if (n > 0) memcpy(copy, s, n);
    return copy;
}

char *arena_strdup(Arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_vprintf(Arena *a, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0) n = 0;
    char *text = arena_alloc(a, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

char *arena_printf(Arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return text;
}

static void chunks_free(ArenaChunk *c) {
    while (c != NULL) {
        ArenaChunk *next = c->next;
        mem_free(c);
        c = next;
    }
}

void arena_reset(Arena *a) {
    ArenaChunk *newest = a->chunks;
    if (newest == NULL) return;
    chunks_free(newest->next);
    newest->next = NULL;
    memset(newest->data, 0, newest->used);
    newest->used = 0;
    a->bytes_used = 0;
}

void arena_free(Arena *a) {
    chunks_free(a->chunks);
    a->chunks = NULL;
    a->bytes_used = 0;
}

void *vec_reserve_one(Arena *a, void *data, uint32_t n, uint32_t *cap, size_t size) {
    if (n < *cap) return data;
    uint32_t cap_new = *cap == 0 ? 8 : *cap * 2;
    if (cap_new <= *cap) memory_exhausted(SIZE_MAX);
    void *bigger = arena_alloc_array(a, cap_new, size);
    if (n > 0) memcpy(bigger, data, (size_t)n * size);
    *cap = cap_new;
    return bigger;
}

/* arena.h - memory by lifetime.
 *
 * An arena hands out zeroed, 16-byte aligned memory and gives all of it back at once. Nothing
 * taken from an arena is freed singly. Every system allocation of the compiler goes through
 * mem_alloc, so running out of memory is one message and one exit, in one place, and a test can
 * make the n-th allocation fail: INFINIC_FAIL_ALLOC=n.
 *
 * Growable arrays live in arenas too: VEC(T) declares one, vec_push appends; growing leaves the
 * old block behind (doubling bounds the waste).
 */
#ifndef IR_ARENA_H
#define IR_ARENA_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ArenaChunk ArenaChunk;

typedef struct Arena {
    ArenaChunk *chunks; /* newest first; NULL for an empty arena */
    size_t bytes_used;  /* handed out since the last reset, padding included */
} Arena;

/* Zeroed memory, never NULL; valid until arena_reset or arena_free. */
void *arena_alloc(Arena *a, size_t bytes);

/* Zeroed memory for n items of `size` bytes; n * size is checked for overflow. */
void *arena_alloc_array(Arena *a, size_t n, size_t size);

/* A NUL-terminated copy of the first n bytes of s. */
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_strdup(Arena *a, const char *s);

#if defined(__GNUC__)
#define ARENA_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#else
#define ARENA_PRINTF(fmt_arg, first_arg)
#endif

/* A formatted string kept in the arena. */
char *arena_printf(Arena *a, const char *fmt, ...) ARENA_PRINTF(2, 3);
char *arena_vprintf(Arena *a, const char *fmt, va_list ap) ARENA_PRINTF(2, 0);

/* Forget everything but keep the newest chunk for reuse. */
void arena_reset(Arena *a);

/* Give everything back to the system. */
void arena_free(Arena *a);

#define ARENA_NEW(a, T)      ((T *)arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, T, n) ((T *)arena_alloc_array((a), (size_t)(n), sizeof(T)))

/* Growable array: VEC(int) v = {0}; vec_push(a, &v, 3); v.data[v.n - 1]. */
#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *data;                                                                                   \
        uint32_t n;                                                                                \
        uint32_t cap;                                                                              \
    }

/* Room for one more item of `size` bytes; returns the (possibly moved) data. */
void *vec_reserve_one(Arena *a, void *data, uint32_t n, uint32_t *cap, size_t size);

#define vec_push(a, v, ...)                                                                        \
    ((v)->data = vec_reserve_one((a), (v)->data, (v)->n, &(v)->cap, sizeof(*(v)->data)),           \
     (v)->data[(v)->n++] = (__VA_ARGS__))

/* The one road to the system's allocator: zeroed memory or a message and exit code 5. */
void *mem_alloc(size_t bytes);
void mem_free(void *p);

#endif

/* source.c - reading texts and finding lines and columns in them; see source.h. */
#include "ir/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sources_init(Sources *s, Arena *arena) {
    memset(s, 0, sizeof(*s));
    s->arena = arena;
    vec_push(arena, &s->files, (Source){.name = "", .text = "", .line_count = 1});
}

static void index_lines(Sources *s, Source *src) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < src->bytes; i++) n += src->text[i] == '\n';
    src->line_starts = ARENA_ARRAY(s->arena, uint32_t, n);
    src->line_count = n;
    uint32_t line = 0;
    src->line_starts[line++] = 0;
    for (uint32_t i = 0; i < src->bytes; i++)
        if (src->text[i] == '\n') src->line_starts[line++] = i + 1;
}

static uint32_t add_owned(Sources *s, const char *name, const char *text, uint32_t bytes) {
    Source src = {.name = arena_strdup(s->arena, name), .text = text, .bytes = bytes};
    index_lines(s, &src);
    vec_push(s->arena, &s->files, src);
    return s->files.n - 1;
}

uint32_t source_add(Sources *s, const char *name, const char *text, size_t bytes) {
    if (bytes > SOURCE_BYTES_MAX) bytes = SOURCE_BYTES_MAX;
    return add_owned(s, name, arena_strndup(s->arena, text, bytes), (uint32_t)bytes);
}

/* Read up to SOURCE_BYTES_MAX + 1 bytes; returns the count, or -1 with errno set. */
static int64_t read_all(int fd, char **text, Arena *arena, size_t guess) {
    size_t cap = guess + 1, n = 0;
    char *data = arena_alloc(arena, cap + 1);
    for (;;) {
        if (n == cap) {
            if (n > SOURCE_BYTES_MAX) break;
            size_t cap_new = cap * 2 < 65536 ? 65536 : cap * 2;
            if (cap_new > (size_t)SOURCE_BYTES_MAX + 1) cap_new = (size_t)SOURCE_BYTES_MAX + 1;
            char *bigger = arena_alloc(arena, cap_new + 1);
            memcpy(bigger, data, n);
            data = bigger;
            cap = cap_new;
        }
        ssize_t got = read(fd, data + n, cap - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        n += (size_t)got;
    }
    data[n] = '\0';
    *text = data;
    return (int64_t)n;
}

static const char *refuse_by_kind(const struct stat *st) {
    if (S_ISDIR(st->st_mode)) return "is a directory, not a file";
    if (!S_ISREG(st->st_mode) && !S_ISFIFO(st->st_mode)) return "is a device, not a file";
    if (S_ISREG(st->st_mode) && st->st_size > (off_t)SOURCE_BYTES_MAX)
        return "is larger than 16 MiB, the limit for a model file";
    return NULL;
}

uint32_t source_load(Sources *s, const char *path, const char **problem, bool *missing) {
    *missing = false;
    *problem = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        *missing = errno == ENOENT || errno == ENOTDIR;
        *problem = arena_printf(s->arena, "cannot be read: %s", strerror(errno));
        if (fd >= 0) close(fd);
        return 0;
    }
    *problem = refuse_by_kind(&st);
    if (*problem != NULL) {
        close(fd);
        return 0;
    }
    char *text = NULL;
    int64_t n = read_all(fd, &text, s->arena, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0);
    int code = errno;
    close(fd);
    if (n < 0) {
        *problem = arena_printf(s->arena, "cannot be read: %s", strerror(code));
        return 0;
    }
    if (n > (int64_t)SOURCE_BYTES_MAX) {
        *problem = "is larger than 16 MiB, the limit for a model file";
        return 0;
    }
    return add_owned(s, path, text, (uint32_t)n);
}

const Source *source_get(const Sources *s, uint32_t file) {
    return &s->files.data[file < s->files.n ? file : 0];
}

static Place place_of_byte(const Sources *s, uint32_t file, uint32_t byte) {
    if (file == 0 || file >= s->files.n) return (Place){NULL, 0, 0};
    const Source *src = source_get(s, file);
    if (byte > src->bytes) byte = src->bytes;
    uint32_t low = 0, high = src->line_count; /* line_starts[low] <= byte < line_starts[high] */
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (src->line_starts[mid] <= byte)
            low = mid;
        else
            high = mid;
    }
    uint32_t column = 1;
    for (uint32_t i = src->line_starts[low]; i < byte; i++)
        column += ((unsigned char)src->text[i] & 0xC0) != 0x80;
    return (Place){src->name, low + 1, column};
}

Place source_place(const Sources *s, Span span) { return place_of_byte(s, span.file, span.begin); }

Place source_place_end(const Sources *s, Span span) {
    return place_of_byte(s, span.file, span.end);
}

Span span_join(Span a, Span b) {
    if (a.file == 0) return b;
    if (b.file == 0 || b.file != a.file) return a;
    Span both = a;
    if (b.begin < both.begin) both.begin = b.begin;
    if (b.end > both.end) both.end = b.end;
    return both;
}

uint32_t source_utf8_width(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) return 1;
    uint32_t width = u[0] >= 0xC2 && u[0] <= 0xDF ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 : 4;
    if (u[0] < 0xC2 || u[0] > 0xF4 || width > n) return 0;
    for (uint32_t i = 1; i < width; i++)
        if ((u[i] & 0xC0) != 0x80) return 0;
    /* Overlong forms, surrogates and points past U+10FFFF show in the first two bytes. */
    unsigned first_two = (unsigned)u[0] << 8 | u[1];
    if (width == 3 && (first_two < 0xE0A0 || (first_two >= 0xEDA0 && first_two <= 0xEDBF)))
        return 0;
    if (width == 4 && (first_two < 0xF090 || first_two > 0xF48F)) return 0;
    return width;
}

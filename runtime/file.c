/* file.c - reading, listing and safely replacing files. */
#include "runtime/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/check.h"

InfCode inf_file_open(InfError *e, const char *path, InfFile *out) {
    *out = (InfFile){-1, 0, path};
    /* O_NONBLOCK: a named pipe must not hang us before we have seen that it is one. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return inf_fail_errno(e, "open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) {
        InfCode code = inf_fail_errno(e, "fstat", path);
        close(fd);
        return code;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return inf_fail(e, INF_DATA, "%s: is %s, not a file", path,
                        S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
    }
    out->fd = fd;
    out->size = (uint64_t)st.st_size;
    return INF_OK;
}

InfCode inf_file_read_at(InfError *e, const InfFile *f, uint64_t offset, void *to, uint64_t bytes) {
    char *at = to;
    while (bytes > 0) {
        size_t part = bytes > (1u << 30) ? (1u << 30) : (size_t)bytes;
        ssize_t got = pread(f->fd, at, part, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return inf_fail_errno(e, "read", f->path);
        if (got == 0)
            return inf_fail(e, INF_DATA, "%s: truncated: ends %llu bytes early", f->path,
                            (unsigned long long)bytes);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return INF_OK;
}

void inf_file_close(InfFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

typedef struct Signature {
    const char *bytes;
    size_t count;
    const char *what;
} Signature;

static const Signature signatures[] = {
    {"\x1f\x8b", 2, "a gzip file"},
    {"PK\x03\x04", 4, "a zip archive; unpack it first"},
    {"version https://git-lfs", 23, "a git-LFS pointer; run 'git lfs pull' to get the file itself"},
    {"\x80\x02", 2, "a Python pickle"},
    {"\x80\x03", 2, "a Python pickle"},
    {"\x80\x04", 2, "a Python pickle"},
    {"\x80\x05", 2, "a Python pickle"},
    {"\x89PNG", 4, "a PNG image"},
    {"\x93NUMPY", 6, "a NumPy array"},
    {"\x89HDF", 4, "an HDF5 file"},
    {"%PDF", 4, "a PDF document"},
    {"BZh", 3, "a bzip2 file; unpack it first"},
    {"\xfd"
     "7zXZ",
     5, "an xz file; unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "a zstd file; unpack it first"},
};

const char *inf_file_sniff(const unsigned char *head, size_t count) {
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (count >= signatures[i].count &&
            memcmp(head, signatures[i].bytes, signatures[i].count) == 0)
            return signatures[i].what;
    size_t i = 0;
    while (i < count && (head[i] == ' ' || head[i] == '\n' || head[i] == '\r' || head[i] == '\t'))
        i++;
    if (i + 1 < count && head[i] == '<' &&
        (head[i + 1] == '!' || head[i + 1] == 'h' || head[i + 1] == 'H' || head[i + 1] == '?'))
        return "an HTML page, probably an error page saved by a download";
    return NULL;
}

static int skip_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

void inf_dir_describe(FILE *out, const char *dir, int most) {
    struct dirent **names = NULL;
    int count = scandir(dir, &names, skip_hidden, alphasort);
    if (count < 0) {
        fprintf(out, "nothing: %s", strerror(errno));
        return;
    }
    if (count == 0) fputs("nothing", out);
    for (int i = 0; i < count; i++) {
        if (i < most) fprintf(out, "%s%s", i ? ", " : "", names[i]->d_name);
        free(names[i]);
    }
    if (count > most) fprintf(out, " and %d more", count - most);
    free(names);
}

char *inf_path_join(const char *dir, const char *name) {
    char *path = NULL;
    size_t length = strlen(dir);
    const char *slash = length > 0 && dir[length - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", dir, slash, name) < 0 ? NULL : path;
}

InfCode inf_writer_open(InfError *e, const char *path, InfWriter *out) {
    *out = (InfWriter){0};
    out->path = strdup(path);
    if (!out->path || asprintf(&out->temporary, "%s.tmp.%ld", path, (long)getpid()) < 0) {
        free(out->path);
        *out = (InfWriter){0};
        return inf_fail(e, INF_IO, "%s: out of memory", path);
    }
    out->stream = fopen(out->temporary, "wbe");
    if (!out->stream) {
        InfCode code = inf_fail_errno(e, "create", path);
        inf_writer_abandon(out);
        return code;
    }
    return INF_OK;
}

InfCode inf_writer_put(InfError *e, InfWriter *w, const void *from, size_t bytes) {
    if (bytes > 0 && fwrite(from, 1, bytes, w->stream) != bytes)
        return inf_fail_errno(e, "write", w->path);
    return INF_OK;
}

InfCode inf_writer_commit(InfError *e, InfWriter *w) {
    InfCode code = INF_OK;
    if (fflush(w->stream) != 0 || fsync(fileno(w->stream)) != 0)
        code = inf_fail_errno(e, "write", w->path);
    if (fclose(w->stream) != 0 && code == INF_OK) code = inf_fail_errno(e, "close", w->path);
    w->stream = NULL;
    if (code == INF_OK && rename(w->temporary, w->path) != 0)
        code = inf_fail_errno(e, "rename", w->path);
    if (code == INF_OK) {
        free(w->temporary);
        w->temporary = NULL;
    }
    inf_writer_abandon(w);
    return code;
}

void inf_writer_abandon(InfWriter *w) {
    if (w->stream) fclose(w->stream);
    if (w->temporary) unlink(w->temporary);
    free(w->temporary);
    free(w->path);
    *w = (InfWriter){0};
}

InfCode inf_dir_make(InfError *e, const char *path) {
    char *copy = strdup(path);
    if (!copy) return inf_fail(e, INF_IO, "%s: out of memory", path);
    InfCode code = INF_OK;
    for (char *at = copy + 1; code == INF_OK && *copy; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) code = inf_fail_errno(e, "mkdir", path);
        *at = kept;
        if (kept == '\0') break;
    }
    free(copy);
    struct stat st;
    if (code == INF_OK && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)))
        code = inf_fail(e, INF_IO, "%s: is not a folder", path);
    return code;
}

InfCode inf_disk_check(InfError *e, const char *path, uint64_t bytes) {
    struct statvfs st;
    uint64_t free_bytes = 0;
    if (statvfs(path, &st) != 0) return inf_fail_errno(e, "statvfs", path);
    if (!inf_mul(st.f_bavail, st.f_frsize, &free_bytes)) return INF_OK;
    if (free_bytes < bytes)
        return inf_fail(e, INF_IO, "%s: the disk is full: %llu bytes are needed, %llu are free",
                        path, (unsigned long long)bytes, (unsigned long long)free_bytes);
    return INF_OK;
}

InfCode inf_dir_sync(InfError *e, const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return inf_fail_errno(e, "open", path);
    InfCode code = fsync(fd) == 0 ? INF_OK : inf_fail_errno(e, "fsync", path);
    close(fd);
    return code;
}

InfCode inf_map_memory(InfError *e, uint64_t bytes, const char *what, void **out) {
    *out = NULL;
    if (bytes == 0) return INF_OK;
    void *at = bytes > SIZE_MAX ? MAP_FAILED
                                : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return inf_fail(e, INF_IO, "cannot reserve %llu bytes for %s: %s",
                        (unsigned long long)bytes, what, strerror(ENOMEM));
    *out = at;
    return INF_OK;
}

void inf_unmap_memory(void *at, uint64_t bytes) {
    if (at) munmap(at, (size_t)bytes);
}

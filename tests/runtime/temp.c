/* temp.c - temporary files, and programs run in a child with their output caught. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/toy.h"

static void must(int condition, const char *what) {
    if (!condition) {
        perror(what);
        exit(99);
    }
}

char *temp_make(void) {
    char *dir = strdup("/tmp/infinic_test_XXXXXX");
    must(dir && mkdtemp(dir), "mkdtemp");
    return dir;
}

static void remove_tree(const char *dir) {
    DIR *d = opendir(dir);
    must(d != NULL, dir);
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        char path[4096];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        struct stat st;
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(path);
        else
            unlink(path);
    }
    closedir(d);
    rmdir(dir);
}

void temp_remove(char *dir) {
    remove_tree(dir);
    free(dir);
}

const char *temp_path(const char *dir, const char *name) {
    static char buffers[256][4096];
    static int next;
    char *out = buffers[next++ % 256];
    snprintf(out, sizeof buffers[0], "%s/%s", dir, name);
    return out;
}

void file_put(const char *path, const void *bytes, size_t count) {
    FILE *out = fopen(path, "wb");
    must(out != NULL, path);
    must(fwrite(bytes, 1, count, out) == count, path);
    must(fclose(out) == 0, path);
}

char *file_get(const char *path, size_t *count) {
    FILE *in = fopen(path, "rb");
    if (!in) return NULL;
    must(fseek(in, 0, SEEK_END) == 0, path);
    long size = ftell(in);
    rewind(in);
    char *text = calloc((size_t)size + 1, 1);
    must(text && fread(text, 1, (size_t)size, in) == (size_t)size, path);
    fclose(in);
    if (count) *count = (size_t)size;
    return text;
}

static void put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (24 - 8 * i));
}

void toy_data(const char *dir, const char *base, uint32_t count) {
    char name[64];
    unsigned char *bytes = calloc(16 + 4 * (size_t)count, 1);
    must(bytes != NULL, "calloc");
    put_u32(bytes, 0x803);
    put_u32(bytes + 4, count);
    put_u32(bytes + 8, 2);
    put_u32(bytes + 12, 2);
    for (uint32_t i = 0; i < 4 * count; i++)
        bytes[16 + i] = (unsigned char)(40 * (i / 4) + 10 * (i % 4));
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", base);
    file_put(temp_path(dir, name), bytes, 16 + 4 * (size_t)count);

    put_u32(bytes, 0x801);
    for (uint32_t i = 0; i < count; i++) bytes[8 + i] = (unsigned char)(i % 2);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", base);
    file_put(temp_path(dir, name), bytes, 8 + (size_t)count);
    free(bytes);
}

void tensors_put(const char *path, const char *header, size_t data_bytes) {
    size_t length = strlen(header);
    unsigned char *bytes = calloc(8 + length + data_bytes, 1);
    must(bytes != NULL, "calloc");
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    file_put(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

enum { ARGS_MAX = 32 };

Run run_plan(const Plan *plan, const char *const *args) {
    char *dir = temp_make();
    char *argv[ARGS_MAX + 2];
    int argc = 0;
    argv[argc++] = strdup(plan->model);
    for (; args[argc - 1]; argc++) {
        must(argc <= ARGS_MAX, "too many arguments");
        argv[argc] = strdup(args[argc - 1]);
    }
    argv[argc] = NULL;
    fflush(NULL);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        int out = open(temp_path(dir, "out"), O_WRONLY | O_CREAT, 0600);
        int err = open(temp_path(dir, "err"), O_WRONLY | O_CREAT, 0600);
        must(out >= 0 && err >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0, "dup2");
        setenv("GOMP_SPINCOUNT", "1000", 1); /* or it would start this test program again */
        exit(inf_main(plan, argc, argv));
    }
    int status = 0;
    must(waitpid(child, &status, 0) == child, "waitpid");
    Run r = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
             .out = file_get(temp_path(dir, "out"), NULL),
             .err = file_get(temp_path(dir, "err"), NULL)};
    for (int i = 0; i < argc; i++) free(argv[i]);
    temp_remove(dir);
    return r;
}

void run_free(Run *r) {
    free(r->out);
    free(r->err);
}

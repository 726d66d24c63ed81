/* link.c - from the C text of a program to an executable, by the system's cc.
 *
 * cc is started with an argument vector, never through a shell, so no file name can be taken for
 * a command. Everything temporary lies in one private folder (TMPDIR or /tmp) that is removed on
 * every exit. The executable is linked there and moved to its place when complete, so a failure
 * never leaves half a file.
 */
#include "codegen/codegen.h"
#include "codegen/loop.h"
#include "codegen/program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { EXIT_INTERNAL = 3, EXIT_IO = 5, PATH_BYTES = 4096, ARGS_MAX = 64 };

static const char *const temp_files[] = {"program.c", "libinfinic_runtime.a", "program", "cc.log",
                                         "runtime/plan.h"};
static char temp_dir[PATH_BYTES];

static void temp_path(char *path, const char *name) {
    snprintf(path, 2 * PATH_BYTES, "%s/%s", temp_dir, name);
}

static void unlink_numbered(const char *stem, const char *suffix, int n) {
    char path[2 * PATH_BYTES], name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%d%s", stem, i, suffix);
        temp_path(path, name);
        unlink(path);
    }
}

void codegen_cleanup(void) {
    char path[2 * PATH_BYTES];
    if (!temp_dir[0]) return;
    for (size_t i = 0; i < sizeof temp_files / sizeof *temp_files; i++) {
        temp_path(path, temp_files[i]);
        unlink(path);
    }
    unlink_numbered("source", ".cu", PLAN_PARTS_MAX);
    unlink_numbered("image", "", IMAGES_MAX);
    temp_path(path, "runtime");
    rmdir(path);
    rmdir(temp_dir);
    temp_dir[0] = 0;
}

static int io_error(const char *doing, const char *path) {
    fprintf(stderr, "infinic: error: %s '%s': %s\n", doing, path, strerror(errno));
    return EXIT_IO;
}

static int temp_create(void) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = "/tmp";
    if (strlen(base) > PATH_BYTES - 32) {
        fprintf(stderr, "infinic: error: TMPDIR is longer than %d characters\n", PATH_BYTES - 32);
        return EXIT_IO;
    }
    char path[2 * PATH_BYTES];
    snprintf(temp_dir, sizeof temp_dir, "%s/infinic-XXXXXX", base);
    if (!mkdtemp(temp_dir)) {
        temp_dir[0] = 0;
        return io_error("cannot make a temporary folder in", base);
    }
    temp_path(path, "runtime");
    if (mkdir(path, 0700) != 0) return io_error("cannot make the folder", path);
    return 0;
}

static int write_bytes(const char *name, const unsigned char *data, size_t bytes) {
    char path[2 * PATH_BYTES];
    temp_path(path, name);
    FILE *f = fopen(path, "wb");
    if (!f) return io_error("cannot write", path);
    bool ok = fwrite(data, 1, bytes, f) == bytes;
    ok = fclose(f) == 0 && ok;
    return ok ? 0 : io_error("cannot write", path);
}

static int write_program(const Program *p) {
    char path[2 * PATH_BYTES];
    temp_path(path, "program.c");
    FILE *f = fopen(path, "wb");
    if (!f) return io_error("cannot write", path);
    codegen_print_c(p, f);
    bool ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    return ok ? 0 : io_error("cannot write", path);
}

typedef struct CcCommand {
    const char *arg[ARGS_MAX + 1];
    int n;
} CcCommand;

static void cc_add(CcCommand *cc, const char *arg) {
    if (cc->n < ARGS_MAX) cc->arg[cc->n++] = arg;
}

/* Splits the configured link libraries ("-lx -l:liby.a") at blanks, in place. */
static void cc_add_words(CcCommand *cc, char *words) {
    for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        cc_add(cc, w);
}

static void print_command(const CcCommand *cc) {
    for (int i = 0; i < cc->n; i++) fprintf(stderr, "%s%s", i ? " " : "", cc->arg[i]);
    fputc('\n', stderr);
}

/* cc's own output, after a failure. */
static void print_log(const char *path) {
    char buf[4096];
    FILE *f = fopen(path, "rb");
    for (size_t n; f && (n = fread(buf, 1, sizeof buf, f)) > 0;) fwrite(buf, 1, n, stderr);
    if (f) fclose(f);
}

/* Waits for cc. Returns its exit status, or 128 + signal. */
static int wait_for(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int spawn_cc(const CcCommand *cc, const char *log, int *status) {
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    char *argv[ARGS_MAX + 1];
    for (int i = 0; i <= cc->n; i++) memcpy(&argv[i], &cc->arg[i], sizeof argv[i]);
    int rc = posix_spawnp(&pid, cc->arg[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) return rc;
    *status = wait_for(pid);
    return *status == 127 ? ENOENT : 0;
}

static int run_cc(const CcCommand *cc) {
    char log[2 * PATH_BYTES];
    int status = 0;
    temp_path(log, "cc.log");
    int rc = spawn_cc(cc, log, &status);
    if (rc == ENOENT) {
        fprintf(stderr,
                "infinic: error: no C compiler: '%s' is not on the PATH\n"
                "  = hint: install one (Debian, Ubuntu: apt-get install gcc), or name it: "
                "CC=clang infinic ...\n",
                cc->arg[0]);
        return EXIT_IO;
    }
    if (rc != 0) {
        errno = rc;
        return io_error("cannot start", cc->arg[0]);
    }
    if (status == 0) return 0;
    fprintf(stderr, "infinic: error: '%s' failed with status %d; its own words:\n", cc->arg[0],
            status);
    print_log(log);
    return EXIT_INTERNAL;
}

static int copy_contents(int from, int to) {
    char buf[1 << 16];
    for (ssize_t n; (n = read(from, buf, sizeof buf)) != 0;) {
        if (n < 0) return -1;
        for (ssize_t done = 0; done < n;) {
            ssize_t w = write(to, buf + done, (size_t)(n - done));
            if (w < 0) return -1;
            done += w;
        }
    }
    return 0;
}

/* Moves the finished executable to `output`: through a file beside it, so that a full disk or a
 * running executable of that name never leaves half a file. */
static int place_output(const char *made, const char *output) {
    char part[PATH_BYTES];
    struct stat st;
    if (stat(output, &st) == 0 && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return io_error("cannot write", output);
    }
    if (snprintf(part, sizeof part, "%s.part", output) >= (int)sizeof part) {
        errno = ENAMETOOLONG;
        return io_error("cannot write", output);
    }
    /* a device is written, not replaced */
    bool special = stat(output, &st) == 0 && !S_ISREG(st.st_mode);
    if (special) snprintf(part, sizeof part, "%s", output);
    int from = open(made, O_RDONLY);
    int to = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0777);
    bool ok = from >= 0 && to >= 0 && copy_contents(from, to) == 0;
    int why = errno;
    if (from >= 0) close(from);
    if (to >= 0 && close(to) != 0 && ok) ok = false, why = errno;
    if (ok && !special && rename(part, output) != 0) ok = false, why = errno;
    if (ok) return 0;
    if (to >= 0 && !special) unlink(part);
    errno = why;
    return io_error("cannot write", output);
}

static int check_mpi(void) {
    if (INFINIC_MPI_LIBS[0]) return 0;
    fprintf(stderr,
            "infinic: error: this infinic was built without MPI, so it compiles for one rank only\n"
            "  = hint: install it (Debian, Ubuntu: apt-get install libopenmpi-dev) and build "
            "infinic again\n");
    return EXIT_IO;
}

static int compile_program(const Program *p, const LinkOptions *options, bool cuda) {
    char source[2 * PATH_BYTES], archive[2 * PATH_BYTES], made[2 * PATH_BYTES];
    char map[2 * PATH_BYTES], images[2 * PATH_BYTES], march[256], libs[] = INFINIC_LINK_LIBS;
    char mpi[] = INFINIC_MPI_LIBS;
    const char *compiler = getenv("CC");
    temp_path(source, "program.c");
    temp_path(archive, "libinfinic_runtime.a");
    temp_path(made, "program");
    snprintf(map, sizeof map, "-ffile-prefix-map=%s/=", temp_dir);
    snprintf(images, sizeof images, "-Wa,-I,%s", temp_dir);
    snprintf(march, sizeof march, "-march=%s", options->march ? options->march : "native");
    CcCommand cc = {0};
    const char *const files[] = {map, "-I", temp_dir, "-o", made, source, archive};
    cc_add(&cc, compiler && *compiler ? compiler : "cc");
    if (cuda) cc_add(&cc, images);
    if (!cuda || options->march) cc_add(&cc, march); /* without kernels any processor will do */
    for (const char *const *flag = loop_c_flags; *flag; flag++) cc_add(&cc, *flag);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) cc_add(&cc, files[i]);
    if (program_is_joint(p)) cc_add_words(&cc, mpi);
    cc_add_words(&cc, libs);
    if (options->verbose) print_command(&cc);
    int rc = run_cc(&cc);
    if (rc == EXIT_INTERNAL && program_is_joint(p))
        fprintf(stderr,
                "  = hint: programs of several ranks link MPI (%s): is it installed? (Debian, "
                "Ubuntu: apt-get install libopenmpi-dev)\n",
                INFINIC_MPI_LIBS);
    return rc ? rc : place_output(made, options->output);
}

int codegen_link(const Program *p, const LinkOptions *options) {
    int rc = program_is_joint(p) ? check_mpi() : 0;
    if (!rc) rc = temp_create();
    if (!rc) rc = write_program(p);
    if (!rc) rc = write_bytes("libinfinic_runtime.a", options->archive, options->archive_bytes);
    if (!rc) rc = write_bytes("runtime/plan.h", options->plan_h, options->plan_h_bytes);
    bool cuda = p->mod->target == TARGET_cuda;
    if (!rc && cuda) rc = image_compile(p, temp_dir, options->verbose);
    if (!rc) rc = compile_program(p, options, cuda);
    codegen_cleanup();
    return rc;
}

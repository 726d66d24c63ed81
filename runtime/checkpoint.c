/* checkpoint.c - saves and restores a run. */
#include "runtime/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/file.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

enum { STATE_BYTES_MAX = 1 << 20, PART_BYTES = 1 << 20, NAME_BYTES = 40 };

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors"};
enum { FILE_COUNT = sizeof file_names / sizeof *file_names };

typedef struct FileMark {
    uint64_t bytes;
    char hash[17]; /* XXH64 in hex */
} FileMark;

static InfCode hash_parts(InfError *e, const InfFile *f, unsigned char *part,
                          XXH64_state_t *state) {
    for (uint64_t at = 0; at < f->size;) {
        uint64_t n = f->size - at < PART_BYTES ? f->size - at : PART_BYTES;
        TRY(inf_file_read_at(e, f, at, part, n));
        XXH64_update(state, part, (size_t)n);
        at += n;
    }
    return INF_OK;
}

static InfCode mark_file(InfError *e, const char *path, FileMark *out) {
    InfFile f;
    TRY(inf_file_open(e, path, &f));
    XXH64_state_t *state = XXH64_createState();
    unsigned char *part = malloc(PART_BYTES);
    InfCode code = INF_OK;
    if (!state || !part) {
        code = inf_fail(e, INF_IO, "out of memory");
    } else {
        XXH64_reset(state, 0);
        code = hash_parts(e, &f, part, state);
        out->bytes = f.size;
        snprintf(out->hash, sizeof out->hash, "%016llx", (unsigned long long)XXH64_digest(state));
    }
    free(part);
    XXH64_freeState(state);
    inf_file_close(&f);
    return code;
}

static void print_state(FILE *out, const Plan *plan, const InfState *s, const FileMark *marks) {
    char hash[17];
    InfJson j;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)plan->hash);
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_put_int(&j, "step", s->step);
    inf_json_put_int(&j, "updates", s->updates);
    inf_json_put_int(&j, "samples", (int64_t)s->samples);
    inf_json_put_int(&j, "microbatches", (int64_t)s->microbatches);
    inf_json_put_int(&j, "seed", (int64_t)s->seed);
    inf_json_put_int(&j, "set", (int64_t)s->set);
    inf_json_put_bool(&j, "shuffle", s->shuffle);
    inf_json_put_text(&j, "model", plan->model);
    inf_json_put_text(&j, "plan", hash);
    inf_json_key(&j, "files");
    inf_json_open(&j, '{');
    for (int i = 0; i < FILE_COUNT; i++) {
        inf_json_key(&j, file_names[i]);
        inf_json_open(&j, '{');
        inf_json_put_int(&j, "bytes", (int64_t)marks[i].bytes);
        inf_json_put_text(&j, "xxh64", marks[i].hash);
        inf_json_close(&j);
    }
    inf_json_close(&j);
    inf_json_close(&j);
    fputc('\n', out);
}

/* Replaces a small file as a whole. */
static InfCode write_text(InfError *e, const char *dir, const char *name, const char *text) {
    char *path = inf_path_join(dir, name);
    InfWriter w;
    InfCode code = path ? inf_writer_open(e, path, &w) : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) {
        code = inf_writer_put(e, &w, text, strlen(text));
        if (code == INF_OK)
            code = inf_writer_commit(e, &w);
        else
            inf_writer_abandon(&w);
    }
    free(path);
    return code;
}

static InfCode write_state(InfError *e, const char *dir, const Plan *plan, const InfState *state,
                           const FileMark *marks) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out) return inf_fail(e, INF_IO, "out of memory");
    print_state(out, plan, state, marks);
    fclose(out);
    InfCode code = write_text(e, dir, "state.json", text);
    free(text);
    return code;
}

/* All ranks bring their values; the folder is one rank's. */
static bool writes(const InfEngine *m) { return inf_engine_leads(m); }

static InfCode write_files(InfError *e, const InfParams *params, const InfEngine *m,
                           const char *dir, const InfState *state) {
    FileMark marks[FILE_COUNT];
    for (int i = 0; i < FILE_COUNT; i++) {
        char *path = inf_path_join(dir, file_names[i]);
        InfCode code = path ? INF_OK : inf_fail(e, INF_IO, "out of memory");
        if (code == INF_OK)
            code = i == 0 ? inf_params_save(e, params, m, path, INF_VALUES_weights, 1.0f)
                          : inf_optimizer_save(e, params, m, path, state->updates);
        if (code == INF_OK && writes(m)) code = mark_file(e, path, &marks[i]);
        free(path);
        TRY(code);
    }
    if (!writes(m)) return INF_OK;
    TRY(write_state(e, dir, m->plan, state, marks));
    return inf_dir_sync(e, dir);
}

/* Removes a checkpoint folder that was left half written. */
static void remove_folder(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d))
        unlinkat(dirfd(d), entry->d_name, 0);
    closedir(d);
    rmdir(dir);
}

/* Moves the finished folder to its name. One that is there already (the same step, saved before a
 * resume) changes places with it in one go, so that a kill never leaves neither. */
static InfCode move_into_place(InfError *e, const char *temporary, const char *final) {
    if (rename(temporary, final) == 0) return INF_OK;
    if (errno != EEXIST && errno != ENOTEMPTY) return inf_fail_errno(e, "rename", final);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) != 0)
        return inf_fail_errno(e, "renameat2", final);
    remove_folder(temporary);
    return INF_OK;
}

static InfCode publish(InfError *e, const char *out, const char *temporary, const char *final,
                       const char *name) {
    char line[NAME_BYTES + 1];
    TRY(move_into_place(e, temporary, final));
    TRY(inf_dir_sync(e, out));
    snprintf(line, sizeof line, "%s\n", name);
    TRY(write_text(e, out, "latest", line));
    return inf_dir_sync(e, out);
}

static InfCode begin(InfError *e, const char *out, const char *temporary) {
    TRY(inf_dir_make(e, out));
    remove_folder(temporary);
    return inf_dir_make(e, temporary);
}

InfCode inf_checkpoint_save(InfError *e, const InfParams *params, const InfEngine *m,
                            const char *out, const InfState *state, char **folder) {
    char name[NAME_BYTES], hidden[NAME_BYTES + 8];
    snprintf(name, sizeof name, "step-%08lld", (long long)state->step);
    snprintf(hidden, sizeof hidden, ".%s.tmp", name);
    char *temporary = inf_path_join(out, hidden);
    *folder = inf_path_join(out, name);
    InfCode code = temporary && *folder ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK && writes(m)) code = begin(e, out, temporary);
    code = inf_params_agree(e, m, code);
    if (code == INF_OK) code = write_files(e, params, m, temporary, state);
    if (code == INF_OK) {
        if (writes(m)) code = publish(e, out, temporary, *folder, name);
        code = inf_params_agree(e, m, code);
    }
    if (code != INF_OK && temporary && writes(m)) remove_folder(temporary);
    free(temporary);
    return code;
}

static bool get_int(json_t *root, const char *key, int64_t *to) {
    json_t *value = json_object_get(root, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *to = json_integer_value(value);
    return true;
}

static InfCode check_file(InfError *e, const char *dir, const char *name, json_t *files) {
    json_t *want = json_object_get(files, name);
    char *path = inf_path_join(dir, name);
    FileMark mark = {0};
    InfCode code = path ? mark_file(e, path, &mark) : inf_fail(e, INF_IO, "out of memory");
    const char *hash = json_string_value(json_object_get(want, "xxh64"));
    json_t *bytes = json_object_get(want, "bytes");
    if (code == INF_OK && (!hash || !json_is_integer(bytes)))
        code = inf_fail(e, INF_DATA, "%s/state.json: lacks size or hash of %s", dir, name);
    if (code == INF_OK && (uint64_t)json_integer_value(bytes) != mark.bytes)
        code = inf_fail(e, INF_DATA, "%s: has %llu bytes, %lld in state.json", path,
                        (unsigned long long)mark.bytes, (long long)json_integer_value(bytes));
    if (code == INF_OK && strcmp(hash, mark.hash) != 0)
        code = inf_fail(e, INF_DATA, "%s: does not match its hash in state.json", path);
    free(path);
    return code;
}

static InfCode parse_state(InfError *e, const char *dir, const char *path, json_t *root,
                           InfState *out) {
    int64_t samples = 0, microbatches = 0, seed = 0, set = 0;
    json_t *shuffle = json_object_get(root, "shuffle");
    if (!get_int(root, "step", &out->step) || !get_int(root, "updates", &out->updates) ||
        !get_int(root, "samples", &samples) || !get_int(root, "microbatches", &microbatches) ||
        !get_int(root, "seed", &seed) || !get_int(root, "set", &set) || !json_is_boolean(shuffle))
        return inf_fail(e, INF_DATA,
                        "%s: lacks step, updates, samples, microbatches, seed, set or shuffle",
                        path);
    out->samples = (uint64_t)samples;
    out->microbatches = (uint64_t)microbatches;
    out->seed = (uint64_t)seed;
    out->set = (uint64_t)set;
    out->shuffle = json_is_true(shuffle);
    for (int i = 0; i < FILE_COUNT; i++)
        TRY(check_file(e, dir, file_names[i], json_object_get(root, "files")));
    return INF_OK;
}

/* Reads state.json and compares the files with their hashes. */
static InfCode read_state(InfError *e, const char *dir, InfState *out) {
    char *path = inf_path_join(dir, "state.json"), *text = NULL;
    InfFile f = {.fd = -1};
    json_t *root = NULL;
    InfCode code = path ? inf_file_open(e, path, &f) : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK && f.size > STATE_BYTES_MAX)
        code = inf_fail(e, INF_DATA, "%s: too large", path);
    if (code == INF_OK) {
        text = malloc((size_t)f.size + 1);
        code =
            text ? inf_file_read_at(e, &f, 0, text, f.size) : inf_fail(e, INF_IO, "out of memory");
    }
    if (code == INF_OK) code = inf_json_parse(e, path, text, (size_t)f.size, &root);
    if (code == INF_OK) code = parse_state(e, dir, path, root, out);
    json_decref(root);
    inf_file_close(&f);
    free(text);
    free(path);
    return code;
}

/* A folder or file that a run left behind when it was killed in the middle of a save. */
static int is_leftover(const struct dirent *entry) {
    const char *name = entry->d_name, *tmp = strstr(name, ".tmp");
    if (strncmp(name, ".step-", 6) == 0) return tmp && strcmp(tmp, ".tmp") == 0;
    return tmp && (strncmp(name, "latest.tmp.", 11) == 0 ||
                   strncmp(name, "model.safetensors.tmp.", 22) == 0);
}

void inf_checkpoint_clean(const char *out) {
    struct dirent **names = NULL;
    int count = scandir(out, &names, is_leftover, alphasort);
    for (int i = 0; i < count; i++) {
        char *path = inf_path_join(out, names[i]->d_name);
        if (path && unlink(path) != 0) remove_folder(path);
        free(path);
        free(names[i]);
    }
    free(names);
}

static int is_step(const struct dirent *entry) { return strncmp(entry->d_name, "step-", 5) == 0; }

/* Whether `out` is one checkpoint rather than a folder of them. */
static bool is_checkpoint(const char *out) {
    char *path = inf_path_join(out, "state.json");
    bool there = path && access(path, F_OK) == 0;
    free(path);
    return there;
}

/* The newest folder whose state and hashes are good; `out` itself if it is a checkpoint. */
static InfCode find_good(InfError *e, const char *out, InfState *state, char **folder) {
    struct dirent **names = NULL;
    if (is_checkpoint(out)) {
        *folder = strdup(out);
        return *folder ? read_state(e, out, state) : inf_fail(e, INF_IO, "out of memory");
    }
    int count = scandir(out, &names, is_step, alphasort);
    if (count < 0) return inf_fail(e, INF_DATA, "%s: %s", out, strerror(errno));
    bool found = false;
    for (int i = count - 1; i >= 0; i--) {
        InfError trial = {0};
        char *dir = found ? NULL : inf_path_join(out, names[i]->d_name);
        free(names[i]);
        if (!dir) continue;
        if (read_state(&trial, dir, state) == INF_OK) {
            found = true;
            *folder = dir;
            continue;
        }
        inf_say("notice: the checkpoint %s is damaged and passed over: %s\n", dir,
                trial.text ? trial.text : "");
        inf_error_free(&trial);
        free(dir);
    }
    free(names);
    return found ? INF_OK : inf_fail(e, INF_DATA, "%s: holds no good checkpoint to resume", out);
}

InfCode inf_checkpoint_load(InfError *e, const InfParams *params, InfEngine *m, const char *out,
                            InfState *state, char **folder) {
    *folder = NULL;
    TRY(find_good(e, out, state, folder));
    char *model = inf_path_join(*folder, file_names[0]);
    char *optimizer = inf_path_join(*folder, file_names[1]);
    InfCode code = model && optimizer ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = inf_params_load(e, params, m, model);
    if (code == INF_OK) code = inf_optimizer_load(e, params, m, optimizer, &state->updates);
    free(model);
    free(optimizer);
    return code;
}

/* object.c - see object.h. */
#include "tests/codegen/object.h"

#include "tests/codegen/cuda_emulate.h"
#include "tests/codegen/object_device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct Entry {
    const char *name, *text;
    uint64_t text_hash, name_hash;
    uint32_t grid, block; /* CUDA; block 0: a C function */
    uint32_t shared_bytes;
    uint32_t then; /* 1 + the launch that follows on the same arguments; 0: none */
} Entry;

struct Object {
    Arena arena;
    VEC(LoopPrelude *) prelude; /* of kernels of text, each once */
    VEC(Entry) entry;
    uint32_t *by_text, *by_name; /* open addressing: entry + 1; a power of two slots */
    uint32_t slots;
    void *library;
    InfKernel *const *table;
    DeviceObject *device;
};

static void die(const char *what) {
    fprintf(stderr, "object: %s\n", what);
    exit(3);
}

Object *object_new(void) {
    Object *o = mem_alloc(sizeof *o);
    o->slots = 1 << 17;
    o->by_text = ARENA_ARRAY(&o->arena, uint32_t, o->slots);
    o->by_name = ARENA_ARRAY(&o->arena, uint32_t, o->slots);
    return o;
}

uint32_t object_count(const Object *o) { return o->entry.n; }

/* The slot of the entry with this name or text, or the free one where it would go. */
static uint32_t *find(const Object *o, uint32_t *slots, uint64_t hash, const char *name,
                      const char *text) {
    for (uint64_t i = hash;; i++) {
        uint32_t *slot = &slots[i & (o->slots - 1)];
        if (*slot == 0) return slot;
        const Entry *e = &o->entry.data[*slot - 1];
        if (text != NULL && e->text_hash == hash && strcmp(e->text, text) == 0) return slot;
        if (text == NULL && e->name_hash == hash && strcmp(e->name, name) == 0) return slot;
    }
}

uint32_t object_add(Object *o, const char *name, const char *text) {
    uint64_t text_hash = XXH64(text, strlen(text), 0), name_hash = XXH64(name, strlen(name), 0);
    uint32_t *at = find(o, o->by_text, text_hash, NULL, text);
    if (*at != 0) return *at - 1;
    if (o->entry.n >= o->slots / 2) die("too many kernels");
    Entry e = {.name = arena_strdup(&o->arena, name),
               .text = arena_strdup(&o->arena, text),
               .text_hash = text_hash,
               .name_hash = name_hash};
    vec_push(&o->arena, &o->entry, e);
    *at = o->entry.n;
    uint32_t *named = find(o, o->by_name, name_hash, name, NULL);
    if (*named == 0) *named = o->entry.n;
    return o->entry.n - 1;
}

bool object_on_device(void) {
    const char *target = getenv("INFINIC_TEST_TARGET");
    return target != NULL && strcmp(target, "device") == 0;
}

bool object_is_cuda(void) {
    const char *target = getenv("INFINIC_TEST_TARGET");
    return target != NULL && (strcmp(target, "cuda") == 0 || object_on_device());
}

void object_lend(void *at, size_t bytes) {
    if (object_on_device()) device_lend(at, bytes);
}

void object_give_back(void *at) {
    if (object_on_device()) device_give_back(at);
}

uint32_t object_add_cuda(Object *o, const char *name, const char *text, int64_t grid, int block) {
    Arena scratch = {0}; /* equal texts may run on grids of different sizes */
    uint32_t number =
        object_add(o, name, arena_printf(&scratch, "/* %lld blocks */\n%s", (long long)grid, text));
    arena_free(&scratch);
    o->entry.data[number].grid = (uint32_t)grid;
    o->entry.data[number].block = block ? (uint32_t)block : 32;
    return number;
}

/* Equal texts that other launches follow are different kernels: the comment says which. */
static uint32_t add_launches(Object *o, const LoopKernel *k, const char *text) {
    Arena scratch = {0};
    uint32_t then = k->next ? object_add_loop(o, k->next) + 1 : 0;
    if (then) text = arena_printf(&scratch, "/* then %u */\n%s", then - 1, text);
    uint32_t number = object_add_cuda(o, "test_kernel", text, k->blocks, k->threads);
    o->entry.data[number].then = then;
    o->entry.data[number].shared_bytes = (uint32_t)k->shared_bytes;
    arena_free(&scratch);
    return number;
}

void object_add_prelude(Object *o, LoopPrelude *prelude) {
    for (uint32_t i = 0; i < o->prelude.n; i++)
        if (o->prelude.data[i] == prelude) return;
    vec_push(&o->arena, &o->prelude, prelude);
}

uint32_t object_add_loop(Object *o, const LoopKernel *k) {
    if (k->text) object_add_prelude(o, k->text->prelude);
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) die("open_memstream");
    if (object_is_cuda())
        loop_print_cuda(k, "test_kernel", f);
    else
        loop_print_c(k, "test_kernel", f);
    fclose(f);
    uint32_t number =
        object_is_cuda() ? add_launches(o, k, text) : object_add(o, "test_kernel", text);
    free(text);
    return number;
}

/* --- text and compilation --- */

static bool has(const char *text, const char *word) { return strstr(text, word) != NULL; }

/* A kernel in a namespace of its own, and a function with a C kernel's signature: the parameters
 * are cast to their types, which stand in the kernel's text. */
static void print_cuda_kernel(const Entry *e, uint32_t number, FILE *out) {
    char head[256];
    snprintf(head, sizeof head, ") %s(", e->name);
    const char *at = strstr(e->text, head);
    if (at == NULL) die(e->text);
    at += strlen(head);
    fprintf(out, "namespace k%u {\n%s\n", number, e->text);
    fprintf(out, "static void thread(void *const *arg, const void *env) {\n    %s(", e->name);
    for (int i = 0; strncmp(at, "InfDeviceEnv", 12) != 0; i++) {
        int type = (int)(strchr(at, '*') - at);
        fprintf(out, "(%.*s*)arg[%d], ", type, at, i);
        at = strchr(at, ',') + 1;
        at += strspn(at, " \n");
    }
    bool meets = has(e->text, "__syncthreads") || has(e->text, "INF_FOLD_") ||
                 has(e->text, "inf_last") || has(e->text, "attn_");
    fprintf(out,
            "*(const InfDeviceEnv *)env);\n}\n"
            "static void host(void *const *arg, const void *env) {\n"
            "    hook_launch(thread, arg, env, %uu, %uu, %d);\n",
            e->grid, e->block, meets);
    if (e->then) fprintf(out, "    k%u::host(arg, env);\n", e->then - 1);
    fputs("}\n}\n", out);
}

static void print_unit(Object *o, FILE *out) {
    bool cuda = object_is_cuda();
    if (cuda) {
        fputs(cuda_emulate_text, out);
        loop_print_cuda_prelude(out);
        fputs("#undef INF_KERNEL\n#define INF_KERNEL(threads) static void\n"
              "#define INF_EMULATED\n#include \"tests/codegen/cuda_emulate_words.h\"\n",
              out);
    } else {
        fputs("#include \"runtime/plan.h\"\n"
              "void (*hook_random4)(const InfEnv *, uint32_t, uint32_t, uint64_t, uint32_t *);\n"
              "void (*hook_sgemm)(int, int, int64_t, int64_t, int64_t, const float *, int64_t,\n"
              "                   const float *, int64_t, float *, int64_t, int);\n"
              "#define inf_random4 hook_random4\n#define inf_sgemm hook_sgemm\n",
              out);
        loop_print_c_prelude(out);
    }
    for (uint32_t i = 0; i < o->prelude.n; i++) o->prelude.data[i](out);
    for (uint32_t i = 0; i < o->entry.n; i++) {
        Entry *e = &o->entry.data[i];
        const char *name = e->name;
        if (cuda) {
            print_cuda_kernel(e, i, out);
            continue;
        }
        if (*find(o, o->by_name, e->name_hash, name, NULL) != i + 1) {
            /* The name is another kernel's. */
            e->name = arena_printf(&o->arena, "%s_%u", name, i);
            fprintf(out, "#define %s %s\n%s\n#undef %s\n", name, e->name, e->text, name);
        } else {
            fprintf(out, "%s\n", e->text);
        }
    }
    fputs(cuda ? "extern \"C\" void (*const kernel_table[])(void *const *, const void *) = {"
               : "InfKernel *const kernel_table[] = {",
          out);
    for (uint32_t i = 0; i < o->entry.n; i++)
        if (cuda)
            fprintf(out, "k%u::host,\n", i);
        else
            fprintf(out, "%s,\n", o->entry.data[i].name);
    fputs("0};\n", out);
}

static const char *const cuda_flags[] = {"-std=c++17", "-O1", "-ffp-contract=off", "-w", NULL};

static void run_cc(const char *cc, const char *march, const char *source, const char *object) {
    char march_flag[256];
    const char *argv[32], *named = getenv("INFINIC_TEST_CC");
    snprintf(march_flag, sizeof march_flag, "-march=%s", march != NULL ? march : "native");
    const char *const rest[] = {march_flag, "-fPIC", "-shared", "-I.", "-o", object, source, "-lm"};
    int n = 0;
    argv[n++] = object_is_cuda() ? "c++" : cc != NULL ? cc : named != NULL ? named : "cc";
    for (int i = 0; !object_is_cuda() && loop_c_flags[i] != NULL; i++) argv[n++] = loop_c_flags[i];
    for (int i = 0; object_is_cuda() && cuda_flags[i] != NULL; i++) argv[n++] = cuda_flags[i];
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) argv[n++] = rest[i];
    if (getenv("INFINIC_TEST_CFLAG") != NULL) argv[n++] = getenv("INFINIC_TEST_CFLAG");
    argv[n] = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        unsetenv("LD_PRELOAD");
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0) die("cc failed");
}

static void set_hook(const Object *o, const char *name, void *fn) {
    void **hook = dlsym(o->library, name);
    if (hook == NULL) die(name);
    *hook = fn;
}

static void build_for_device(Object *o) {
    DeviceEntry *entry = ARENA_ARRAY(&o->arena, DeviceEntry, o->entry.n + 1);
    char *prelude = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&prelude, &bytes);
    if (out == NULL) die("open_memstream");
    loop_print_cuda_prelude(out);
    for (uint32_t i = 0; i < o->prelude.n; i++) o->prelude.data[i](out);
    fclose(out);
    for (uint32_t i = 0; i < o->entry.n; i++) {
        const Entry *e = &o->entry.data[i];
        entry[i] = (DeviceEntry){e->name, e->text, e->grid, e->block, e->shared_bytes, e->then};
    }
    o->device = device_object_new(entry, o->entry.n, prelude);
    free(prelude);
}

void object_build(Object *o, const char *cc, const char *march) {
    if (object_on_device()) {
        build_for_device(o);
        return;
    }
    const char *base = getenv("TMPDIR");
    char *dir = arena_printf(&o->arena, "%s/infinic-object-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(dir) == NULL) die("mkdtemp");
    const char *source = arena_printf(&o->arena, "%s/k.%s", dir, object_is_cuda() ? "cc" : "c");
    const char *object = arena_printf(&o->arena, "%s/k.so", dir);
    FILE *out = fopen(source, "w");
    if (out == NULL) die(source);
    print_unit(o, out);
    fclose(out);
    if (getenv("INFINIC_KEEP") != NULL) fprintf(stderr, "kept: %s\n", source);
    run_cc(cc, march, source, object);
    o->library = dlopen(object, RTLD_NOW);
    if (o->library == NULL) die(dlerror());
    o->table = dlsym(o->library, "kernel_table");
    if (object_is_cuda()) {
        set_hook(o, "hook_meet", (void *)(uintptr_t)cuda_emulate_meet);
        set_hook(o, "hook_launch", (void *)(uintptr_t)cuda_emulate_launch);
        set_hook(o, "hook_index", cuda_emulate_index);
    } else {
        set_hook(o, "hook_random4", (void *)(uintptr_t)inf_random4);
        set_hook(o, "hook_sgemm", (void *)(uintptr_t)inf_sgemm);
    }
    if (getenv("INFINIC_KEEP") != NULL) return;
    unlink(source);
    unlink(object);
    rmdir(dir);
}

InfKernel *object_kernel(const Object *o, uint32_t i) {
    return object_on_device() ? NULL : o->table[i];
}

void object_run(const Object *o, uint32_t i, void *const *arg, const InfEnv *env) {
    if (object_on_device())
        device_object_run(o->device, i, arg, env);
    else
        o->table[i](arg, env);
}

void object_free(Object *o) {
    if (o->library != NULL) dlclose(o->library);
    if (o->device != NULL) device_object_free(o->device);
    arena_free(&o->arena);
    mem_free(o);
}

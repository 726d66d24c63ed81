/* cuda.c - the fake driver: fake.h. */
#include "tests/runtime/fake/fake.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_IMAGE = 200, FAILED = 700 };
enum { STREAMS = 8, QUEUE = 1 << 16, NODES = 256 };

typedef struct Event {
    int recorded, reached; /* how often */
} Event;

typedef struct Work {
    void (*run)(void *data);
    void *data;
    Event *record, *wait;
    int number;          /* of that recording */
    struct Work **after; /* in a graph: what has to be done before */
    size_t after_count;
    bool done;
} Work;

typedef struct Graph {
    Work *node[NODES];
    int count;
} Graph;

typedef struct Stream {
    Work *work;
    int count, done;
    Graph *graph;      /* while one is recorded */
    Work *next[NODES]; /* what the next node comes after */
    size_t next_count;
} Stream;

typedef struct Function {
    FakeKernel kernel;
    unsigned shared; /* bytes that launches may ask for; 0: 48 KiB */
} Function;

typedef struct Module {
    Function *function;
    int count;
} Module;

typedef struct Call {
    FakeLaunch launch;
    const FakeKernel *kernel;
} Call;

typedef struct Copy {
    void *to;
    const void *from;
    size_t bytes;
} Copy;

static Stream *streams[STREAMS];
static int stream_count;
static long launches;
static bool failed;
static uint64_t taken_bytes;

/* Memory that lives as long as the process: graphs run their work again and again. */
static void *keep(size_t bytes) {
    static void **last;
    void **block = calloc(1, sizeof *block + bytes);
    *block = last;
    last = block;
    return block + 1;
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* --- streams: nothing happens before somebody waits --- */

static void run_until(Stream *s, const Event *event, int number);

static void run_all(Stream *s) { run_until(s, NULL, 0); }

static void run_one(Stream *s) {
    Work w = s->work[s->done++];
    for (int i = 0; w.wait && i < stream_count; i++)
        if (streams[i] != s) run_until(streams[i], w.wait, w.number);
    if (w.run) w.run(w.data);
    if (w.record) w.record->reached = w.number;
}

/* Runs everything, or up to a recording of `event`. */
static void run_until(Stream *s, const Event *event, int number) {
    while (s->done < s->count && !(event && event->reached >= number)) run_one(s);
    if (s->done == s->count) s->done = s->count = 0;
}

static void add_node(Stream *s, Work w) {
    Work *node = keep(sizeof *node);
    *node = w;
    node->after = keep(s->next_count * sizeof *node->after);
    node->after_count = s->next_count;
    memcpy(node->after, s->next, s->next_count * sizeof *node->after);
    s->next[0] = s->graph->node[s->graph->count++] = node;
    s->next_count = 1;
}

static void put(Stream *s, Work w) {
    if (s->graph) {
        add_node(s, w);
        return;
    }
    if (s->count == QUEUE) run_all(s);
    s->work[s->count++] = w;
}

void fake_enqueue(void *stream, void (*run)(void *data), void *data) {
    put(stream, (Work){.run = run, .data = data});
}

bool fake_is_capturing(void *stream) { return ((const Stream *)stream)->graph != NULL; }

int cuStreamCreate(Stream **out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    (*out)->work = calloc(QUEUE, sizeof(Work));
    streams[stream_count++] = *out;
    return OK;
}

int cuStreamDestroy_v2(Stream *s) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == s) streams[i] = streams[--stream_count];
    free(s->work);
    free(s);
    return OK;
}

int cuStreamSynchronize(Stream *s) {
    if (s) run_all(s);
    return failed ? FAILED : OK;
}

int cuCtxSynchronize(void) {
    for (int i = 0; i < stream_count; i++) run_all(streams[i]);
    return failed ? FAILED : OK;
}

int cuStreamWaitEvent(Stream *s, Event *event, unsigned flags) {
    (void)flags;
    put(s, (Work){.wait = event, .number = event->recorded});
    return OK;
}

int cuEventCreate(Event **out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return OK;
}

int cuEventDestroy_v2(Event *event) {
    free(event);
    return OK;
}

int cuEventRecord(Event *event, Stream *s) {
    put(s, (Work){.record = event, .number = ++event->recorded});
    return OK;
}

int cuEventSynchronize(Event *event) {
    for (int i = 0; i < stream_count; i++) run_until(streams[i], event, event->recorded);
    return failed ? FAILED : OK;
}

int cuEventElapsedTime(float *ms, Event *from, Event *to) {
    (void)from;
    (void)to;
    *ms = 0.25f;
    return OK;
}

/* --- device and memory --- */

int cuInit(unsigned flags) {
    (void)flags;
    return setting("FAKE_DEVICES", 1) > 0 ? OK : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    *version = (int)setting("FAKE_DRIVER", 13000);
    return OK;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == FAILED ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return OK;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == FAILED ? "an illegal memory access was encountered" : "an error";
    return OK;
}

int cuDeviceGetCount(int *count) {
    *count = (int)setting("FAKE_DEVICES", 1);
    return OK;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return OK;
}

int cuDeviceGetName(char *name, int bytes, int device) {
    (void)device;
    snprintf(name, (size_t)bytes, "Fake Device");
    return OK;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    memset(uuid, 0, 16);
    uuid[0] = (unsigned char)(1 + device);
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    long arch = setting("FAKE_ARCH", 90);
    (void)device;
    *value = (int)(attribute == 75   ? arch / 10
                   : attribute == 76 ? arch % 10
                   : attribute == 97 ? setting("FAKE_SHARED", 232448)
                                     : 1000);
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &taken_bytes;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return OK;
}

int cuCtxSetCurrent(void *context) {
    (void)context;
    return OK;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = (size_t)setting("FAKE_MEMORY", 1L << 30);
    *free_bytes = *total - (size_t)taken_bytes;
    return OK;
}

int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    if (bytes + taken_bytes > (size_t)setting("FAKE_MEMORY", 1L << 30)) return NO_MEMORY;
    unsigned char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
    if (!memory) return NO_MEMORY;
    memset(memory, 0xA5, bytes + 4096);
    memcpy(memory, &bytes, sizeof bytes);
    *at = (uint64_t)(uintptr_t)memory + 4096 + fake_shift;
    taken_bytes += bytes;
    return OK;
}

int cuMemFree_v2(uint64_t at) {
    unsigned char *memory = (unsigned char *)fake_pointer(at) - 4096;
    size_t bytes;
    memcpy(&bytes, memory, sizeof bytes);
    taken_bytes -= bytes;
    free(memory);
    return OK;
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
    memset(fake_pointer(at), value, bytes);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    memcpy(fake_pointer(to), from, bytes);
    return OK;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, fake_pointer(from), bytes);
    return OK;
}

static void run_set(void *data) {
    const Copy *set = data;
    memset(set->to, (int)(uintptr_t)set->from, set->bytes);
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream *s) {
    Copy *set = keep(sizeof *set);
    *set = (Copy){fake_pointer(at), (const void *)(uintptr_t)value, bytes};
    put(s, (Work){.run = run_set, .data = set});
    return OK;
}

static void run_copy(void *data) {
    const Copy *copy = data;
    memcpy(copy->to, copy->from, copy->bytes);
}

static int copy_later(void *to, const void *from, size_t bytes, Stream *s) {
    Copy *copy = keep(sizeof *copy);
    *copy = (Copy){to, from, bytes};
    put(s, (Work){.run = run_copy, .data = copy});
    return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *s) {
    return copy_later(fake_pointer(to), from, bytes, s);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *s) {
    return copy_later(fake_pointer(to), fake_pointer(from), bytes, s);
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    (void)flags;
    *at = calloc(1, bytes);
    return *at ? OK : NO_MEMORY;
}

int cuMemFreeHost(void *at) {
    free(at);
    return OK;
}

/* --- modules --- */

/* What inf_begin and inf_end of runtime/cuda_glue.c do. */
static void run_begin(const FakeLaunch *l) {
    const uint32_t *counter = fake_pointer(l->value[1].address);
    const InfTicket *ring = fake_pointer(l->value[0].address);
    const InfTicket *ticket = ring + *counter % INF_DEVICE_DEPTH;
    memcpy(fake_pointer(l->value[2].address), &ticket->moment, sizeof ticket->moment);
    memcpy(fake_pointer(l->value[3].address),
           ticket->scalar[(counter[1] - (uint32_t)ticket->applied) % INF_DEVICE_DEPTH],
           sizeof ticket->scalar[0]);
}

static void run_end(const FakeLaunch *l) {
    uint32_t *counter = fake_pointer(l->value[1].address), words = l->value[3].word;
    unsigned char *ring = fake_pointer(l->value[0].address);
    memcpy(ring + *counter % INF_DEVICE_DEPTH * words * 4, fake_pointer(l->value[2].address),
           words * 4);
    counter[0] += 1;
    const float *ok = l->value[4].address ? fake_pointer(l->value[4].address) : NULL;
    if (ok && *ok != 0.0f) counter[1] += 1;
}

static void run_join(const FakeLaunch *l) { (void)l; }

static const FakeKernel glue[] = {{"inf_begin", "pppp", run_begin, NULL},
                                  {"inf_end", "pppwp", run_end, NULL},
                                  {"inf_join", "", run_join, NULL}};

int cuModuleLoadDataEx(Module **out, const void *image, unsigned count, int *options,
                       void **values) {
    FakeImage text = {FAKE_MAGIC, glue, sizeof glue / sizeof *glue};
    (void)count;
    (void)options;
    (void)values;
    if (memcmp(image, FAKE_MAGIC, 8) == 0)
        memcpy(&text, image, sizeof text);
    else if (strncmp(image, ".version", 8) != 0)
        return BAD_IMAGE;
    *out = calloc(1, sizeof **out);
    (*out)->function = calloc(text.count, sizeof(Function));
    (*out)->count = (int)text.count;
    for (uint64_t i = 0; i < text.count; i++) (*out)->function[i].kernel = text.kernel[i];
    return OK;
}

int cuModuleUnload(Module *module) {
    free(module->function);
    free(module);
    return OK;
}

int cuModuleGetFunction(Function **out, Module *module, const char *name) {
    for (int i = 0; i < module->count; i++) {
        *out = &module->function[i];
        if (strcmp((*out)->kernel.name, name) == 0) return OK;
    }
    return INVALID;
}

int cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute == 8) function->shared = (unsigned)value;
    return OK;
}

static void run_call(void *data) {
    const Call *call = data;
    launches++;
    if (launches == setting("FAKE_FAIL_LAUNCH", -1)) failed = true;
    if (!failed) call->kernel->run(&call->launch);
}

int cuLaunchKernel(Function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream *s, void **arguments,
                   void **extra) {
    Call *call = keep(sizeof *call);
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra) return INVALID;
    if (shared > (f->shared ? f->shared : 48u << 10)) return INVALID;
    call->kernel = &f->kernel;
    call->launch = (FakeLaunch){.grid = grid_x, .block = block_x, .context = f->kernel.context};
    for (int i = 0; f->kernel.parameters[i]; i++) {
        char letter = f->kernel.parameters[i];
        size_t bytes = letter == 'w'   ? 4
                       : letter == 'e' ? sizeof(InfDeviceEnv)
                       : letter == 's' ? sizeof(PlanSizes)
                                       : 8;
        memcpy(&call->launch.value[i], arguments[i], bytes);
    }
    put(s, (Work){.run = run_call, .data = call});
    return OK;
}

/* --- graphs: launches run as late, and in as wrong an order, as they may --- */

int cuStreamBeginCapture_v2(Stream *s, int mode) {
    (void)mode;
    run_all(s);
    s->graph = keep(sizeof *s->graph);
    s->next_count = 0;
    return OK;
}

int cuStreamGetCaptureInfo_v2(Stream *s, int *status, uint64_t *id, Graph **graph, Work ***nodes,
                              size_t *count) {
    *status = s->graph != NULL;
    if (id || graph) return INVALID;
    *nodes = s->next;
    *count = s->next_count;
    return OK;
}

int cuStreamUpdateCaptureDependencies(Stream *s, Work **nodes, size_t count, unsigned flags) {
    if (!s->graph || flags != 1) return INVALID;
    memcpy(s->next, nodes, count * sizeof *nodes);
    s->next_count = count;
    return OK;
}

int cuStreamEndCapture(Stream *s, Graph **out) {
    if (!s->graph) return INVALID;
    *out = s->graph;
    s->graph = NULL;
    return OK;
}

int cuGraphInstantiateWithFlags(Graph **out, Graph *graph, unsigned long long flags) {
    (void)flags;
    *out = graph;
    return OK;
}

int cuGraphDestroy(Graph *graph) {
    (void)graph;
    return OK;
}

int cuGraphExecDestroy(Graph *graph) {
    (void)graph;
    return OK;
}

int cuGraphUpload(Graph *graph, Stream *s) {
    (void)graph;
    (void)s;
    return OK;
}

static bool ready(const Work *node) {
    for (size_t i = 0; i < node->after_count; i++)
        if (!node->after[i]->done) return false;
    return !node->done;
}

/* Of those that are ready, the one recorded last goes first. */
int cuGraphLaunch(Graph *graph, Stream *s) {
    for (int i = 0; i < graph->count; i++) graph->node[i]->done = false;
    for (int left = graph->count; left > 0; left--) {
        int i = graph->count - 1;
        while (i >= 0 && !ready(graph->node[i])) i--;
        if (i < 0) return INVALID;
        graph->node[i]->done = true;
        put(s, *graph->node[i]);
    }
    return OK;
}

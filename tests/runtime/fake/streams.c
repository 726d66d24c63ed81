/* streams.c - the fake driver's streams, events and graphs. Nothing happens before somebody waits;
 * then launches run as late, and in as wrong an order, as they may. */
#include "tests/runtime/fake/streams.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/runtime/fake/fake.h"

enum { STREAMS = 32, QUEUE = 1 << 16, NODES = 4096 };

struct Event {
    int recorded, reached; /* how often */
    Graph *graph;          /* recorded last while that was recorded */
    Work *node[NODES];     /* what came before it there */
    size_t count;
};

struct Graph {
    Work *node[NODES];
    int count, left; /* left: of a run that has begun; 0: none has */
};

struct Stream {
    Work *work;
    int count, done;
    Graph *graph;      /* while one is recorded */
    Work *next[NODES]; /* what the next node comes after */
    size_t next_count;
};

bool fake_failed;

static Stream *streams[STREAMS];
static int stream_count;

void *fake_keep(size_t bytes) {
    static void **last;
    void **block = calloc(1, sizeof *block + bytes);
    *block = last;
    last = block;
    return block + 1;
}

/* --- one thing after another --- */

static bool can_run(const Work *w) {
    if (w->wait && w->wait->reached < w->number) return false;
    return !w->ready || w->ready(w->data);
}

static void run_work(const Work *w) {
    if (w->run) w->run(w->data);
    if (w->record) w->record->reached = w->number;
}

static bool is_next(const Work *node) {
    for (size_t i = 0; i < node->after_count; i++)
        if (!node->after[i]->done) return false;
    return !node->done && can_run(node);
}

/* Of the nodes that can run, the one recorded last. False when there is none. */
static bool step_graph(Graph *graph) {
    if (graph->left == 0) {
        for (int i = 0; i < graph->count; i++) graph->node[i]->done = false;
        graph->left = graph->count;
    }
    int i = graph->count - 1;
    while (i >= 0 && !is_next(graph->node[i])) i--;
    if (i < 0) return graph->count == 0;
    run_work(graph->node[i]);
    graph->node[i]->done = true;
    graph->left--;
    return true;
}

/* False when there is nothing to do, or it has to wait for something. */
static bool step(Stream *s) {
    if (s->done == s->count) return false;
    const Work *w = &s->work[s->done];
    if (!can_run(w) || (w->graph && !step_graph(w->graph))) return false;
    if (w->graph && w->graph->left > 0) return true;
    run_work(w);
    if (++s->done == s->count) s->done = s->count = 0;
    return true;
}

/* Runs everything, or up to a recording of `event`; of other streams what it has to wait for. */
static void run_until(Stream *s, const Event *event, int number) {
    const struct timespec pause = {.tv_nsec = 50000};
    while (s->done < s->count && !(event && event->reached >= number)) {
        bool moved = step(s);
        for (int i = 0; i < stream_count && !moved; i++) moved = step(streams[i]);
        if (!moved) nanosleep(&pause, NULL); /* for another process */
    }
}

static void run_all(Stream *s) { run_until(s, NULL, 0); }

/* --- recording --- */

static void add_node(Stream *s, Work w) {
    Work *node = fake_keep(sizeof *node);
    if (s->graph->count == NODES) abort();
    *node = w;
    node->after = fake_keep(s->next_count * sizeof *node->after);
    node->after_count = s->next_count;
    memcpy(node->after, s->next, s->next_count * sizeof *node->after);
    s->next[0] = s->graph->node[s->graph->count++] = node;
    s->next_count = 1;
}

void fake_put(Stream *s, Work w) {
    if (s->graph) {
        add_node(s, w);
        return;
    }
    if (s->count == QUEUE) run_all(s);
    s->work[s->count++] = w;
}

void fake_enqueue(void *stream, void (*run)(void *data), void *data) {
    fake_put(stream, (Work){.run = run, .data = data});
}

bool fake_is_capturing(void *stream) { return ((const Stream *)stream)->graph != NULL; }

/* The stream goes on behind what the event, of the same recording, came behind. */
static int follow(Stream *s, const Event *event) {
    if (!s->graph) s->next_count = 0;
    s->graph = event->graph;
    for (size_t i = 0; i < event->count; i++) {
        size_t k = 0;
        while (k < s->next_count && s->next[k] != event->node[i]) k++;
        if (k == s->next_count) s->next[s->next_count++] = event->node[i];
    }
    return FAKE_OK;
}

/* --- the driver's functions --- */

int cuStreamCreate(Stream **out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    (*out)->work = calloc(QUEUE, sizeof(Work));
    streams[stream_count++] = *out;
    return FAKE_OK;
}

int cuStreamDestroy_v2(Stream *s) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == s) streams[i] = streams[--stream_count];
    free(s->work);
    free(s);
    return FAKE_OK;
}

int cuStreamSynchronize(Stream *s) {
    if (s) run_all(s);
    return fake_failed ? FAKE_FAILED : FAKE_OK;
}

int cuCtxSynchronize(void) {
    for (int i = 0; i < stream_count; i++) run_all(streams[i]);
    return fake_failed ? FAKE_FAILED : FAKE_OK;
}

int cuStreamWaitEvent(Stream *s, Event *event, unsigned flags) {
    (void)flags;
    if (event->graph && (!s->graph || s->graph == event->graph)) return follow(s, event);
    fake_put(s, (Work){.wait = event, .number = event->recorded});
    return FAKE_OK;
}

int cuEventCreate(Event **out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return FAKE_OK;
}

int cuEventDestroy_v2(Event *event) {
    free(event);
    return FAKE_OK;
}

int cuEventRecord(Event *event, Stream *s) {
    event->graph = s->graph;
    event->count = s->graph ? s->next_count : 0;
    memcpy(event->node, s->next, event->count * sizeof *event->node);
    if (!s->graph) fake_put(s, (Work){.record = event, .number = ++event->recorded});
    return FAKE_OK;
}

int cuEventSynchronize(Event *event) {
    for (int i = 0; i < stream_count; i++) run_until(streams[i], event, event->recorded);
    return fake_failed ? FAKE_FAILED : FAKE_OK;
}

int cuEventElapsedTime(float *ms, Event *from, Event *to) {
    (void)from;
    (void)to;
    *ms = 0.25f;
    return FAKE_OK;
}

int cuStreamBeginCapture_v2(Stream *s, int mode) {
    (void)mode;
    run_all(s);
    s->graph = fake_keep(sizeof *s->graph);
    s->next_count = 0;
    return FAKE_OK;
}

int cuStreamGetCaptureInfo_v2(Stream *s, int *status, uint64_t *id, Graph **graph, Work ***nodes,
                              size_t *count) {
    *status = s->graph != NULL;
    if (id || graph) return FAKE_INVALID;
    *nodes = s->next;
    *count = s->next_count;
    return FAKE_OK;
}

int cuStreamUpdateCaptureDependencies(Stream *s, Work **nodes, size_t count, unsigned flags) {
    if (!s->graph || flags != 1) return FAKE_INVALID;
    memcpy(s->next, nodes, count * sizeof *nodes);
    s->next_count = count;
    return FAKE_OK;
}

/* Whether the stream that ends comes behind everything; else one that joined has not come back. */
static bool is_whole(const Stream *s) {
    bool behind[NODES] = {false};
    int left = s->graph->count;
    for (int i = s->graph->count - 1; i >= 0; i--) {
        const Work *node = s->graph->node[i];
        for (size_t k = 0; k < s->next_count; k++) behind[i] = behind[i] || s->next[k] == node;
        for (int later = i + 1; later < s->graph->count; later++)
            for (size_t k = 0; k < s->graph->node[later]->after_count && behind[later]; k++)
                behind[i] = behind[i] || s->graph->node[later]->after[k] == node;
        left -= behind[i];
    }
    return left == 0;
}

int cuStreamEndCapture(Stream *s, Graph **out) {
    if (!s->graph) return FAKE_INVALID;
    bool joined = false;
    for (int i = 0; i < stream_count; i++) {
        if (streams[i] == s || streams[i]->graph != s->graph) continue;
        streams[i]->graph = NULL;
        joined = true;
    }
    if (joined && !is_whole(s)) return FAKE_INVALID;
    *out = s->graph;
    s->graph = NULL;
    return FAKE_OK;
}

int cuGraphInstantiateWithFlags(Graph **out, Graph *graph, unsigned long long flags) {
    (void)flags;
    *out = graph;
    return FAKE_OK;
}

int cuGraphDestroy(Graph *graph) {
    (void)graph;
    return FAKE_OK;
}

int cuGraphExecDestroy(Graph *graph) {
    (void)graph;
    return FAKE_OK;
}

int cuGraphUpload(Graph *graph, Stream *s) {
    (void)graph;
    (void)s;
    return FAKE_OK;
}

int cuGraphLaunch(Graph *graph, Stream *s) {
    fake_put(s, (Work){.graph = graph});
    return FAKE_OK;
}

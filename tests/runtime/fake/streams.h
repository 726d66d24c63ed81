/* streams.h - what the fake driver's two halves share: what is done (cuda.c), and when (streams.c).
 */
#ifndef TESTS_RUNTIME_FAKE_STREAMS_H
#define TESTS_RUNTIME_FAKE_STREAMS_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/runtime/fake/fake.h"

enum { FAKE_OK = 0, FAKE_INVALID = 1, FAKE_FAILED = 700 };

typedef struct Event Event;
typedef struct Stream Stream;
typedef struct Graph Graph;

typedef struct Work {
    void (*run)(void *data);
    bool (*ready)(void *data); /* NULL: always; others may have to do something first */
    void *data;
    Event *record, *wait;
    int number;          /* of that recording */
    Graph *graph;        /* all of it */
    struct Work **after; /* in a graph: what has to be done before */
    size_t after_count;
    bool done;
} Work;

/* Into a stream, or the graph that is recorded of it. */
void fake_put(Stream *s, Work w);

/* Memory that lives as long as the process: graphs run their work again and again. */
void *fake_keep(size_t bytes);

/* Of shared.c: what a text that is not the runtime's own has. */
extern const FakeKernel fake_shared_kernels[];
extern const int fake_shared_kernel_count;

/* Set once a launch has failed: everything fails from then on. */
extern bool fake_failed;

#endif

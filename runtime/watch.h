/* watch.h - what the two sides of a lifeline share: the thread that watches (watch.c) and the main
 * thread that asks it for something (lifeline.c).
 *
 * Rank 0 is the centre of a star: it hears all others, they hear it. Messages are of one size.
 */
#ifndef INF_RUNTIME_WATCH_H
#define INF_RUNTIME_WATCH_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "runtime/lifeline.h"
#include "runtime/wire.h"

enum { INF_GUESTS = 64, INF_NAME_BYTES = 96 };

typedef enum MessageKind { HELLO, BEAT, FAIL, LEAVE, BYE } MessageKind;

typedef struct Message {
    uint32_t magic;
    int32_t kind;   /* MessageKind */
    InfCause cause; /* LEAVE: the verdict; else who sends, and its position */
    int32_t page;   /* the sender's file of its Page */
    unsigned char token[INF_WIRE_TOKEN_BYTES];
} Message;

/* Where a rank is, in memory that the others on its host can read when it is dead: beats are too
 * slow to say where it died. */
typedef struct Page {
    _Atomic uint64_t position;
    int32_t rank;
    char name[INF_NAME_BYTES];
} Page;

typedef struct Line {
    int fd; /* -1: none */
    size_t filled;
    Message in;
} Line;

typedef struct Peer {
    Line line;
    bool here, gone; /* has come; has said goodbye or why it leaves */
    int32_t pid;
    uint64_t position; /* by its last beat */
    const Page *page;  /* NULL: on another host */
    double heard_ms;
} Peer;

/* What the main thread is about. */
typedef enum MainState { RUNNING, FAILING, ENDING } MainState;

struct InfLifeline {
    const Plan *plan;
    int rank, count;
    bool local; /* sockets by name */
    int wake;   /* eventfd: the main thread wants something */
    pid_t mpirun;
    char name[INF_NAME_BYTES];
    double started_ms, turned_ms, beat_ms;
    pthread_t thread;
    Page *page; /* this rank's own */
    int page_fd;

    /* the thread's own */
    int listener;
    Peer *peer; /* rank 0: of each rank; else [0] alone */
    Line guest[INF_GUESTS];
    struct pollfd *polled;
    bool spoken; /* rank 0 has said it, or will */

    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    MainState main;
    InfCode code;   /* FAILING: with which */
    bool requested; /* FAILING: rank 0 is to be told */
    bool opened;    /* MPI has connected everyone */
    bool renewed;   /* book and new_listener are there */
    int new_listener;
    InfWireBook book;
    int present; /* peers that are here */
    InfCause cause;
    bool told; /* everyone has been told the cause */
};

/* The thread: `of` is the InfLifeline. */
void *inf_watch(void *of);

void inf_line_hang_up(Line *line);

#endif

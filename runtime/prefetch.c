/* prefetch.c - the loader thread. */
#include "runtime/prefetch.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Of the slot at hand: nobody fills it, the thread does, it is filled. */
typedef enum SlotState { SLOT_idle, SLOT_ordered, SLOT_ready } SlotState;

struct InfPrefetch {
    InfFill *fill;
    const void *context;
    InfSlots slots;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    InfBatch batch; /* of the slot at hand; the host changes it unless that is ordered */
    int slot;
    SlotState state;
    bool stop;
};

static unsigned char *slot_at(const InfPrefetch *p) {
    return p->slots.at + (uint64_t)p->slot * p->slots.bytes;
}

static void *work(void *argument) {
    InfPrefetch *p = argument;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->state != SLOT_ordered && !p->stop) pthread_cond_wait(&p->changed, &p->lock);
        if (p->stop) break;
        unsigned char *slot = slot_at(p);
        pthread_mutex_unlock(&p->lock);
        p->fill(p->context, &p->batch, slot);
        pthread_mutex_lock(&p->lock);
        p->state = SLOT_ready;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* A new thread has the signal mask of the one that starts it. */
static int start_without_signals(InfPrefetch *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, work, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

InfCode inf_prefetch_open(InfError *e, InfFill *fill, const void *context, InfSlots slots,
                          InfPrefetch **out) {
    InfPrefetch *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return inf_fail(e, INF_IO, "out of memory");
    p->fill = fill;
    p->context = context;
    p->slots = slots;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    int failed = start_without_signals(p);
    if (failed) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return inf_fail(e, INF_IO, "the thread that loads batches cannot be started: %s",
                        strerror(failed));
    }
    *out = p;
    return INF_OK;
}

static bool same(const InfBatch *a, const InfBatch *b) {
    return a->position == b->position && a->count == b->count && a->order.key == b->order.key &&
           a->order.half_bits == b->order.half_bits && a->order.count == b->order.count;
}

static void order(InfPrefetch *p, const InfBatch *batch) {
    p->batch = *batch;
    p->state = SLOT_ordered;
    pthread_cond_broadcast(&p->changed);
}

static void wait_for_slot(InfPrefetch *p) {
    while (p->state == SLOT_ordered) pthread_cond_wait(&p->changed, &p->lock);
}

unsigned char *inf_prefetch_take(InfPrefetch *p, const InfBatch *want, const InfBatch *next) {
    pthread_mutex_lock(&p->lock);
    wait_for_slot(p);
    if (p->state == SLOT_idle || !same(&p->batch, want)) {
        order(p, want);
        wait_for_slot(p);
    }
    unsigned char *taken = slot_at(p);
    p->slot = (p->slot + 1) % p->slots.count;
    p->state = SLOT_idle;
    if (next->count > 0) order(p, next);
    pthread_mutex_unlock(&p->lock);
    return taken;
}

void inf_prefetch_close(InfPrefetch *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

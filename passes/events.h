/* events.h - a graph of things that happen, and the earliest time of each.
 *
 * What proofs and orders of schedules are made of: an event has a cost and waits for the ends of
 * the events with an edge to it.
 */
#ifndef INFINIC_PASSES_EVENTS_H
#define INFINIC_PASSES_EVENTS_H

#include "ir/arena.h"

#include <stdbool.h>

typedef struct Event {
    double cost, start; /* start: set by events_run */
    int waits;          /* edges to it from events that have not happened */
    VEC(int) next;
} Event;

typedef struct Events {
    Arena *arena;
    Event *event;
    int n, edges;
} Events;

/* A graph with room for `most` events. */
Events events_new(Arena *arena, int most);
int events_add(Events *g, double cost);
void events_edge(Events *g, int from, int to);

/* Lets everything happen as early as it can; each event's start is set. Returns how many never
 * happen because they wait for each other. Can be run once. */
int events_run(Events *g);

static inline double event_end(const Event *e) { return e->start + e->cost; }

/* After events_run: a cycle among the events that never happened, each before the one it waits
 * for. Returns its length; `cycle` has room for all events. */
int events_cycle(const Events *g, int *cycle);

#endif

/* events.c - earliest times by Kahn's algorithm. */
#include "passes/events.h"

Events events_new(Arena *arena, int most) {
    return (Events){.arena = arena, .event = ARENA_ARRAY(arena, Event, most)};
}

int events_add(Events *g, double cost) {
    g->event[g->n].cost = cost;
    return g->n++;
}

void events_edge(Events *g, int from, int to) {
    vec_push(g->arena, &g->event[from].next, to);
    g->event[to].waits++;
    g->edges++;
}

int events_run(Events *g) {
    int *ready = ARENA_ARRAY(g->arena, int, g->n + 1);
    int nready = 0, done = 0;
    for (int e = 0; e < g->n; e++)
        if (g->event[e].waits == 0) ready[nready++] = e;
    for (; done < nready; done++) {
        const Event *event = &g->event[ready[done]];
        for (uint32_t k = 0; k < event->next.n; k++) {
            Event *next = &g->event[event->next.data[k]];
            if (event_end(event) > next->start) next->start = event_end(event);
            if (--next->waits == 0) ready[nready++] = event->next.data[k];
        }
    }
    return g->n - done;
}

/* For each event that waits, one that it waits for and that waits too. */
static int *blockers(const Events *g) {
    int *by = ARENA_ARRAY(g->arena, int, g->n + 1);
    for (int e = 0; e < g->n; e++)
        for (uint32_t k = 0; g->event[e].waits > 0 && k < g->event[e].next.n; k++)
            by[g->event[e].next.data[k]] = e;
    return by;
}

int events_cycle(const Events *g, int *cycle) {
    int *by = blockers(g), at = 0, n = 0;
    while (at < g->n && g->event[at].waits == 0) at++;
    if (at == g->n) return 0;
    for (int i = 0; i < g->n; i++) at = by[at]; /* now on a cycle */
    int first = at;
    do {
        cycle[n++] = at;
        at = by[at];
    } while (at != first);
    return n;
}

/* order.h - which launches of a recorded step have to wait for which.
 *
 * A launch waits for an earlier one when one of the two writes what the other reads or writes; it
 * need not wait for those its predecessors wait for. What is left lets a device run the gradient of
 * a weight beside that of an input. The results are the same: every launch sees the same bytes.
 */
#ifndef INF_RUNTIME_ORDER_H
#define INF_RUNTIME_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/status.h"

/* A range of addresses that a launch uses. Addresses below INF_ORDER_TOKENS are no memory but
 * things that only one launch may have at a time. */
typedef struct InfReach {
    uint64_t begin, end;
    bool written;
} InfReach;

enum { INF_ORDER_TOKENS = 1 << 20 };

typedef struct InfOrder {
    bool on;
    uint32_t count; /* launches so far */
    InfReach *reach;
    uint32_t reach_count, reach_most;
    uint32_t *first;  /* by launch: its reaches are first[i] .. first[i + 1] - 1 */
    uint64_t *behind; /* by launch: bits of the launches it comes after, directly or not */
    uint32_t *waits;  /* for the launch at hand */
    uint32_t words;   /* of 64 bits a launch */
} InfOrder;

/* Room for `launches` launches with `reaches` ranges altogether. More than INF_ORDER_MOST launches
 * are not looked at: then the order stays off, and each launch waits for the one before. */
enum { INF_ORDER_MOST = 4096 };
InfCode inf_order_open(InfError *e, uint32_t launches, uint32_t reaches, InfOrder *out);
void inf_order_close(InfOrder *o);

/* Notes a range of the next launch. */
void inf_order_use(InfOrder *o, uint64_t begin, uint64_t bytes, bool written);

/* Ends the next launch; *waits receives the numbers of those it has to wait for, valid until the
 * next call. Returns how many. */
uint32_t inf_order_end(InfOrder *o, const uint32_t **waits);

#endif

/* feed.h - samples for a device with memory of its own.
 *
 * A set that fits lives there whole, as bytes; otherwise the samples of each submission travel
 * through buffers of their own while the submission before computes; a loader thread (prefetch.h)
 * has collected them by then. In both cases a kernel puts them into the plan's inputs (inf_stage of
 * plan.h): to it a streamed set is a small set in file order.
 */
#ifndef INF_RUNTIME_FEED_H
#define INF_RUNTIME_FEED_H

#include "runtime/engine.h"
#include "runtime/loader.h"

/* Decides how the set will reach the device, and how much of its memory that takes.
 *   batch   samples of one submission of this replica
 *   left    bytes that the device can give; the set is streamed when it is larger
 *   stream  in any case */
InfCode inf_feed_plan(InfError *e, InfLoader *l, uint64_t batch, uint64_t left, bool stream,
                      uint64_t *bytes);

/* Gives the set its memory on the device, `bytes` of inf_feed_plan; starts the loader thread of a
 * streamed one, which reads `l` from now on. */
InfCode inf_feed_place(InfError *e, InfLoader *l, InfEngine *m, unsigned char *at);

/* Ends the loader thread; before the device and the set are closed. */
void inf_feed_close(InfLoader *l);

/* Says where the submission's samples are, position .. position + batch of the epoch, or what of
 * these is there; sends them when they are streamed. */
void inf_feed_send(InfLoader *l, InfEngine *m, uint64_t position, InfDeviceMoment *out);

/* Puts one microbatch into the inputs that chunk `local` of this rank reads; while a graph is
 * recorded, behind what uses them.
 *   first   its first sample within the submission */
void inf_feed_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program, int32_t local,
                    uint64_t first);

#endif

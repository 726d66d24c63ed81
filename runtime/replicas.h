/* replicas.h - that the replicas of a model are the same: parameters and optimizer state have one
 * hash on every rank that holds them.
 */
#ifndef INF_RUNTIME_REPLICAS_H
#define INF_RUNTIME_REPLICAS_H

#include "runtime/params.h"

/* Compares weights and, where this engine has them, optimizer states; all ranks call it and get the
 * same answer. Nothing is done without replicas.
 *   step   of a training run, whose replicas went apart (INF_INTERNAL); 0: what was loaded or
 *          initialised differs (INF_PEER) */
InfCode inf_replicas_same(InfError *e, const InfParams *all, InfEngine *m, int64_t step);

#endif

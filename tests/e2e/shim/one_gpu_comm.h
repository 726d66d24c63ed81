/* one_gpu_comm.h - what the ranks of a communicator of the stand-in for NCCL (one_gpu_nccl.c)
 * share: for each pair of them, in one direction, a box in host memory that the device uses, a flag
 * that is 1 when the box is full, and notes of what both ends have said that they put in and take
 * out.
 */
#ifndef TESTS_E2E_SHIM_ONE_GPU_COMM_H
#define TESTS_E2E_SHIM_ONE_GPU_COMM_H

#include "tests/e2e/shim/one_gpu.h"

enum { DEVICE_FAILED = 1, SYSTEM_FAILED = 2, ARGUMENT = 4, USAGE = 5 }; /* NcclResult */
enum { RANKS_MAX = 16 };

typedef enum OpKind { OP_send, OP_recv, OP_broadcast, OP_sum, OP_scatter, OP_spread } OpKind;

typedef struct NcclCommObject {
    int rank, count;
    Gpu gpu;
    void *shared;
    size_t bytes; /* of it */
    CuAddress at; /* of it, for the device */
    uint64_t box_bytes;
    uint32_t put[RANKS_MAX], taken[RANKS_MAX]; /* parts, as far as it is enqueued */
    CuStream side;                             /* of what is sent while something comes */
    CuEvent fork, join;
} Comm;

#define GO(expression)                                                                             \
    do {                                                                                           \
        NcclResult result_ = (expression);                                                         \
        if (result_ != NCCL_SUCCESS) return result_;                                               \
    } while (0)

/* Both return the result, and keep a text for comm_last_error. */
NcclResult comm_fail(NcclResult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
NcclResult comm_check(const Comm *c, CuResult result, const char *what);
const char *comm_last_error(void);

/* The name of a communicator that is to be, good for as long as this process lives. */
NcclResult comm_name(NcclId *id);
/* Waits until all have come. */
NcclResult comm_open(const NcclId *id, int count, int rank, Comm **out);
/* Does not wait for others, nor for work that waits for them. NULL: nothing. */
void comm_close(Comm *c);

CuAddress comm_flag(const Comm *c, int from, int to);
CuAddress comm_box(const Comm *c, int from, int to);

/* This rank is about to enqueue a part of `bytes` of what it is to do with `peer`. What the other
 * end has said of it, if it was earlier, has to be the same. */
NcclResult comm_note(Comm *c, OpKind kind, int peer, uint64_t bytes, bool out);

#endif

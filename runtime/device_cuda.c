/* device_cuda.c - an NVIDIA GPU as a device, through the driver API.
 *
 * One stream carries everything in order; a second one carries uploads, which the next submission
 * waits for. Tickets go in and scalars come out through pinned rings (cuda_glue.h), so a recorded
 * graph needs no change from step to step. All device memory is one allocation: the plan's and the
 * data set's bytes, the matrix library's workspace, and one block for counter and moment.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/cublaslt.h"
#include "runtime/cuda_driver.h"
#include "runtime/cuda_glue.h"
#include "runtime/device.h"
#include "runtime/group.h"
#include "runtime/nccl.h"

enum { HOST_BLOCKS = 8, OWN_BYTES = 4096, MOMENT_AT = 256, MEET_AT = 512, SHARED_MAX = 48 << 10 };

struct InfDevice {
    const Plan *plan;
    const InfGroup *group;
    InfCuda cuda;
    InfCudaCode code;
    CuModule glue;
    CuFunction *function; /* by kernel; NULL for products */
    CuFunction begin, end, join, plus, tree, stage, stage_tokens;
    InfLt *lt;     /* NULL for plans without products */
    InfNccl *nccl; /* NULL for plans without messages */
    CuStream stream, upload_stream;
    CuEvent done[INF_DEVICE_DEPTH], uploaded;
    bool uploading;
    CuAddress memory, counter, moment, workspace, scalar;
    bool shared; /* the memory is NCCL's */
    uint64_t free_before;
    InfTicket *tickets; /* pinned, INF_DEVICE_DEPTH of them */
    unsigned char *results;
    uint32_t scalar_words;
    uint64_t submitted, collected;
    CuGraphExec *graph; /* NULL: not recorded */
    int graphs;
    CuNode *node, *awaited; /* of the launches recorded so far; of those the next one waits for */
    uint32_t nodes, nodes_most; /* nodes_most 0: not recording, or each waits for the one before */
    CuEvent *mark;
    uint32_t nmark;
    void *host[HOST_BLOCKS];
    int nhost;
    InfError fault;
    char text[128];
};

/* Records the first failure; false from then on. */
static bool good(InfDevice *d, CuResult result, const char *what) {
    if (d->fault.code == INF_OK) inf_cuda_check(&d->fault, &d->cuda, result, what);
    return d->fault.code == INF_OK;
}

static bool broken(const InfDevice *d) { return d->fault.code != INF_OK; }

/* Hands the first failure over to the caller. */
static InfCode report(InfError *e, InfDevice *d) {
    if (!broken(d)) return INF_OK;
    return inf_fail(e, d->fault.code, "%s", d->fault.text ? d->fault.text : "out of memory");
}

#define CALL(d, member, ...) good((d), (d)->cuda.call.member(__VA_ARGS__), #member)

static void *pointer(CuAddress at) { return (void *)(uintptr_t)at; }

static CuAddress address(const void *at) { return (CuAddress)(uintptr_t)at; }

/* --- opening --- */

static InfCode find_function(InfError *e, InfDevice *d, CuModule module, const char *name,
                             CuFunction *out) {
    char what[256];
    snprintf(what, sizeof what, "the kernel '%s' of this file", name);
    return inf_cuda_check(e, &d->cuda, d->cuda.call.module_function(out, module, name), what);
}

/* More shared memory than every device gives is there for those that ask, if the device has it. */
static InfCode ask_shared(InfError *e, InfDevice *d, const PlanKernel *kernel, CuFunction f) {
    if (kernel->shared_bytes > (uint32_t)d->cuda.shared_bytes)
        return inf_fail(e, INF_IO,
                        "the kernel '%s' needs %u bytes of shared memory in a block; the %s has %d"
                        "\n  = hint: use another device (data-center ones have 163 KiB and more), "
                        "or narrower heads: K of attention up to 64 needs least",
                        kernel->name, kernel->shared_bytes, d->cuda.name, d->cuda.shared_bytes);
    return inf_cuda_check(
        e, &d->cuda,
        d->cuda.call.function_set(f, CU_FUNCTION_DYNAMIC_SHARED_BYTES, (int)kernel->shared_bytes),
        kernel->name);
}

static InfCode find_kernels(InfError *e, InfDevice *d) {
    const Plan *plan = d->plan;
    TRY(find_function(e, d, d->glue, "inf_begin", &d->begin));
    TRY(find_function(e, d, d->glue, "inf_end", &d->end));
    TRY(find_function(e, d, d->glue, "inf_join", &d->join));
    TRY(find_function(e, d, d->glue, "inf_plus", &d->plus));
    TRY(find_function(e, d, d->glue, "inf_tree", &d->tree));
    TRY(find_function(e, d, d->code.part[0], "inf_stage", &d->stage));
    TRY(find_function(e, d, d->code.part[0], "inf_stage_tokens", &d->stage_tokens));
    for (uint32_t k = 0; k < plan->nkernel; k++) {
        const PlanKernel *kernel = &plan->kernel[k];
        if (kernel->kind == PLAN_KERNEL_matmul) continue;
        const char *name = kernel->function ? kernel->function : kernel->name;
        TRY(find_function(e, d, d->code.part[kernel->part], name, &d->function[k]));
        if (kernel->shared_bytes > SHARED_MAX) TRY(ask_shared(e, d, kernel, d->function[k]));
    }
    return INF_OK;
}

static InfCode open_queues(InfError *e, InfDevice *d) {
    CALL(d, stream_make, &d->stream, CU_STREAM_NON_BLOCKING);
    CALL(d, stream_make, &d->upload_stream, CU_STREAM_NON_BLOCKING);
    CALL(d, event_make, &d->uploaded, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < INF_DEVICE_DEPTH; i++)
        CALL(d, event_make, &d->done[i], CU_EVENT_DISABLE_TIMING);
    return report(e, d);
}

static uint64_t free_now(InfDevice *d) {
    size_t free_bytes = 0, total = 0;
    CALL(d, memory_info, &free_bytes, &total);
    return free_bytes;
}

/* Of the scalars what the host reads: sums of the norm's blocks, behind all others, stay here. */
static size_t read_bytes(const Plan *plan) {
    return (size_t)(plan->nshard > 0 ? plan->finish.blocks
                                     : plan->region_bytes[PLAN_REGION_scalar]);
}

static InfCode open_parts(InfError *e, InfDevice *d) {
    size_t scalars = read_bytes(d->plan);
    TRY(inf_cuda_open(e, d->group ? d->group->local_rank : 0, &d->cuda));
    snprintf(d->text, sizeof d->text, "%s (sm_%d%d)", d->cuda.name, d->cuda.major, d->cuda.minor);
    TRY(inf_cuda_load(e, &d->cuda, d->plan, &d->code));
    TRY(inf_cuda_check(e, &d->cuda,
                       d->cuda.call.module_load(&d->glue, inf_cuda_glue, 0, NULL, NULL),
                       "loading the runtime's own kernels"));
    TRY(find_kernels(e, d));
    TRY(open_queues(e, d));
    if (d->plan->nmatmul) TRY(inf_lt_open(e, d->plan, &d->lt));
    d->scalar_words = (uint32_t)(scalars / sizeof(float));
    CALL(d, host_take, (void **)&d->tickets, sizeof(InfTicket) * INF_DEVICE_DEPTH,
         CU_HOST_ALLOC_MAPPED);
    CALL(d, host_take, (void **)&d->results, scalars * INF_DEVICE_DEPTH, CU_HOST_ALLOC_MAPPED);
    d->free_before = free_now(d);
    return report(e, d);
}

static InfCode device_open(InfError *e, const Plan *plan, const InfGroup *group, InfDevice **out) {
    InfDevice *d = calloc(1, sizeof *d);
    *out = d;
    if (d) d->function = calloc(plan->nkernel + 1, sizeof(CuFunction));
    if (!d || !d->function) return inf_fail(e, INF_IO, "out of memory");
    d->plan = plan;
    d->group = group;
    return open_parts(e, d);
}

static void free_queues(InfDevice *d) {
    const CuFunctions *call = &d->cuda.call;
    for (int i = 0; i < d->graphs; i++)
        if (d->graph[i]) call->graph_exec_free(d->graph[i]);
    for (uint32_t i = 0; i < d->nmark; i++) call->event_free(d->mark[i]);
    for (int i = 0; i < INF_DEVICE_DEPTH; i++)
        if (d->done[i]) call->event_free(d->done[i]);
    if (d->uploaded) call->event_free(d->uploaded);
    if (d->upload_stream) call->stream_free(d->upload_stream);
    if (d->stream) call->stream_free(d->stream);
}

static void device_close(InfDevice *d) {
    if (!d) return;
    const CuFunctions *call = &d->cuda.call;
    if (d->cuda.context) {
        call->context_sync();
        free_queues(d);
        inf_nccl_close(d->nccl);
        inf_lt_close(d->lt);
        for (int i = 0; i < d->nhost; i++) call->host_free(d->host[i]);
        if (d->tickets) call->host_free(d->tickets);
        if (d->results) call->host_free(d->results);
        if (d->memory && !d->shared) call->memory_free(d->memory);
        if (d->glue) call->module_unload(d->glue);
        inf_cuda_unload(&d->cuda, &d->code);
    }
    inf_cuda_close(&d->cuda);
    inf_error_free(&d->fault);
    free(d->graph);
    free(d->node);
    free(d->awaited);
    free(d->mark);
    free(d->function);
    free(d);
}

static const char *describe(InfDevice *d) { return d->text; }

/* --- memory --- */

static uint64_t workspace_bytes(const InfDevice *d) { return d->lt ? INF_LT_WORKSPACE_BYTES : 0; }

/* Counter, moment and what the first messages carry. */
static uint64_t own_bytes(const InfDevice *d) {
    uint64_t pages = (MEET_AT + inf_nccl_scratch(d->plan) + OWN_BYTES - 1) / OWN_BYTES;
    return pages * OWN_BYTES;
}

/* Where ranks exchange anything: memory that the library for it can use without copies. */
static InfCode take_shared(InfError *e, InfDevice *d, uint64_t bytes) {
    if (!inf_nccl_wanted(d->plan, d->group)) return INF_OK;
    TRY(inf_nccl_load(e, &d->nccl));
    d->memory = inf_nccl_take(d->nccl, bytes);
    d->shared = d->memory != 0;
    return INF_OK;
}

static InfCode take(InfError *e, InfDevice *d, uint64_t bytes, void **out, uint64_t *total) {
    uint64_t rounded = 0, free_bytes = free_now(d);
    if (!inf_round_up(bytes, OWN_BYTES, &rounded) ||
        !inf_add(rounded, workspace_bytes(d) + own_bytes(d), total) || *total > SIZE_MAX)
        return inf_fail(e, INF_IO, "the plan needs more than 2^64 bytes of memory");
    TRY(take_shared(e, d, *total));
    CuResult result = d->shared ? CU_SUCCESS : d->cuda.call.memory_take(&d->memory, (size_t)*total);
    if (result == CU_ERROR_OUT_OF_MEMORY)
        return inf_fail(e, INF_IO,
                        "the plan needs %llu bytes of device memory; %llu are free on the %s\n"
                        "  = hint: a smaller train.B or more train.microbatches needs less",
                        (unsigned long long)*total, (unsigned long long)free_bytes, d->text);
    TRY(inf_cuda_check(e, &d->cuda, result, "taking device memory"));
    CALL(d, memory_set, d->memory, 0, (size_t)*total);
    CALL(d, context_sync);
    *out = pointer(d->memory);
    d->workspace = d->memory + rounded;
    d->counter = d->workspace + workspace_bytes(d);
    d->moment = d->counter + MOMENT_AT;
    return report(e, d);
}

static InfCode place(InfError *e, InfDevice *d, unsigned char *const base[PLAN_REGION_count]) {
    CuAddress at[PLAN_REGION_count];
    for (int r = 0; r < PLAN_REGION_count; r++) at[r] = address(base[r]);
    d->scalar = at[PLAN_REGION_scalar];
    return d->lt ? inf_lt_prepare(e, d->lt, at, d->workspace) : INF_OK;
}

static uint64_t available(InfDevice *d) {
    uint64_t own = workspace_bytes(d) + own_bytes(d), free_bytes = free_now(d);
    return free_bytes > own ? free_bytes - own : 0;
}

static uint64_t measured(InfDevice *d) {
    uint64_t now = free_now(d);
    return d->free_before > now ? d->free_before - now : 0;
}

static void copy_in(InfDevice *d, void *to, const void *from, uint64_t bytes) {
    if (broken(d) || !CALL(d, stream_sync, d->stream)) return;
    CALL(d, copy_in, address(to), from, (size_t)bytes);
    CALL(d, context_sync); /* our streams do not wait for the one that copies */
}

static void copy_out(InfDevice *d, void *to, const void *from, uint64_t bytes) {
    if (broken(d) || !CALL(d, stream_sync, d->stream)) return;
    CALL(d, copy_out, to, address(from), (size_t)bytes);
}

static void upload(InfDevice *d, void *to, const void *from, uint64_t bytes) {
    if (broken(d)) return;
    CALL(d, copy_in_later, address(to), from, (size_t)bytes, d->upload_stream);
    d->uploading = true;
}

static void *host_take(InfDevice *d, uint64_t bytes) {
    void *at = NULL;
    INF_ASSERT(d->nhost < HOST_BLOCKS);
    if (broken(d) || !CALL(d, host_take, &at, (size_t)bytes, CU_HOST_ALLOC_MAPPED)) return NULL;
    d->host[d->nhost++] = at;
    return at;
}

/* --- a submission --- */

/* While a graph is recorded: the node that the last launch became. */
static void note_node(InfDevice *d) {
    const CuNode *nodes = NULL;
    size_t count = 0;
    int status = 0;
    if (d->nodes_most == 0 || broken(d)) return;
    INF_ASSERT(d->nodes < d->nodes_most);
    CALL(d, capture_info, d->stream, &status, NULL, NULL, &nodes, &count);
    if (broken(d)) return;
    INF_ASSERT(count == 1);
    d->node[d->nodes++] = nodes[0];
}

static void launch_glue(InfDevice *d, CuFunction f, unsigned block, void **arguments) {
    if (!broken(d)) CALL(d, launch, f, 1, 1, 1, block, 1, 1, 0, d->stream, arguments, NULL);
    note_node(d);
}

static void ticket(InfDevice *d, const InfTicket *t) {
    INF_ASSERT(d->submitted - d->collected < INF_DEVICE_DEPTH);
    d->tickets[d->submitted % INF_DEVICE_DEPTH] = *t;
    if (!d->uploading || broken(d)) return;
    CALL(d, event_record, d->uploaded, d->upload_stream);
    CALL(d, stream_wait, d->stream, d->uploaded, 0);
    d->uploading = false;
}

static void enter(InfDevice *d) {
    CuAddress ring = address(d->tickets);
    void *arguments[] = {&ring, &d->counter, &d->moment, &d->scalar};
    launch_glue(d, d->begin, INF_GLUE_BEGIN_BLOCK, arguments);
}

static void leave(InfDevice *d, bool update) {
    CuAddress ring = address(d->results);
    CuAddress ok = update ? d->scalar + (CuAddress)d->plan->update_ok : 0;
    void *arguments[] = {&ring, &d->counter, &d->scalar, &d->scalar_words, &ok};
    launch_glue(d, d->end, INF_GLUE_END_BLOCK, arguments);
}

static void stage(InfDevice *d, const InfStage *s) {
    CuAddress rows = address(s->rows), labels = address(s->labels), input = address(s->input),
              target = address(s->target), valid = address(s->valid);
    unsigned long long first = s->first;
    long long length = s->length;
    int token_bytes = s->token_bytes;
    void *images[] = {&rows, &labels, &input, &target, &valid, &d->moment, &first, &length};
    void *tokens[] = {&rows, &input, &target, &valid, &d->moment, &first, &length, &token_bytes};
    if (broken(d)) return;
    CALL(d, launch, token_bytes ? d->stage_tokens : d->stage, (unsigned)s->batch, 1, 1,
         PLAN_STAGE_BLOCK, 1, 1, 0, d->stream, token_bytes ? tokens : images, NULL);
    note_node(d);
}

enum { ARGUMENTS_MAX = 480 }; /* a kernel's parameters fill at most 4 KiB */

static void launch_kernel(InfDevice *d, const InfLaunch *l) {
    const PlanKernel *kernel = &d->plan->kernel[l->kernel];
    InfDeviceEnv env = {.moment = pointer(d->moment), .microbatch = (int32_t)l->env->microbatch};
    CuAddress at[ARGUMENTS_MAX];
    void *arguments[ARGUMENTS_MAX + 2];
    PlanSizes sizes;
    INF_ASSERT(l->narg <= ARGUMENTS_MAX);
    for (int i = 0; i < PLAN_REPEAT_DEPTH_MAX; i++) env.iter[i] = (int32_t)l->env->iter[i];
    for (uint32_t i = 0; i < l->narg; i++) {
        at[i] = address(l->arg[i]);
        arguments[i] = &at[i];
    }
    arguments[l->narg] = &env;
    if (kernel->sizes) sizes = *kernel->sizes;
    arguments[l->narg + 1] = &sizes; /* looked at by functions that have such a parameter */
    good(d,
         d->cuda.call.launch(d->function[l->kernel], kernel->grid, 1, 1, kernel->block, 1, 1,
                             kernel->shared_bytes, d->stream, arguments, NULL),
         kernel->name);
}

static void launch(InfDevice *d, const InfLaunch *l) {
    const PlanKernel *kernel = &d->plan->kernel[l->kernel];
    if (broken(d)) return;
    if (kernel->kind == PLAN_KERNEL_matmul)
        inf_lt_run(&d->fault, d->lt, kernel->matmul, l->arg, d->stream);
    else
        launch_kernel(d, l);
    note_node(d);
}

static void submitted(InfDevice *d) {
    if (!broken(d)) CALL(d, event_record, d->done[d->submitted % INF_DEVICE_DEPTH], d->stream);
    d->submitted++;
}

static InfCode collect(InfError *e, InfDevice *d, void *scalars) {
    uint64_t slot = d->collected++ % INF_DEVICE_DEPTH, bytes = (uint64_t)d->scalar_words * 4;
    if (!broken(d)) good(d, d->cuda.call.event_sync(d->done[slot]), "a step on the device");
    if (!broken(d)) memcpy(scalars, d->results + slot * bytes, (size_t)bytes);
    return report(e, d);
}

static InfCode finish(InfError *e, InfDevice *d) {
    if (!broken(d)) good(d, d->cuda.call.stream_sync(d->stream), "the work on the device");
    return report(e, d);
}

/* --- other ranks --- */

/* Who is on which device. */
typedef struct Seat {
    unsigned char uuid[16];
    char name[96];
    int visible;
} Seat;

static InfCode compare_seats(InfError *e, const InfGroup *group, const Seat *seat) {
    for (int a = 0; a < group->count; a++)
        for (int b = a + 1; b < group->count; b++)
            if (memcmp(seat[a].uuid, seat[b].uuid, sizeof seat[a].uuid) == 0)
                return inf_fail(e, INF_IO,
                                "ranks %d and %d have the same device, %s: each needs one of its "
                                "own, and their host shows %d\n"
                                "  = hint: use more devices or hosts (CUDA_VISIBLE_DEVICES hides "
                                "devices), or build for fewer ranks: -D parallel.pp=.., dp=..",
                                a, b, seat[b].name, seat[b].visible);
    return INF_OK;
}

/* INFINIC_SHARE_DEVICES: whoever carries the messages can do with one device for some ranks, which
 * NCCL cannot. */
static InfCode check_seats(InfError *e, InfDevice *d) {
    const InfGroup *group = d->group;
    Seat mine = {.visible = d->cuda.visible};
    Seat *all = calloc((size_t)group->count, sizeof *all);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    memcpy(mine.uuid, d->cuda.uuid, sizeof mine.uuid);
    snprintf(mine.name, sizeof mine.name, "%s", d->cuda.name);
    InfCode code = group->transport->gather(e, &mine, sizeof mine, all);
    if (code == INF_OK && !getenv("INFINIC_SHARE_DEVICES")) code = compare_seats(e, group, all);
    free(all);
    return code;
}

static InfCode meet(InfError *e, InfDevice *d) {
    if (d->group && d->group->count > 1) TRY(check_seats(e, d));
    const InfNcclPlace place = {.scratch = d->counter + MEET_AT,
                                .stream = d->stream,
                                .multiprocessors = d->cuda.multiprocessors};
    TRY(inf_nccl_open(e, d->nccl, d->plan, d->group, &place));
    good(d, d->cuda.call.stream_sync(d->stream), "the first messages");
    return report(e, d);
}

/* While a graph is recorded: whatever NCCL made of an exchange, perhaps nothing, becomes one node
 * that others can wait for. */
static void note_exchange(InfDevice *d) {
    const CuNode *nodes = NULL;
    size_t count = 0;
    int status = 0;
    if (d->nodes_most == 0 || broken(d)) return;
    CALL(d, capture_info, d->stream, &status, NULL, NULL, &nodes, &count);
    if (!broken(d) && count != 1)
        CALL(d, launch, d->join, 1, 1, 1, 1, 1, 1, 0, d->stream, NULL, NULL);
    note_node(d);
}

static void exchange(InfDevice *d, const InfHalf *half, uint32_t count) {
    if (!broken(d)) inf_nccl_exchange(&d->fault, d->nccl, half, count, d->stream);
    note_exchange(d);
}

static void broadcast(InfDevice *d, int root, void *at, uint64_t bytes) {
    if (!broken(d)) inf_nccl_broadcast(&d->fault, d->nccl, root, at, bytes, d->stream);
    note_exchange(d);
}

static void sum(InfDevice *d, float *at, uint64_t count) {
    if (!broken(d)) inf_nccl_sum(&d->fault, d->nccl, at, count, d->stream);
    note_exchange(d);
}

static void add(InfDevice *d, const InfAddend *part, uint32_t count) {
    if (!broken(d)) inf_nccl_add(&d->fault, d->nccl, part, count, d->stream);
    note_exchange(d);
}

static void scatter(InfDevice *d, float *all, uint64_t each) {
    if (!broken(d)) inf_nccl_scatter(&d->fault, d->nccl, all, each, d->stream);
    note_exchange(d);
}

static void spread(InfDevice *d, void *all, uint64_t each) {
    if (!broken(d)) inf_nccl_spread(&d->fault, d->nccl, all, each, d->stream);
    note_exchange(d);
}

static void trade(InfDevice *d, const InfHalf *half, uint32_t count) {
    if (!broken(d)) inf_nccl_trade(&d->fault, d->nccl, half, count, d->stream);
    note_exchange(d);
}

static void plus(InfDevice *d, float *out, const float *const *term, uint32_t terms,
                 uint64_t count) {
    CuAddress to = address(out), from[INF_TERMS_MAX] = {0}, bits = to;
    unsigned long long fours = count / 4;
    void *arguments[] = {&to, &from[0], &from[1], &from[2], &from[3], &terms, &fours};
    uint64_t blocks = (fours + INF_GLUE_PLUS_BLOCK - 1) / INF_GLUE_PLUS_BLOCK;
    unsigned grid = blocks < INF_GLUE_PLUS_GRID ? (unsigned)blocks : INF_GLUE_PLUS_GRID;
    for (uint32_t i = 0; i < terms; i++) bits |= from[i] = address(term[i]);
    INF_ASSERT(terms >= 2 && count > 0 && count % 4 == 0 && bits % 16 == 0);
    if (!broken(d))
        CALL(d, launch, d->plus, grid, 1, 1, INF_GLUE_PLUS_BLOCK, 1, 1, 0, d->stream, arguments,
             NULL);
    note_node(d);
}

static void tree(InfDevice *d, float *rows, uint32_t count, uint32_t width, float *out) {
    CuAddress from = address(rows), to = address(out);
    void *arguments[] = {&from, &count, &width, &to};
    launch_glue(d, d->tree, INF_GLUE_TREE_BLOCK, arguments);
}

static void clear(InfDevice *d, void *at, uint64_t bytes) {
    if (!broken(d)) CALL(d, memory_set_later, address(at), 0, (size_t)bytes, d->stream);
    note_node(d);
}

/* --- graphs --- */

static void record(InfDevice *d, uint32_t launches) {
    free(d->node);
    free(d->awaited);
    d->node = calloc((size_t)launches + 1, sizeof(CuNode));
    d->awaited = calloc((size_t)launches + 1, sizeof(CuNode));
    d->nodes = 0;
    d->nodes_most = launches;
    if (!d->node || !d->awaited) inf_fail(&d->fault, INF_IO, "out of memory");
    if (!broken(d)) CALL(d, capture_begin, d->stream, CU_CAPTURE_THREAD_LOCAL);
}

static void follow(InfDevice *d, const uint32_t *launches, uint32_t count) {
    if (broken(d) || d->nodes == 0) return;
    for (uint32_t i = 0; i < count; i++) {
        INF_ASSERT(launches[i] < d->nodes);
        d->awaited[i] = d->node[launches[i]];
    }
    CALL(d, capture_follow, d->stream, d->awaited, count, CU_CAPTURE_FOLLOW_THESE);
}

static bool have_graph(InfDevice *d, int which) {
    if (which < d->graphs) return true;
    CuGraphExec *grown = realloc(d->graph, ((size_t)which + 1) * sizeof(CuGraphExec));
    if (!grown) {
        inf_fail(&d->fault, INF_IO, "out of memory");
        return false;
    }
    d->graph = grown;
    while (d->graphs <= which) d->graph[d->graphs++] = NULL;
    return true;
}

static void keep(InfDevice *d, int which) {
    CuGraph graph = NULL;
    d->nodes_most = 0;
    if (!broken(d) && CALL(d, capture_end, d->stream, &graph) && have_graph(d, which) &&
        CALL(d, graph_make, &d->graph[which], graph, 0))
        CALL(d, graph_upload, d->graph[which], d->stream);
    if (graph) d->cuda.call.graph_free(graph);
}

static void replay(InfDevice *d, int which) {
    if (!broken(d)) CALL(d, graph_launch, d->graph[which], d->stream);
}

/* --- measuring --- */

static InfCode marks(InfError *e, InfDevice *d, uint32_t count) {
    CuEvent *grown = realloc(d->mark, ((size_t)count + 1) * sizeof *grown);
    if (!grown) return inf_fail(e, INF_IO, "out of memory");
    d->mark = grown;
    while (d->nmark < count && CALL(d, event_make, &d->mark[d->nmark], CU_EVENT_DEFAULT))
        d->nmark++;
    return report(e, d);
}

static void mark(InfDevice *d, uint32_t i) {
    if (!broken(d)) CALL(d, event_record, d->mark[i], d->stream);
}

static double between(InfDevice *d, uint32_t from, uint32_t to) {
    float ms = 0;
    if (!broken(d)) CALL(d, event_elapsed, &ms, d->mark[from], d->mark[to]);
    return (double)ms;
}

/* Multiply-adds a cycle and multiprocessor, by compute capability (the first row that is not above
 * it). */
typedef struct Lanes {
    int major, minor, of[PLAN_MATH_COUNT];
} Lanes;

static const Lanes *lanes_of(int major, int minor) {
    static const Lanes lanes[] = {{12, 0, {128, 256, 512}},  {10, 0, {128, 2048, 4096}},
                                  {9, 0, {128, 1024, 2048}}, {8, 1, {128, 256, 512}},
                                  {8, 0, {64, 512, 1024}},   {0, 0, {64, 64, 64}}};
    const Lanes *l = lanes;
    while (l->major > major || (l->major == major && l->minor > minor)) l++;
    return l;
}

/* The rates of arithmetic from the device's own figures; bandwidth by copying 512 MiB back and
 * forth, the best of a few. */
static InfCeiling ceiling(InfDevice *d) {
    enum { COPIES = 8 };
    const size_t bytes = (size_t)512 << 20;
    const InfCuda *c = &d->cuda;
    const Lanes *lanes = lanes_of(c->major, c->minor);
    InfCeiling top = {0};
    for (int i = 0; i < PLAN_MATH_COUNT; i++)
        top.flops_per_s[i] = 2.0 * lanes->of[i] * c->multiprocessors * 1e3 * (double)c->clock_khz;
    CuAddress at = 0;
    double best_ms = 0;
    if (broken(d) || d->nmark < 2 || c->call.memory_take(&at, 2 * bytes) != CU_SUCCESS) return top;
    CALL(d, memory_set, at, 1, 2 * bytes);
    CALL(d, context_sync);
    for (int i = 0; i < COPIES; i++) {
        mark(d, 0);
        CALL(d, copy_later, at + bytes * (i % 2 == 0), at + bytes * (i % 2 == 1), bytes, d->stream);
        mark(d, 1);
        CALL(d, stream_sync, d->stream);
        double ms = between(d, 0, 1);
        if (best_ms == 0 || ms < best_ms) best_ms = ms;
    }
    CALL(d, memory_free, at);
    if (best_ms > 0) top.bytes_per_s = 2.0 * (double)bytes / best_ms * 1e3;
    return top;
}

const InfDeviceTable inf_device_cuda = {
    .target = "cuda",
    .late = 1,
    .graphs = true,
    .open = device_open,
    .close = device_close,
    .describe = describe,
    .take = take,
    .place = place,
    .available = available,
    .measured = measured,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .upload = upload,
    .host_take = host_take,
    .ticket = ticket,
    .enter = enter,
    .stage = stage,
    .launch = launch,
    .leave = leave,
    .submitted = submitted,
    .collect = collect,
    .finish = finish,
    .record = record,
    .follow = follow,
    .keep = keep,
    .replay = replay,
    .meet = meet,
    .exchange = exchange,
    .broadcast = broadcast,
    .sum = sum,
    .clear = clear,
    .add = add,
    .scatter = scatter,
    .spread = spread,
    .trade = trade,
    .plus = plus,
    .tree = tree,
    .marks = marks,
    .mark = mark,
    .between = between,
    .ceiling = ceiling,
};

const InfDeviceTable *inf_device_find(const Plan *plan) {
    return strcmp(plan->target, inf_device_cuda.target) == 0 ? &inf_device_cuda : &inf_device_cpu;
}

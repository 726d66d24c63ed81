/* group.c - takes a process to its place among the ranks of its run, and out of it again. */
#include "runtime/group.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/engine.h"
#include "runtime/launch.h"
#include "runtime/signals.h"

/* Of a rank that has its place. A process that ends inside exit(), after a broken invariant, has
 * no other way to find its lifeline. */
static struct {
    InfLifeline *lifeline;
    bool finished; /* has ended or failed */
} here;

static void fail_on_exit(int status, void *nothing) {
    (void)nothing;
    if (!here.lifeline || here.finished) return;
    here.finished = true;
    inf_lifeline_fail(here.lifeline, status > 0 ? (InfCode)status : INF_INTERNAL, NULL);
}

/* --- start --- */

/* All ranks of a wrong start see the same; rank 0 says it. */
static void refuse_count(const Plan *plan, int ranks, InfPlace place, char **argv) {
    const char *command = argv[0] ? argv[0] : plan->model;
    const char *more = argv[0] && argv[1] ? argv[1] : "train";
    if (place.rank > 0) return;
    fprintf(stderr,
            "%s: error: this program has %d rank%s (dp %d, tp %d, pp %d) and was started as %d\n"
            "  = hint: ",
            plan->model, ranks, ranks == 1 ? "" : "s", plan->dp, plan->tp, plan->pp, place.count);
    const char *starter = place.starter, *flag = strcmp(starter, "srun") ? "" : "--mpi=pmix ";
    if (ranks > 1)
        fprintf(stderr, "%s -n %d %s%s %s ..., or without %s: %s %s ...\n", starter, ranks, flag,
                command, more, starter, command, more);
    else
        fprintf(stderr,
                "without %s: %s %s ..., or compile for several ranks: infinic %s "
                "-D parallel.pp=%d or dp=%d\n",
                starter, command, more, plan->file, place.count, place.count);
}

static InfCode check_place(InfError *e, const InfGroup *g, InfPlace place, int rank, int count) {
    if (count == 1 && g->count > 1)
        return inf_fail(e, INF_PEER,
                        "%s started %d processes that %s does not connect\n  = hint: srun "
                        "--mpi=pmix (srun --mpi=list shows what there is), or mpirun -n %d",
                        place.starter, place.count, g->transport->name, g->count);
    if (rank == g->rank && count == g->count) return INF_OK;
    return inf_fail(e, INF_PEER, "%s says rank %d of %d, the environment rank %d of %d",
                    g->transport->name, rank, count, g->rank, g->count);
}

/* What each rank knows of its host. */
typedef struct Seat {
    char host[64];
    cpu_set_t processors;
} Seat;

/* Ranks of one host that may run on the same processors share them. */
static InfCode share_processors(InfError *e, const InfGroup *g) {
    Seat mine = {.host = ""}, *all = calloc((size_t)g->count, sizeof *all);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    gethostname(mine.host, sizeof mine.host - 1);
    sched_getaffinity(0, sizeof mine.processors, &mine.processors);
    InfCode code = g->transport->gather(e, &mine, sizeof mine, all);
    int sharers = 0;
    for (int r = 0; r < g->count; r++) {
        cpu_set_t both;
        CPU_AND(&both, &mine.processors, &all[r].processors);
        sharers += CPU_COUNT(&both) > 0 && strcmp(mine.host, all[r].host) == 0;
    }
    free(all);
    int threads = inf_cores() / (sharers > 0 ? sharers : 1);
    if (code == INF_OK && !getenv("OMP_NUM_THREADS")) inf_threads_set(threads > 0 ? threads : 1);
    return code;
}

static InfCode take_place(InfError *e, InfGroup *g, InfPlace place) {
    int rank = 0, count = 0;
    const char *way = getenv("INFINIC_LIFELINE");
    bool local = place.local_count == g->count && !(way && strcmp(way, "tcp") == 0);
    TRY(inf_signals_install(e)); /* from here on the launcher may pass them on */
    inf_launch_tell(
        (InfTold){.what = INF_TELL_here, .rank = g->rank, .text = getenv("PMIX_NAMESPACE")});
    TRY(inf_lifeline_start(e, g->plan, g->rank, g->count, local, &g->lifeline));
    here.lifeline = g->lifeline;
    on_exit(fail_on_exit, NULL);
    TRY(g->transport->open(e, &rank, &count, &g->local_rank, &g->local_count));
    g->open = true;
    TRY(check_place(e, g, place, rank, count));
    TRY(inf_lifeline_join(e, g->lifeline, g->transport, g->local_count == g->count));
    if (g->plan->dp > 1) TRY(g->transport->split(e, g->plan->dp));
    return share_processors(e, g);
}

InfCode inf_group_start(InfError *e, const Plan *plan, int ranks, int argc, char **argv,
                        InfGroup *out, bool *launched, int *exit_code) {
    InfPlace place = inf_place_find();
    (void)argc;
    *out = (InfGroup){.count = 1, .local_count = 1, .plan = plan};
    *launched = false;
    if (place.started && place.count != ranks) {
        refuse_count(plan, ranks, place, argv);
        *launched = true;
        *exit_code = inf_place_refuses(place, INF_USAGE);
        return INF_OK;
    }
    if (ranks == 1) return INF_OK;
    INF_ASSERT(plan->transport);
    if (place.started && plan->transport->check(e) != INF_OK) {
        if (place.rank == 0) inf_error_print(e, plan->model);
        *launched = true;
        *exit_code = inf_place_refuses(place, e->code);
        return INF_OK;
    }
    if (!place.started) {
        TRY(inf_launch(e, plan->model, plan->transport->name, ranks, argv, exit_code));
        *launched = true;
        return INF_OK;
    }
    out->transport = plan->transport;
    out->rank = e->rank = place.rank;
    out->replica = place.rank % inf_plan_replicas(plan);
    out->count = e->rank_count = ranks;
    return take_place(e, out, place);
}

/* --- between --- */

void inf_group_at(InfGroup *g, int64_t step, int32_t task) {
    if (g->lifeline) inf_lifeline_at(g->lifeline, inf_position(step, task));
}

InfCode inf_group_signal(InfError *e, InfGroup *g, int *number) {
    *number = inf_signals_pending();
    if (g->count == 1) return INF_OK;
    int mine = *number, *all = calloc((size_t)g->count, sizeof *all);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = g->transport->gather(e, &mine, sizeof mine, all);
    for (int r = g->count - 1; r >= 0 && code == INF_OK; r--)
        if (all[r] != 0) *number = all[r];
    free(all);
    g->agreed = code == INF_OK && *number != 0;
    return code;
}

/* The hash that most ranks have, of those that have one; of the lowest rank that has it. */
static uint64_t majority(const uint64_t *all, int n) {
    int best = 0, most = 0;
    for (int i = 0; i < n; i++) {
        if (all[i] == 0) continue;
        int same = 0;
        for (int k = 0; k < n; k++) same += all[k] == all[i];
        if (same > most) most = same, best = i;
    }
    return all[best];
}

static InfCode compare(InfError *e, const InfGroup *g, const char *what, const uint64_t *all) {
    char ranks[256] = "";
    size_t length = 0;
    uint64_t most = majority(all, g->count);
    int differ = 0;
    for (int r = 0; r < g->count; r++) {
        if (all[r] == most || all[r] == 0) continue;
        differ++;
        if (length < sizeof ranks - 32)
            length += (size_t)snprintf(ranks + length, sizeof ranks - length, "%s%d",
                                       differ > 1 ? ", " : "", r);
    }
    if (differ == 0) return INF_OK;
    return inf_fail(e, INF_PEER,
                    "the %s of rank%s %s differ%s from that of the others\n  = hint: every host "
                    "needs the same %s",
                    what, differ > 1 ? "s" : "", ranks, differ > 1 ? "" : "s",
                    strcmp(what, "data") == 0 ? "data files" : "executable");
}

InfCode inf_group_same(InfError *e, InfGroup *g, const char *what, uint64_t hash) {
    if (g->count == 1) return INF_OK;
    uint64_t *all = calloc((size_t)g->count, sizeof *all);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = g->transport->gather(e, &hash, sizeof hash, all);
    if (code == INF_OK) code = compare(e, g, what, all);
    free(all);
    return code;
}

/* --- the end --- */

static void print_failure(const InfGroup *g, InfCode code, const char *text) {
    char *copy = text ? strdup(text) : NULL;
    InfError e = {
        .code = code, .rank = g->rank, .rank_count = g->agreed ? 1 : g->count, .text = copy};
    inf_error_print(&e, g->plan->model);
    free(copy);
}

/* Nobody leaves before all have come: MPI_Finalize ends the process of whoever it cannot reach. */
static void end_together(InfGroup *g, InfCode code) {
    InfError e = {.rank = g->rank, .rank_count = g->count};
    char mine = 0, *all = calloc((size_t)g->count, 1);
    if (!all || g->transport->gather(&e, &mine, 1, all) != INF_OK) {
        free(all);
        g->agreed = false;
        inf_group_fail(g, INF_PEER, e.text ? e.text : "out of memory");
        inf_error_free(&e);
        return;
    }
    free(all);
    g->transport->close();
    g->open = false;
    here.lifeline = NULL;
    inf_lifeline_end(g->lifeline);
    g->lifeline = NULL;
    if (g->rank == 0) inf_launch_tell((InfTold){.what = INF_TELL_end, .code = code});
}

void inf_group_end(InfGroup *g) {
    if (g->lifeline && g->open) end_together(g, INF_OK);
}

void inf_group_fail(InfGroup *g, InfCode code, const char *text) {
    if (g->agreed && code == INF_STOPPED && g->lifeline && g->open) {
        if (g->rank == 0) print_failure(g, code, text);
        end_together(g, code);
        return;
    }
    here.finished = true;
    InfTold told = {INF_TELL_cause, g->rank, code, false, text};
    bool print = g->lifeline ? inf_lifeline_fail(g->lifeline, code, text)
                             : g->count == 1 || !inf_launch_tell(told);
    if (print) print_failure(g, code, text);
}

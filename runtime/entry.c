/* entry.c - the entry of every executable: parses the command line and runs one subcommand. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/group.h"
#include "runtime/launch.h"
#include "runtime/schedule.h"
#include "runtime/session.h"

/* What a full disk or a closed pipe swallowed is not a success. */
static InfCode finish_output(InfError *e, InfCode code) {
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == INF_OK)
        return inf_fail(e, INF_IO, "standard output could not be written");
    return code;
}

static InfCode run_params(InfError *e, const Plan *plan, const InfOptions *o) {
    InfParamsFormat format = {.prefix = inf_option_text(o, OPT_prefix, NULL),
                              .no_recurse = inf_option_given(o, OPT_no_recurse),
                              .aliases = inf_option_given(o, OPT_aliases),
                              .json = inf_option_given(o, OPT_json)};
    return inf_params_print(e, plan, format, stdout);
}

static InfCode run_schedule(InfError *e, const Plan *plan, const InfOptions *o) {
    return inf_schedule_print(e, plan, inf_option_text(o, OPT_format, "table"), stdout);
}

/* A thread that waits for the others spins. libgomp's default is 300,000 turns, 14 ms on current
 * processors: on a machine with other work each kernel then waits for that long, and a step takes
 * ten times as long as it could. A thousand turns cover the gap between two kernels. libgomp reads
 * its environment before main, so the program starts itself once more; whoever sets one of the
 * variables has decided otherwise. */
static void limit_spinning(char **argv) {
    char path[4096];
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", "1000", 1) != 0) return;
    path[length] = '\0';
    execv(path, argv);
}

/* Whether a command runs kernels. */
static bool runs_kernels(const InfOptions *o) {
    return o->command == CMD_train || o->command == CMD_eval || o->command == CMD_bench ||
           o->command == CMD_verify || o->command == CMD_generate || inf_option_given(o, OPT_time);
}

/* Whether every rank has a part in it. Replicas of a whole model would all write the same text, so
 * one of them does. */
static bool needs_ranks(const Plan *plan, const InfOptions *o) {
    return runs_kernels(o) && !(o->command == CMD_generate && plan->ranks == 1 && plan->dp > 1);
}

static InfCode (*const runners[CMD_COUNT])(InfError *, const Plan *, const InfOptions *) = {
    [CMD_train] = inf_train,   [CMD_eval] = inf_eval,         [CMD_params] = run_params,
    [CMD_info] = inf_info,     [CMD_bench] = inf_bench,       [CMD_schedule] = run_schedule,
    [CMD_verify] = inf_verify, [CMD_generate] = inf_generate,
};

/* What one rank does; rank 0 alone speaks. */
static InfCode run_as_rank(InfError *e, const Plan *plan, InfOptions *o) {
    InfGroup *group = o->group;
    const Plan *own = plan + group->rank / inf_plan_replicas(plan);
    e->rank = group->rank;
    if (group->rank > 0) {
        inf_say_nothing();
        if (!freopen("/dev/null", "w", stdout)) return inf_fail_errno(e, "freopen", "/dev/null");
    }
    TRY(inf_group_same(e, group, "program", plan->hash));
    return runners[o->command](e, own, o);
}

/* A program of several ranks: this process launches them, or is one. */
static InfCode run_ranks(InfError *e, const Plan *plan, InfOptions *o, int argc, char **argv) {
    InfGroup group;
    bool launched = false;
    int exit_code = 0;
    InfCode code = inf_group_start(e, plan, inf_plan_processes(plan), argc, argv, &group, &launched,
                                   &exit_code);
    if (launched) return (InfCode)exit_code;
    o->group = &group;
    if (code == INF_OK) code = run_as_rank(e, plan, o);
    code = finish_output(e, code);
    if (code == INF_OK)
        inf_group_end(&group);
    else
        inf_group_fail(&group, code, e->text);
    inf_error_free(e);
    return code;
}

/* What needs no rank to be seen: it is said once, before any is started. */
static InfCode refuse_early(InfError *e, const Plan *plan, const InfOptions *o) {
    if (o->command == CMD_verify && !inf_option_given(o, OPT_ref))
        return inf_fail(e, INF_USAGE, "verify needs --ref FILE");
    return o->command == CMD_generate ? inf_generate_ready(e, plan) : INF_OK;
}

static InfCode run(InfError *e, const Plan *plan, int argc, char **argv) {
    InfOptions o;
    InfCode code = inf_options_parse(e, plan, argc, argv, &o);
    if (code != INF_OK) return inf_place_refuses(inf_place_find(), code);
    /* By hand under mpirun: one of them is enough for what needs one process only. */
    if ((o.help || o.version || !needs_ranks(plan, &o)) && inf_place_find().rank > 0) return INF_OK;
    if (o.help) {
        inf_options_help(stdout, plan, o.command);
        return INF_OK;
    }
    if (o.version) {
        printf("%s, built from %s by infinic %s for %s\n", plan->model, plan->file, plan->compiler,
               plan->target);
        return INF_OK;
    }
    code = refuse_early(e, plan, &o);
    if (code != INF_OK) return inf_place_refuses(inf_place_find(), code);
    if (runs_kernels(&o)) limit_spinning(argv);
    /* Also a program of one rank that was started as several: it is refused there. */
    if (needs_ranks(plan, &o) && (inf_plan_processes(plan) > 1 || inf_place_find().count > 1))
        return run_ranks(e, plan, &o, argc, argv);
    return runners[o.command](e, plan, &o);
}

int inf_main(const Plan *plan, int argc, char **argv) {
    InfError e = {.rank_count = 1}; /* no rank yet: all would say the same */
    InfCode code = finish_output(&e, run(&e, plan, argc, argv));
    if (code != INF_OK && e.text && inf_place_find().rank <= 0) inf_error_print(&e, plan->model);
    inf_error_free(&e);
    return code;
}

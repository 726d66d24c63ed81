/* options.h - the command line of an executable, parsed by the table options.def. */
#ifndef INF_RUNTIME_OPTIONS_H
#define INF_RUNTIME_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "runtime/plan.h"
#include "runtime/status.h"

typedef enum InfCommand {
    CMD_none,
#define COMMAND(name, help) CMD_##name,
#include "runtime/options.def"
    CMD_COUNT
} InfCommand;

typedef enum InfOptionId {
#define OPTION(id, flag, kind, value, commands, help) OPT_##id,
#include "runtime/options.def"
    OPT_COUNT
} InfOptionId;

typedef struct InfOptionValue {
    bool given;
    const char *text; /* as typed; NULL for a flag without argument */
    int64_t whole;    /* kinds count and whole */
    double real;      /* kinds real and positive */
} InfOptionValue;

typedef struct InfOptions {
    InfCommand command;
    bool help;    /* print help and stop */
    bool version; /* print versions and stop */
    InfOptionValue value[OPT_COUNT];
    struct InfGroup *group; /* of a run of several ranks; else NULL */
} InfOptions;

/* Parses argv[1 ..]. A mistake is INF_USAGE with the nearest name, or with the way to rebuild
 * when the name is a setting that is fixed at build time. Texts are borrowed from argv. */
InfCode inf_options_parse(InfError *e, const Plan *plan, int argc, char **argv, InfOptions *out);

/* Help of one command, or of the executable for CMD_none. */
void inf_options_help(FILE *out, const Plan *plan, InfCommand command);

/* The candidate nearest to `name`, or NULL when none is near. */
const char *inf_nearest_name(const char *name, const char *const *candidates, int count);

static inline bool inf_option_given(const InfOptions *o, InfOptionId id) {
    return o->value[id].given;
}

static inline int64_t inf_option_whole(const InfOptions *o, InfOptionId id, int64_t otherwise) {
    return o->value[id].given ? o->value[id].whole : otherwise;
}

static inline double inf_option_real(const InfOptions *o, InfOptionId id, double otherwise) {
    return o->value[id].given ? o->value[id].real : otherwise;
}

static inline const char *inf_option_text(const InfOptions *o, InfOptionId id,
                                          const char *otherwise) {
    return o->value[id].given && o->value[id].text ? o->value[id].text : otherwise;
}

#endif

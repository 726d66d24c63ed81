/* plan_text.c - what an executable prints of its plan, as text for the compiler. */
#include <stdlib.h>

#include "runtime/params.h"
#include "runtime/schedule.h"

/* Ends the stream; its text, or NULL after a failure. */
static char *finish(FILE *out, char **text, InfCode code, InfError *e) {
    fclose(out);
    inf_error_free(e);
    if (code == INF_OK) return *text;
    free(*text);
    return NULL;
}

char *inf_schedule_text(const Plan *plan, const char *format) {
    char *text = NULL;
    size_t length = 0;
    InfError e = {0};
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    return finish(out, &text, inf_schedule_print(&e, plan, format, out), &e);
}

char *inf_params_text(const Plan *plan) {
    char *text = NULL;
    size_t length = 0;
    InfError e = {0};
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    return finish(out, &text, inf_params_print(&e, plan, (InfParamsFormat){0}, out), &e);
}

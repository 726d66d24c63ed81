/* progress.c - prints how far a run is. */
#include "runtime/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/engine.h"

enum { TERMINAL_MS = 200, PLAIN_MS = 5000 };

void inf_progress_open(InfProgress *p, bool quiet, int64_t first, int64_t steps,
                       int64_t steps_per_epoch, const char *unit) {
    *p = (InfProgress){.quiet = quiet,
                       .terminal = isatty(STDERR_FILENO) == 1 || getenv("INFINIC_TERMINAL"),
                       .first = first,
                       .steps = steps,
                       .steps_per_epoch = steps_per_epoch,
                       .unit = unit,
                       .started_ms = inf_clock_ms()};
}

const char *inf_duration_text(double seconds, char *out) {
    long long s = seconds < 0 ? 0 : seconds > 1e9 ? 1000000000 : (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%lld:%02lld", s / 60, s % 60);
    return out;
}

/* Used and reserved. */
static void print_memory(const InfUse *u) {
    char rank[32];
    int digits = u->reserved < 100000000;
    fprintf(stderr, "  mem %.*f/%.*f MB%s", digits, (double)u->used / 1e6, digits,
            (double)u->reserved / 1e6, inf_use_rank(u, rank));
}

void inf_progress_step(InfProgress *p, const InfStepRecord *r) {
    double now = inf_clock_ms();
    int64_t step = r->step;
    bool last = step == p->steps;
    if (p->quiet ||
        (p->shown && !last && now - p->shown_ms < (p->terminal ? TERMINAL_MS : PLAIN_MS)))
        return;
    double done = (double)(step - p->first), left = (double)(p->steps - step);
    char eta[32];
    inf_duration_text((now - p->started_ms) / 1e3 / done * left, eta);
    int64_t epochs = (p->steps + p->steps_per_epoch - 1) / p->steps_per_epoch;
    fprintf(stderr, "%sepoch %lld/%lld  step %lld/%lld  loss %.4f", p->terminal ? "\r" : "",
            (long long)((step - 1) / p->steps_per_epoch + 1), (long long)epochs, (long long)step,
            (long long)p->steps, (double)r->loss);
    if (r->has_norm) fprintf(stderr, "  norm %.4f", (double)r->grad_norm);
    fprintf(stderr, "  lr %.3g  %.0f %s/s", r->lr, r->units_per_s, p->unit);
    if (r->mfu > 0) fprintf(stderr, "  MFU %.1f %%", 100 * r->mfu);
    print_memory(&r->memory);
    fprintf(stderr, "  ETA %s%s", eta, p->terminal ? "\x1b[K" : "\n");
    fflush(stderr);
    p->pending = p->terminal;
    p->shown = true;
    p->shown_ms = now;
}

void inf_progress_break(InfProgress *p) {
    if (p->pending) fputc('\n', stderr);
    p->pending = false;
}

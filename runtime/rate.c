/* rate.c - learning-rate schedules. */
#include "runtime/rate.h"

#include <math.h>

static double clamp_unit(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

double inf_rate_at(const PlanTrain *train, double lr, int64_t step, int64_t steps) {
    int64_t warmup = train->warmup;
    double low = train->floor;
    if (step < warmup) return lr * (double)(step + 1) / (double)warmup;
    double span = steps > warmup ? (double)(steps - warmup) : 1.0;
    double x = clamp_unit((double)(step - warmup) / span);
    switch ((PlanSchedule)train->schedule) {
    case PLAN_SCHED_linear: return lr * (1.0 - (1.0 - low) * x);
    case PLAN_SCHED_cosine:
        return lr * (low + (1.0 - low) * 0.5 * (1.0 + cos(3.141592653589793 * x)));
    case PLAN_SCHED_inverse_sqrt:
        return lr * fmax(low, sqrt((double)(warmup > 0 ? warmup : 1) / (double)(step + 1)));
    case PLAN_SCHED_wsd: {
        double decay = train->decay_share * (double)steps, start = (double)steps - decay;
        double y = decay > 0 ? clamp_unit(((double)step - start) / decay) : 0.0;
        return lr * (1.0 - (1.0 - low) * y);
    }
    default: return lr;
    }
}

/* rate.h - the learning rate of a step.
 *
 * With w warm-up steps, n steps in all and step s from 0: during warm-up lr * (s + 1) / w. After
 * it, with x = (s - w) / (n - w) and f = floor:
 *   constant      lr
 *   linear        lr * (1 - (1 - f) x)
 *   cosine        lr * (f + (1 - f) (1 + cos(pi x)) / 2)
 *   inverse_sqrt  lr * max(f, sqrt(max(w, 1) / (s + 1)))
 *   wsd           lr until the last decay_share of the n steps, there linearly down to lr * f
 */
#ifndef INF_RUNTIME_RATE_H
#define INF_RUNTIME_RATE_H

#include "runtime/plan.h"

double inf_rate_at(const PlanTrain *train, double lr, int64_t step, int64_t steps);

#endif

/* costs.h - what each layer costs, measured: the file that `infinic --costs` reads.
 *
 * A launch counts for the layer whose name its scope begins with; one without counts for the layer
 * of the launch before it, as do the nodes of the model.
 */
#ifndef INF_RUNTIME_COSTS_H
#define INF_RUNTIME_COSTS_H

#include "runtime/session.h"

/* On an open profile: layers are added up from now on. */
InfCode inf_costs_open(InfError *e, InfProfile *p);

/* The step at hand of a profile. */
void inf_costs_add(InfProfile *p);

/* What was added up in `steps` steps, as a file. */
InfCode inf_costs_write(InfError *e, const InfSession *s, int64_t steps, const char *path);

#endif

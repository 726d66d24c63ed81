/* choose.h - settings that the memory plan chooses. */
#ifndef INFINIC_PASSES_CHOOSE_H
#define INFINIC_PASSES_CHOOSE_H

#include "passes/pass.h"

/* With a memory limit: sets train.chunk_loss and train.recompute of the lowered module where they
 * are not written and the plan would not fit, and leaves weight gradients of layers in the input
 * tasks of a pipeline that has both, with notices. */
void passes_choose(PassContext *ctx);

#endif

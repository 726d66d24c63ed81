/* attention_c.c - attention kernels of the C target: a struct of sizes and places, and a call of
 * prelude_attention.h. */
#include "codegen/attention.h"

#include <inttypes.h>

/* prelude.S */
extern const char loop_attention_text[], loop_attention_text_end[];

void attention_c_print_prelude(FILE *out) {
    fwrite(loop_attention_text, 1, (size_t)(loop_attention_text_end - loop_attention_text), out);
}

static void print_view(const char *name, const AttentionView *v, FILE *out) {
    if (v->arg < 0) return;
    fprintf(out,
            "        .%s = {(float *)arg[%d] + %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
            "},\n",
            name, v->arg, v->offset, v->b, v->h, v->t);
}

void attention_c_print(const AttentionSpec *s, const char *name, FILE *out) {
    const struct {
        const char *name;
        const AttentionView *view;
    } views[] = {{"q", &s->q},     {"k", &s->k},     {"v", &s->v},
                 {"out", &s->out}, {"lse", &s->lse}, {"dout", &s->dout},
                 {"dq", &s->dq},   {"dk", &s->dk},   {"dv", &s->dv}};
    fprintf(out, "static void %s(void *const *arg, const InfEnv *env)\n{\n", name);
    fprintf(out,
            "    const InfAttention a = {\n        .batch = %" PRId64 ", .heads = %" PRId64
            ", .groups = %" PRId64 ", .queries = %" PRId64 ", .keys = %" PRId64 ", .dim = %" PRId64
            ",\n        .causal = %d, .scale = %.9ef,\n",
            s->batch, s->heads, s->groups, s->queries, s->keys, s->dim, s->causal,
            (double)(float)s->scale);
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++)
        print_view(views[i].name, views[i].view, out);
    fprintf(out, "    };\n    inf_attention%s(&a, env->threads);\n}\n",
            s->dout.arg < 0 ? "" : "_grad");
}

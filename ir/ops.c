/* ops.c - the op table as data: names, kinds, arities, attributes; see graph.h and ops.def. */
#include "ir/graph.h"

#include <string.h>

typedef struct OpRow {
    const char *name;
    const char *attrs;
    const char *expr;
    const char *reduce_first;
    int operands, results;
    OpKind kind;
} OpRow;

static const OpRow op_table[OP_count] = {
    [OP_none] = {.name = "none", .attrs = ""},
#define EW(name_, operands_, shape_, grad_, expr_)                                                 \
    [OP_##name_] = {.name = #name_,                                                                \
                    .attrs = "",                                                                   \
                    .expr = #expr_,                                                                \
                    .operands = operands_,                                                         \
                    .results = 1,                                                                  \
                    .kind = KIND_elementwise},
#define RED(name_, shape_, grad_, first_, expr_)                                                   \
    [OP_##name_] = {.name = #name_,                                                                \
                    .attrs = "axes",                                                               \
                    .expr = #expr_,                                                                \
                    .reduce_first = #first_,                                                       \
                    .operands = 1,                                                                 \
                    .results = 1,                                                                  \
                    .kind = KIND_reduce},
#define OP(name_, operands_, results_, kind_, shape_, grad_, attrs_)                               \
    [OP_##name_] = {.name = #name_,                                                                \
                    .attrs = attrs_,                                                               \
                    .operands = operands_,                                                         \
                    .results = results_,                                                           \
                    .kind = KIND_##kind_},
#include "ir/ops.def"
};

static const struct {
    const char *name;
    AttrKind kind;
} attr_table[ATTR_count_] = {
    [ATTR_none] = {"none", ATTRKIND_int},
#define ATTR(name_, kind_) [ATTR_##name_] = {#name_, ATTRKIND_##kind_},
#include "ir/attrs.def"
#undef ATTR
};

const char *op_name(Op op) { return op_table[op].name; }

Op op_from_name(const char *name, size_t len) {
    for (int op = OP_none + 1; op < OP_count; op++)
        if (strlen(op_table[op].name) == len && memcmp(op_table[op].name, name, len) == 0)
            return (Op)op;
    return OP_none;
}

OpKind op_kind(Op op) { return op_table[op].kind; }

int op_operands(Op op) { return op_table[op].operands; }

int op_results(Op op) { return op_table[op].results; }

const char *op_attrs(Op op) { return op_table[op].attrs; }

const char *op_expr(Op op) { return op_table[op].expr; }

const char *op_reduce_first(Op op) { return op_table[op].reduce_first; }

const char *attr_name(AttrKey key) { return attr_table[key].name; }

AttrKind attr_kind(AttrKey key) { return attr_table[key].kind; }

AttrKey attr_from_name(const char *name, size_t len) {
    for (int key = ATTR_none + 1; key < ATTR_count_; key++)
        if (strlen(attr_table[key].name) == len && memcmp(attr_table[key].name, name, len) == 0)
            return (AttrKey)key;
    return ATTR_none;
}

AttrKey op_attr_next(const char **list, bool *optional) {
    const char *s = *list;
    while (*s == ' ') s++;
    const char *begin = s;
    while (*s != '\0' && *s != ' ' && *s != '?') s++;
    AttrKey key = attr_from_name(begin, (size_t)(s - begin));
    *optional = *s == '?';
    *list = *optional ? s + 1 : s;
    return key;
}

/* settings.h - the sections of a model file, -D overrides, and the functions that settings take.
 *
 * settings_read evaluates config, dims and the other sections, in this order; the result is part
 * of the Lower context, because expressions of the model see config and dims.
 */
#ifndef FRONTEND_SETTINGS_H
#define FRONTEND_SETTINGS_H

#include "frontend/signature.h"

typedef enum SettingKind {
    SETTING_INIT,
    SETTING_OPTIMIZER,
    SETTING_SCHEDULE,
    SETTING_DATA
} SettingKind;

typedef enum SettingId {
#define SETTING(kind, name, signature) SETFN_##name,
#include "frontend/settings.def"
    SETFN_COUNT
} SettingId;

typedef struct SettingFn {
    SettingKind kind;
    SettingId id;
    const char *name;
    const char *signature;
} SettingFn;

typedef enum SectionId {
#define SECTION(name, has_dims, doc) SECTION_##name,
#include "frontend/sections.def"
    SECTION_COUNT
} SectionId;

typedef enum KeyId {
#define KEY(section, name, type, when, doc) KEY_##section##_##name,
#include "frontend/sections.def"
    KEY_COUNT
} KeyId;

/* One dim declaration. */
typedef struct DimDecl {
    const char *name;
    Span span;
    bool is_free;
    int64_t bound; /* free: largest value; INT64_MAX when none */
    const char *bound_text;
    Dim dim;    /* bound ones; a free one gets its value from the section that runs */
    bool valid; /* false after an error */
} DimDecl;

/* A free dimension's value in a section; 0: not given. generate may give several. */
typedef struct DimValue {
    bool given; /* in this section: not train's */
    int64_t value;
    Span span;
    Value all; /* as written */
} DimValue;

typedef struct ConfigEntry {
    const char *name;
    Value value;
    Span span;
} ConfigEntry;

typedef struct Settings {
    VEC(ConfigEntry) config;
    VEC(DimDecl) dims;
    bool present[SECTION_COUNT];
    Span section_span[SECTION_COUNT];
    Value key[KEY_COUNT];               /* the default where not given */
    Span key_span[KEY_COUNT];           /* file 0 where not given */
    DimValue *dim_value[SECTION_COUNT]; /* by index in dims */
} Settings;

struct Lower;

/* Evaluate everything outside blocks and model. `overrides` are the texts of -D, n of them. */
void settings_read(struct Lower *l, const char *const *overrides, int n);

/* Copy what the passes and the runtime need into the module, and check the layout (E020). */
void settings_to_module(struct Lower *l);

/* The part of settings_to_module that concerns the section parallel. */
void settings_layout(struct Lower *l);

/* The value of a key; as a number or text, `fallback` and NULL where it has none. */
const Value *settings_value(const struct Lower *l, KeyId k);
int64_t settings_int(const struct Lower *l, KeyId k, int64_t fallback);
const char *settings_text(const struct Lower *l, KeyId k);

/* A setting function of a kind by name, NULL when there is none; all of them by index. */
const SettingFn *setting_find(SettingKind kind, const char *name);
const SettingFn *setting_at(int index);

const char *setting_kind_text(SettingKind kind); /* "optimizer" */

/* "train.microbatches" when a key is part of the code, NULL when it is a flag of the executable. */
const char *settings_build_key(Arena *a, KeyId key);

const char *settings_section_name(SectionId section);

/* Print the reference of sections and keys. */
void settings_list(FILE *out);

#endif

/* text_words.h - the words of the IR's text, shared by printer and reader. */
#ifndef INFINIC_IR_TEXT_WORDS_H
#define INFINIC_IR_TEXT_WORDS_H

#include "ir/module.h"

/* What a port word may be followed by. */
typedef struct RoleWord {
    const char *word;
    bool indexed; /* "(index, use, "name")" is always printed */
} RoleWord;

extern const RoleWord text_role[ROLE_count];
extern const char *const text_region[REGION_count];
extern const char text_phase[]; /* letter by Phase */

enum { TEXT_INIT_COUNT = INIT_uniform + 1 };
extern const char *const text_init[TEXT_INIT_COUNT];

/* Settings of the module as "key = value": where the value lies and how it is written. */
typedef enum SettingKind {
    SETTING_int64,
    SETTING_int,
    SETTING_float,
    SETTING_bool,
    SETTING_string, /* NULL when not given */
    SETTING_word    /* an enum with `words` */
} SettingKind;

typedef struct Setting {
    const char *key;
    SettingKind kind;
    size_t offset;            /* in Module */
    const char *const *words; /* by value, NULL at the end; "" for a value that has no word */
} Setting;

extern const Setting text_setting[];
extern const int text_setting_count;

#endif

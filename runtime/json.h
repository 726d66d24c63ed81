/* json.h - writes JSON, one value after another, with commas and escapes in the right places.
 *
 * A float is printed with the fewest digits that read back to the same f32 (a double likewise);
 * NaN and infinities, which JSON lacks, become null. Bytes that are not UTF-8 become U+FFFD.
 */
#ifndef INF_RUNTIME_JSON_H
#define INF_RUNTIME_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { INF_JSON_DEPTH_MAX = 16 };

typedef struct InfJson {
    FILE *out;
    int depth;
    char close[INF_JSON_DEPTH_MAX];
    bool filled[INF_JSON_DEPTH_MAX];
    bool keyed; /* a key was just written */
} InfJson;

void inf_json_init(InfJson *j, FILE *out);
void inf_json_open(InfJson *j, char bracket); /* '{' or '[' */
void inf_json_close(InfJson *j);
void inf_json_key(InfJson *j, const char *key);

void inf_json_text(InfJson *j, const char *value); /* NULL: null */
void inf_json_int(InfJson *j, int64_t value);
void inf_json_float(InfJson *j, float value);
void inf_json_double(InfJson *j, double value);
void inf_json_bool(InfJson *j, bool value);

/* The same with a key. */
void inf_json_put_text(InfJson *j, const char *key, const char *value);
void inf_json_put_int(InfJson *j, const char *key, int64_t value);
void inf_json_put_float(InfJson *j, const char *key, float value);
void inf_json_put_double(InfJson *j, const char *key, double value);
void inf_json_put_bool(InfJson *j, const char *key, bool value);

/* The fewest digits that read back to the same value; `out` has at least 32 bytes. */
const char *inf_float_text(float value, char *out);
const char *inf_double_text(double value, char *out);

#endif

/* json.c - a JSON writer. */
#include "runtime/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/status.h"

enum { NUMBER_BYTES = 32 };

const char *inf_float_text(float value, char *out) {
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(out, NUMBER_BYTES, "%.*g", digits, (double)value);
        if (strtof(out, NULL) == value) break;
    }
    return out;
}

const char *inf_double_text(double value, char *out) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

void inf_json_init(InfJson *j, FILE *out) { *j = (InfJson){.out = out}; }

/* Before a value or a key: the comma of the surrounding list, unless a key precedes. */
static void separate(InfJson *j) {
    if (j->keyed)
        j->keyed = false;
    else if (j->depth > 0) {
        if (j->filled[j->depth - 1]) fputc(',', j->out);
        j->filled[j->depth - 1] = true;
    }
}

/* Length of the UTF-8 sequence at `s`, or 0 when it is not one. */
static int utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    int length = s[0] >= 0xC2 && s[0] <= 0xDF   ? 2
                 : s[0] >= 0xE0 && s[0] <= 0xEF ? 3
                 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4
                                                : 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return length;
}

static void put_quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int length = utf8_length(s);
        if (length == 0) {
            fputs("\\ufffd", out);
            length = 1;
        } else if (*s == '"' || *s == '\\') {
            fprintf(out, "\\%c", *s);
        } else if (*s < 0x20) {
            fprintf(out, "\\u%04x", *s);
        } else {
            fwrite(s, 1, (size_t)length, out);
        }
        s += length;
    }
    fputc('"', out);
}

void inf_json_open(InfJson *j, char bracket) {
    INF_ASSERT(j->depth < INF_JSON_DEPTH_MAX);
    separate(j);
    fputc(bracket, j->out);
    j->close[j->depth] = bracket == '{' ? '}' : ']';
    j->filled[j->depth++] = false;
}

void inf_json_close(InfJson *j) {
    INF_ASSERT(j->depth > 0);
    fputc(j->close[--j->depth], j->out);
}

void inf_json_key(InfJson *j, const char *key) {
    separate(j);
    put_quoted(j->out, key);
    fputc(':', j->out);
    j->keyed = true;
}

void inf_json_text(InfJson *j, const char *value) {
    separate(j);
    if (value)
        put_quoted(j->out, value);
    else
        fputs("null", j->out);
}

void inf_json_int(InfJson *j, int64_t value) {
    separate(j);
    fprintf(j->out, "%lld", (long long)value);
}

void inf_json_float(InfJson *j, float value) {
    char text[NUMBER_BYTES];
    separate(j);
    fputs(isfinite(value) ? inf_float_text(value, text) : "null", j->out);
}

void inf_json_double(InfJson *j, double value) {
    char text[NUMBER_BYTES];
    separate(j);
    fputs(isfinite(value) ? inf_double_text(value, text) : "null", j->out);
}

void inf_json_bool(InfJson *j, bool value) {
    separate(j);
    fputs(value ? "true" : "false", j->out);
}

void inf_json_put_text(InfJson *j, const char *key, const char *value) {
    inf_json_key(j, key);
    inf_json_text(j, value);
}

void inf_json_put_int(InfJson *j, const char *key, int64_t value) {
    inf_json_key(j, key);
    inf_json_int(j, value);
}

void inf_json_put_float(InfJson *j, const char *key, float value) {
    inf_json_key(j, key);
    inf_json_float(j, value);
}

void inf_json_put_double(InfJson *j, const char *key, double value) {
    inf_json_key(j, key);
    inf_json_double(j, value);
}

void inf_json_put_bool(InfJson *j, const char *key, bool value) {
    inf_json_key(j, key);
    inf_json_bool(j, value);
}

/* unicode.h - characters of UTF-8 text and what kind they are. */
#ifndef INF_RUNTIME_UNICODE_H
#define INF_RUNTIME_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum InfCharClass {
    INF_CHAR_other,
    INF_CHAR_letter, /* general category L* */
    INF_CHAR_number, /* N* */
    INF_CHAR_space,  /* White_Space */
} InfCharClass;

typedef struct InfChar {
    uint32_t code;
    uint32_t bytes; /* 0: the end of the text */
    InfCharClass class;
} InfChar;

/* The character at `text` of `left` bytes. A byte that begins no valid UTF-8 is a character of its
 * own, of code 0xfffd and class other. */
InfChar inf_char_at(const char *text, size_t left);

#endif

/* unicode.c - decodes UTF-8 and classifies characters. */
#include "runtime/unicode.h"

typedef struct InfCodeRange {
    uint32_t first, last;
} InfCodeRange;

#include "runtime/unicode_table.h"

static const InfCodeRange spaces[] = {{0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
                                      {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                      {0x205f, 0x205f}, {0x3000, 0x3000}};

static int contains(const InfCodeRange *range, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > range[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= range[low].first;
}

#define CONTAINS(table, code) contains(table, sizeof(table) / sizeof *(table), code)

static InfCharClass classify(uint32_t code) {
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return INF_CHAR_letter;
        if (code >= '0' && code <= '9') return INF_CHAR_number;
        return code == ' ' || (code >= '\t' && code <= '\r') ? INF_CHAR_space : INF_CHAR_other;
    }
    if (CONTAINS(letters, code)) return INF_CHAR_letter;
    if (CONTAINS(numbers, code)) return INF_CHAR_number;
    return CONTAINS(spaces, code) ? INF_CHAR_space : INF_CHAR_other;
}

InfChar inf_char_at(const char *text, size_t left) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *b = (const unsigned char *)text;
    InfChar bad = {0xfffd, 1, INF_CHAR_other};
    if (left == 0) return (InfChar){0, 0, INF_CHAR_other};
    if (b[0] < 0x80) return (InfChar){b[0], 1, classify(b[0])};
    uint32_t bytes = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : b[0] >= 0xc0 ? 2 : 0;
    if (bytes == 0 || bytes > left || b[0] >= 0xf8) return bad;
    uint32_t code = b[0] & (0x7fu >> bytes);
    for (uint32_t i = 1; i < bytes; i++) {
        if ((b[i] & 0xc0) != 0x80) return bad;
        code = code << 6 | (b[i] & 0x3f);
    }
    if (code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return bad;
    return (InfChar){code, bytes, classify(code)};
}

"""Writes runtime/unicode_table.h: the letters and numbers of Unicode as ranges.

usage: make_unicode.py > runtime/unicode_table.h      (needs unicodedata2 of the wanted version)
"""
import unicodedata2 as unicode

CLASSES = (("L", "letter"), ("N", "number"))


def ranges(category):
    out = []
    for code in range(0x80, 0x110000):
        if unicode.category(chr(code))[0] != category:
            continue
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


print(f"/* unicode_table.h - made by tests/reference/make_unicode.py from Unicode {unicode.unidata_version}:")
print(" * code points from U+0080 on whose general category is L* or N*, in order.\n */")
for category, name in CLASSES:
    line = ""
    print(f"static const InfCodeRange {name}s[] = {{")
    for first, last in ranges(category):
        item = f"{{0x{first:x}, 0x{last:x}}}, "
        if len(line) + len(item) > 96:
            print("    " + line.rstrip())
            line = ""
        line += item
    print("    " + line.rstrip())
    print("};")

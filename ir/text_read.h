/* text_read.h - the two halves of the reader: tables (text_read_tables.c), graphs (text_read.c). */
#ifndef INFINIC_IR_TEXT_READ_H
#define INFINIC_IR_TEXT_READ_H

#include "ir/text_lex.h"

/* Reads one item that is not a graph, from its first word on. False when there is no such item. */
bool text_read_table(TextReader *r);

/* The place in `words` (n of them) of the current word, stepping over it; 0 after a mistake. */
int text_read_choice(TextReader *r, int n, const char *const *words, const char *what);

/* An optional `loc "scope" "file":1:2`; only the scope is kept. */
void text_read_location(TextReader *r, Scope *scope);

#endif

/* tokenize.c - a text file into a token file with the header of llm.c.
 *
 * Tokens below 65536 take two bytes (u16), larger vocabularies four. The file appears under its
 * name when it is complete.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/bpe.h"
#include "runtime/check.h"
#include "runtime/plan.h"
#include "runtime/signals.h"
#include "runtime/token_file.h"
#include "runtime/tokens.h"

typedef struct Making {
    InfWriter writer;
    uint32_t width;
    uint64_t count;
} Making;

enum { BLOCK = 4096, COUNT_MAX = INT32_MAX };

static InfCode put_tokens(InfError *e, void *context, const int32_t *token, size_t count) {
    Making *m = context;
    uint16_t half[BLOCK];
    if (inf_signals_pending())
        return inf_fail(e, INF_STOPPED, "stopped by %s; nothing written",
                        inf_signal_name(inf_signals_pending()));
    m->count += count;
    if (m->count > COUNT_MAX)
        return inf_fail(e, INF_DATA,
                        "more than %d tokens, which the file's header cannot count: split the "
                        "text, and name the files together when training: --data 'train-*.bin'",
                        COUNT_MAX);
    if (m->width == 4) return inf_writer_put(e, &m->writer, token, count * sizeof *token);
    for (size_t at = 0; at < count;) {
        size_t part = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < part; i++) half[i] = (uint16_t)token[at + i];
        TRY(inf_writer_put(e, &m->writer, half, part * sizeof *half));
        at += part;
    }
    return INF_OK;
}

static InfCode put_header(InfError *e, Making *m) {
    int32_t header[INF_TOKEN_HEADER_WORDS] = {
        m->width == 2 ? INF_TOKEN_MAGIC_U16 : INF_TOKEN_MAGIC_U32,
        m->width == 2 ? INF_TOKEN_VERSION_U16 : INF_TOKEN_VERSION_U32, (int32_t)m->count};
    return inf_writer_put(e, &m->writer, header, sizeof header);
}

/* The header's count is known at the end. */
static InfCode write_file(InfError *e, Making *m, InfBpe *b, const char *text, size_t bytes) {
    TRY(put_header(e, m));
    TRY(inf_bpe_encode(e, b, text, bytes, put_tokens, m));
    if (fseek(m->writer.stream, 0, SEEK_SET) != 0) return inf_fail_errno(e, "seek", m->writer.path);
    TRY(put_header(e, m));
    return inf_writer_commit(e, &m->writer);
}

static InfCode check_text(InfError *e, const InfFile *f) {
    unsigned char head[64];
    uint64_t count = f->size < sizeof head ? f->size : sizeof head;
    if (f->size == 0) return inf_fail(e, INF_DATA, "%s: empty file; there is no text", f->path);
    TRY(inf_file_read_at(e, f, 0, head, count));
    const char *what = inf_file_sniff(head, (size_t)count);
    if (what && !strstr(what, "HTML"))
        return inf_fail(e, INF_DATA, "%s: this is %s, not a text", f->path, what);
    return INF_OK;
}

/* Two names of one file. */
static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static InfCode encode_file(InfError *e, Making *m, InfBpe *b, const InfFile *f, const char *out) {
    void *text = NULL;
    TRY(check_text(e, f));
    TRY(inf_map_memory(e, f->size, "the text", &text));
    InfCode code = inf_file_read_at(e, f, 0, text, f->size);
    if (code == INF_OK) code = inf_writer_open(e, out, &m->writer);
    if (code == INF_OK) code = write_file(e, m, b, text, (size_t)f->size);
    inf_writer_abandon(&m->writer);
    inf_unmap_memory(text, f->size);
    return code;
}

static InfCode tokenize(InfError *e, const char *text, const char *out, const char *tokenizer) {
    InfBpe *b = NULL;
    InfFile f;
    if (same_file(text, out))
        return inf_fail(e, INF_USAGE, "%s: the tokens would replace the text", out);
    TRY(inf_file_open(e, text, &f));
    InfCode code = inf_bpe_open(e, tokenizer, &b);
    Making m = {.width = code == INF_OK ? inf_token_width(inf_bpe_vocabulary(b)) : 2};
    if (code == INF_OK) code = encode_file(e, &m, b, &f, out);
    inf_file_close(&f);
    if (code == INF_OK)
        printf("%s: %llu tokens of %u bytes from %llu bytes of text; build the model with a "
               "vocabulary of %d or more (vocab=%d)\n",
               out, (unsigned long long)m.count, m.width, (unsigned long long)f.size,
               inf_bpe_vocabulary(b), inf_bpe_vocabulary(b));
    inf_bpe_close(b);
    return code;
}

int inf_tokenize(const char *text, const char *out, const char *tokenizer) {
    InfError e = {0};
    InfCode code = inf_signals_install(&e);
    if (code == INF_OK) code = tokenize(&e, text, out, tokenizer);
    if (code != INF_OK) inf_error_print(&e, "infinic");
    inf_error_free(&e);
    return code;
}

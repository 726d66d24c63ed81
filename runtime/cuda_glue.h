/* cuda_glue.h - the runtime's own device code: tiny kernels, two of which carry a submission's
 * numbers in and its results out, through pinned host memory, inside the captured graph, and two
 * add what reduce = "ordered" adds.
 *
 *   inf_begin(ring, counter, moment, scalar)
 *       slot counter[0] % depth of the ring holds an InfTicket: to the moment and, from the row for
 *       the updates counted since, to the host scalars
 *   inf_end(ring, counter, scalar, words, ok)
 *       the scalar region, `words` of 4 bytes, to the slot of its own ring; then counter[0] += 1,
 *       and counter[1], of updates, if `ok` is an address and the float there is not 0
 *   inf_join()
 *       nothing: the one node that stands for several
 *   inf_plus(out, a, b, c, d, terms, fours)
 *       out = d + (c + (b + a)), of two to four terms, of so many times four floats; `out` may be
 *       one of them
 *   inf_tree(rows, count, width, out), one block
 *       row i of `width` floats += row i + 1 for all even i, += row i + 2 for each fourth, and so
 *       on as long as there is such a row; then row 0 to `out`
 *
 * PTX of the lowest plain architecture, so that every driver and chip we run on takes it. Kernels
 * instead of copy nodes: a graph starts a kernel in a microsecond, a copy in several.
 */
#ifndef INF_RUNTIME_CUDA_GLUE_H
#define INF_RUNTIME_CUDA_GLUE_H

enum {
    INF_GLUE_BEGIN_BLOCK = 32,
    INF_GLUE_END_BLOCK = 128,
    INF_GLUE_PLUS_GRID = 1056, /* blocks go round until everything is done */
    INF_GLUE_PLUS_BLOCK = 256,
    INF_GLUE_TREE_BLOCK = 1024
};

extern const char inf_cuda_glue[];

#endif

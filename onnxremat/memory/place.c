/* Blocks put one after another at the lowest gap that takes them: packing.py's inner loop. */
#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Writes offset[block] for the n blocks of order, in that order; the top reached, -1 without memory.
 * until has a row per block with a column per stream (events.py). */
EXPORT int64_t place(const int64_t *order, int64_t n, const int64_t *size, const int64_t *first,
                     const int64_t *stream, const int64_t *until, int64_t streams,
                     int64_t *offset) {
  int64_t top = 0, *done = malloc((n + 1) * sizeof *done); /* placed blocks by offset */
  if (!done) return -1;
  for (int64_t k = 0; k < n; k++) {
    int64_t block = order[k], at = 0, i;
    const int64_t *own = until + block * streams, *others = until + stream[block];
    for (i = 0; i < k; i++) {
      int64_t other = done[i];
      if (others[other * streams] < first[block] || first[other] > own[stream[other]]) continue;
      if (offset[other] - at >= size[block]) break;
      if (offset[other] + size[other] > at) at = offset[other] + size[other];
    }
    offset[block] = at;
    if (at + size[block] > top) top = at + size[block];
    for (i = k; i > 0 && offset[done[i - 1]] > at; i--) done[i] = done[i - 1];
    done[i] = block;
  }
  free(done);
  return top;
}

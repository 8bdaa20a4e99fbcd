/* A thread looks for a token for a while before it sleeps: tokens.py's inner loop. */
#include <stdint.h>

#ifndef _WIN32
/* Set *other (where there is one), then look at *word until it is set, so many times at most. */
__attribute__((visibility("default"))) int look(const int64_t *word, int64_t turns, int64_t *other) {
  if (other) __atomic_store_n(other, 1, __ATOMIC_RELEASE);
  for (; turns > 0; turns--) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause(); /* leaves the core to its other thread */
#endif
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE)) return 1;
  }
  return 0;
}
#endif

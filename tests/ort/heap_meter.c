/* Counts the bytes of live heap blocks of a process, and their peak, from outside onnxruntime.
 *
 * Preloaded (LD_PRELOAD), it stands before every allocation function of glibc. Usable sizes are
 * counted, because they can be asked again when a block is given back.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static _Atomic long live, top;

static void *taken(void *block) {
  long now, seen;
  if (block == NULL) return NULL;
  now = atomic_fetch_add(&live, (long)malloc_usable_size(block)) + (long)malloc_usable_size(block);
  seen = atomic_load(&top);
  while (now > seen && !atomic_compare_exchange_weak(&top, &seen, now)) {
  }
  return block;
}

static void given(void *block) {
  if (block != NULL) atomic_fetch_sub(&live, (long)malloc_usable_size(block));
}

void *malloc(size_t size) { return taken(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }
void *memalign(size_t align, size_t size) { return taken(__libc_memalign(align, size)); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }

int posix_memalign(void **block, size_t align, size_t size) {
  void *made = memalign(align, size);
  if (made == NULL) return ENOMEM;
  *block = made;
  return 0;
}

void *realloc(void *old, size_t size) {
  size_t before = old ? malloc_usable_size(old) : 0;
  void *made = __libc_realloc(old, size);
  if (made != NULL || size == 0) {
    atomic_fetch_sub(&live, (long)before);
    taken(made);
  }
  return made;
}

void free(void *block) {
  given(block);
  __libc_free(block);
}

long heap_live(void) { return atomic_load(&live); }
long heap_top(void) { return atomic_load(&top); }
void heap_reset(void) { atomic_store(&top, atomic_load(&live)); }

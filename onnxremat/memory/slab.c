/* An OrtAllocator for stock onnxruntime that hands out planned addresses.
 *
 * A planned model runs on one thread of control in one order, so its session asks for and gives
 * back the same blocks in the same order at every run. One run is recorded, its blocks are packed
 * into one slab (packing.py), and later runs are replayed: the k-th request gets slab + offset[k].
 *
 * Safe by construction: an address of the slab is handed out only to the one thread that began a
 * replayed run, and only while every event of that run so far (sizes asked, blocks given back)
 * equals the recorded one, so the packing's proof that blocks do not overlap holds. At the first
 * difference (another shape, an op whose sizes depend on data) the rest of the run is served with
 * blocks of their own, and so is every other thread.
 *
 * Blocks that outlive the run (graph outputs) keep a place in the slab until its end, so that slab
 * and outputs together stay within the packing. They are lent: the pages of that place move
 * (mremap) into a block of their own, and back when it is given back, without a copy or a page
 * fault. Where a caller still holds them as the next run begins, the place gets fresh pages.
 *
 * Sessions that run one after the other, or side by side in a known order, can have their places in
 * one slab that they share (execute/common_slab.py): what one makes for the next then has its place
 * there too, until its last reader is done, and nothing moves.
 *
 * No header of Python's or onnxruntime's is needed. onnxruntime gives its C interface to
 * RegisterCustomOps below (SessionOptions.register_custom_ops_library). Linux only; elsewhere the
 * library is empty and says so. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Build tools for extension modules look for it; the library is loaded with ctypes. */
EXPORT void *PyInit__slab(void) { return NULL; }

#ifndef __linux__
EXPORT int slab_here(void) { return 0; }
#else
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

EXPORT int slab_here(void) { return 1; }

typedef struct OrtAllocator { /* as of version 18, up to Reserve */
  uint32_t version;
  void *(*Alloc)(struct OrtAllocator *, size_t);
  void (*Free)(struct OrtAllocator *, void *);
  const void *(*Info)(const struct OrtAllocator *);
  void *(*Reserve)(struct OrtAllocator *, size_t);
} OrtAllocator;
typedef struct {
  const void *(*GetApi)(uint32_t);
  const char *(*GetVersionString)(void);
} OrtApiBase;
/* Positions in OrtApi; functions are only ever appended to it. */
enum { GET_ERROR = 2, CREATE_ENV = 3, CPU_MEMORY_INFO = 69, DEFAULT_ALLOCATOR = 78,
       RELEASE_STATUS = 93, REGISTER = 176, UNREGISTER = 177, API_VERSION = 16 };

typedef struct { uint64_t size; int64_t slot; } Event; /* size 0: the slot is given back */

enum { LARGE = 64 << 10, RECORDED = 16 << 10, PAGE = 4096, LETTING_GO = 2 << 20, HUGE_PAGE = 2 << 20 };

typedef struct {           /* one slab of several sessions; like a Slab never freed, its pages are */
  char *at;
  size_t bytes;
  int64_t live;            /* blocks in it, of all sessions */
  int closed;
} Common;

/* What becomes of a slot at the end of the run. */
enum { GIVEN_BACK, KEPT, HANDED_ON };

typedef struct {           /* a recorded run and its packing */
  int64_t count, slots;
  Event *events;
  int64_t *offset;         /* of each slot in the slab */
  char *kept;              /* of each slot: it outlives the run, and how */
  void **lent;             /* of each kept slot: the block that has its pages */
  size_t bytes;
  Common *common;          /* the slab, where it is not the session's own */
} Trace;

enum { IDLE, RECORD, REPLAY };

typedef struct Slab {
  OrtAllocator api;        /* first: the runtime's pointer is ours */
  const void *info;
  struct Slab *outer;      /* whose run this thread was in when the run began */
  int lock, mode, synced, closed;
  int64_t generation;      /* of the process: forked children have a later one */
  int64_t run;             /* number of the run that is on */
  char *slab;
  size_t bytes;            /* of the slab */
  int64_t live, lendings;  /* blocks in the slab; places whose pages are lent */
  int64_t holes;           /* places that cannot be touched now */
  Trace *trace;            /* replayed last */
  int64_t at;              /* its next event */
  Event *events;           /* of the run that is recorded */
  int64_t count, room, slots;
  void **block;            /* of each slot that was not given back: its address */
  int64_t block_room;
  Common *common;          /* where it has had blocks besides */
  int64_t planned, differed, elsewhere; /* runs: replayed whole, in part, and not at all */
  uint64_t reserved;       /* bytes of weights */
  char *file;              /* whose mapped pages are not needed again, while the session is made */
  uint64_t unseen;         /* bytes reserved since they were let go */
} Slab;

typedef struct {           /* before every block outside the slab */
  void *base;
  size_t bytes;            /* mapped at base; 0: of the C library; 1: of onnxruntime's allocator */
  Slab *slab;              /* that recorded or lends it, or NULL */
  Trace *trace;            /* whose pages it has, or NULL */
  int64_t slot, run;
  size_t size;             /* asked for, where pages are lent */
  size_t reserved;         /* asked for, of a weight */
} Head;

static const OrtApiBase *base;
static int64_t generation;
static _Thread_local Slab *running; /* whose run this thread is in */

static void *const *ort(void) { return (void *const *)base->GetApi(API_VERSION); }

static void take(Slab *s) {
  if (s->generation != generation) { /* the thread that held it is not in this child */
    s->generation = generation;
    __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
  }
  while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE)) ;
}
static void give(Slab *s) { __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE); }

static uintptr_t page_up(uintptr_t at) { return (at + PAGE - 1) & ~(uintptr_t)(PAGE - 1); }
static uintptr_t page_down(uintptr_t at) { return at & ~(uintptr_t)(PAGE - 1); }

/* ---- blocks of their own: large ones are mapped, so that they go back to the system ---- */

static void *map(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static void *headed(void *at, Head head) {
  *(Head *)at = head;
  return (char *)at + sizeof(Head);
}

static void *plain(size_t size, size_t large) { /* large: bytes from which it is mapped */
  size_t bytes = size + sizeof(Head);
  void *p = NULL;
  if (bytes < size) return NULL;
  if (size >= large) {
    if ((p = map(bytes))) return headed(p, (Head){.base = p, .bytes = bytes});
  } else if (!posix_memalign(&p, 64, bytes)) return headed(p, (Head){.base = p});
  /* Out of memory is said with a C++ exception, which onnxruntime's own allocator throws. */
  OrtAllocator *own = NULL;
  if (((void *(*)(OrtAllocator **))ort()[DEFAULT_ALLOCATOR])(&own) || !own) return NULL;
  p = own->Alloc(own, bytes);
  return p ? headed(p, (Head){.base = p, .bytes = 1}) : NULL;
}

static void drop(Head *head) {
  OrtAllocator *own = NULL;
  if (head->bytes > 1) munmap(head->base, head->bytes);
  else if (!head->bytes) free(head->base);
  else if (!((void *(*)(OrtAllocator **))ort()[DEFAULT_ALLOCATOR])(&own)) own->Free(own, head->base);
}

/* ---- outputs: pages of the slab that live elsewhere for a while ---- */

/* The whole pages of a slot's place. */
static size_t pages(const Slab *s, const Trace *t, int64_t slot, size_t size, uintptr_t *from) {
  uintptr_t home = (uintptr_t)s->slab + t->offset[slot];
  uintptr_t to = page_down(home + size);
  *from = page_up(home);
  return to > *from ? to - *from : 0;
}

static void *lend(Slab *s, Trace *t, int64_t slot, size_t size) {
  uintptr_t from, home = (uintptr_t)s->slab + t->offset[slot], lead = home % PAGE;
  size_t inner = pages(s, t, slot, size, &from);
  if (!inner) return NULL;
  size_t before = lead < sizeof(Head) ? lead + PAGE : lead; /* the block's begin, room for Head */
  size_t bytes = page_up(before + size);
  char *block = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return NULL;
  char *p = block + before;
  void *to = p + (from - home);
  int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  mprotect((void *)from, inner, PROT_NONE); /* first: a limit on data never counts them twice */
  s->holes++;
  if (mremap((void *)from, inner, inner, flags, to) == MAP_FAILED) /* before Linux 5.7 */
    madvise((void *)from, inner, MADV_DONTNEED);
  if (mprotect(block, bytes, PROT_READ | PROT_WRITE)) {
    munmap(block, bytes);
    return NULL;
  }
  Head head = {.base = block, .bytes = bytes, .slab = s, .trace = t, .slot = slot, .size = size};
  t->lent[slot] = headed(p - sizeof(Head), head);
  s->lendings++;
  return p;
}

/* A lent block comes home; its own pages around the lent ones are given to the system. */
static void take_back(Slab *s, Head *head) {
  Trace *t = head->trace;
  char *p = (char *)(head + 1), *block = head->base, *end = block + head->bytes;
  uintptr_t from, home = (uintptr_t)s->slab + t->offset[head->slot];
  size_t inner = pages(s, t, head->slot, head->size, &from);
  char *there = p + (from - home);
  t->lent[head->slot] = NULL;
  s->lendings--;
  int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
  if (mremap(there, inner, inner, flags, (void *)from) == MAP_FAILED) { /* the hole stays */
    munmap(block, end - block);
    return;
  }
  s->holes--;
  munmap(block, there - block);
  if (there + inner < end) munmap(there + inner, end - (there + inner));
}

/* What is lent now stays with whoever holds it. */
static void detach(Slab *s) {
  Trace *t = s->trace;
  for (int64_t i = 0; s->lendings && i < t->slots; i++)
    if (t->lent[i]) {
      ((Head *)t->lent[i] - 1)->trace = NULL;
      t->lent[i] = NULL;
      s->lendings--;
    }
}

static void unmap(Slab *s) {
  if (s->slab) munmap(s->slab, s->bytes);
  s->slab = NULL;
  s->bytes = 0;
  s->holes = 0;
}

/* A slab in huge pages, where the system gives them: kernels walk whole tensors, which is faster
 * so. It begins at one, and its last part is in small pages, so that nothing beyond `bytes` ever
 * becomes resident. NULL where the system refuses. */
static char *map_huge(size_t bytes) {
  size_t wide = bytes + HUGE_PAGE;
  char *all = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return NULL;
  char *slab = (char *)(((uintptr_t)all + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
  if (slab > all) munmap(all, slab - all);
  if (slab + bytes < all + wide) munmap(slab + bytes, all + wide - (slab + bytes));
  if (mprotect(slab, bytes, PROT_READ | PROT_WRITE)) {
    munmap(slab, bytes);
    return NULL;
  }
  madvise(slab, bytes & ~(size_t)(HUGE_PAGE - 1), MADV_HUGEPAGE);
  return slab;
}

/* The slab whole again and large enough; 0 where the system refuses. */
static int prepare(Slab *s, size_t bytes) {
  detach(s);
  if (!bytes || bytes > s->bytes) unmap(s);
  if (bytes && !s->slab) {
    if (!(s->slab = map_huge(page_up(bytes)))) return 0;
    s->bytes = page_up(bytes);
  }
  if (s->holes && mprotect(s->slab, s->bytes, PROT_READ | PROT_WRITE)) return 0;
  s->holes = 0;
  return 1;
}

/* ---- what onnxruntime calls ---- */

static void note(Slab *s, uint64_t size, int64_t slot) {
  if (s->count == s->room) {
    int64_t room = s->room ? 2 * s->room : 4096;
    Event *more = realloc(s->events, room * sizeof(Event));
    if (!more) { s->synced = 0; return; }
    s->events = more;
    s->room = room;
  }
  s->events[s->count++] = (Event){size, slot};
}

/* The address of a slot of a recorded run. */
static void locate(Slab *s, int64_t slot, void *p) {
  if (slot >= s->block_room) {
    int64_t room = slot < 512 ? 1024 : 2 * slot;
    void **more = realloc(s->block, room * sizeof(void *));
    if (!more) { s->synced = 0; return; }
    memset(more + s->block_room, 0, (room - s->block_room) * sizeof(void *));
    s->block = more;
    s->block_room = room;
  }
  s->block[slot] = p;
}

static void forget_blocks(Slab *s) {
  free(s->block);
  s->block = NULL;
  s->block_room = 0;
}

static char *home(const Slab *s, const Trace *t, int64_t slot) {
  return (t->common ? t->common->at : s->slab) + t->offset[slot];
}

/* A block of a replayed run, or NULL where it must have one of its own. */
static void *planned(Slab *s, size_t size) {
  Trace *t = s->trace;
  if (!s->synced) return NULL;
  if (s->at == t->count || t->events[s->at].size != size) {
    s->synced = 0;
    return NULL;
  }
  int64_t slot = t->events[s->at++].slot;
  if (t->kept[slot] == KEPT) return size < LARGE || t->common ? NULL : lend(s, t, slot, size);
  s->live++;
  if (t->common) __atomic_add_fetch(&t->common->live, 1, __ATOMIC_ACQ_REL);
  return home(s, t, slot);
}

static void *slab_alloc(OrtAllocator *self, size_t size) {
  Slab *s = (Slab *)self;
  void *p = NULL;
  if (!size) return NULL;
  if (running != s) return plain(size, LARGE);
  take(s);
  if (s->mode == REPLAY) p = planned(s, size);
  give(s);
  if (p || s->mode == REPLAY) return p ? p : plain(size, LARGE);
  p = plain(size, RECORDED); /* or what the C library keeps of this run's blocks stays for good */
  if (!p) return NULL;
  take(s);
  Head *head = (Head *)p - 1;
  head->slab = s;
  head->run = s->run;
  head->slot = s->slots++;
  note(s, size, head->slot);
  locate(s, head->slot, p);
  give(s);
  return p;
}

static int within(const void *p, const char *begin, size_t bytes) {
  return begin && (const char *)p >= begin && (const char *)p < begin + bytes;
}

static void unmap_common(Common *c) {
  char *at = __atomic_exchange_n(&c->at, NULL, __ATOMIC_ACQ_REL);
  if (at) munmap(at, c->bytes);
}

/* A block of a slab is given back: where a replayed run is on, as recorded or not. */
static void returned(Slab *s, void *p) {
  Trace *t = s->trace;
  s->live--;
  if (s->mode != REPLAY || !s->synced) return;
  int same = running == s && s->at < t->count && !t->events[s->at].size &&
             home(s, t, t->events[s->at].slot) == (char *)p;
  if (same) s->at++;
  else s->synced = 0;
}

static void slab_free(OrtAllocator *self, void *p) {
  Slab *s = (Slab *)self;
  if (!p) return;
  take(s);
  if (within(p, s->slab, s->bytes)) {
    returned(s, p);
    if (s->closed && !s->live) unmap(s);
    give(s);
    return;
  }
  Common *common = s->common;
  if (common && within(p, common->at, common->bytes)) {
    returned(s, p);
    give(s);
    if (!__atomic_sub_fetch(&common->live, 1, __ATOMIC_ACQ_REL) && common->closed)
      unmap_common(common);
    return;
  }
  Head *head = (Head *)p - 1;
  if (head->trace) {
    take_back(s, head);
    give(s);
    return;
  }
  if (head->slab == s && s->mode == RECORD && head->run == s->run) {
    note(s, 0, head->slot);
    if (head->slot < s->block_room) s->block[head->slot] = NULL;
  }
  s->reserved -= head->reserved;
  give(s);
  drop(head);
}

/* Pages of a file that are mapped privately and writable, as onnxruntime maps weights: those read
 * so far leave memory, and come back from the file if they are read again. Nobody writes to them,
 * and what cannot be written to does not count against a limit on data. */
static void let_go(const char *file) {
  char line[4400];
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return;
  while (fgets(line, sizeof line, maps)) {
    unsigned long begin, end;
    char rights[8], *path = strchr(line, '/');
    if (!path || sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3) continue;
    path[strcspn(path, "\n")] = 0;
    if (strcmp(path, file) || (strcmp(rights, "rw-p") && strcmp(rights, "r--p"))) continue;
    madvise((void *)begin, end - begin, MADV_DONTNEED);
    if (rights[1] == 'w') mprotect((void *)begin, end - begin, PROT_READ);
  }
  fclose(maps);
}

static void *slab_reserve(OrtAllocator *self, size_t size) { /* weights, packed or not */
  Slab *s = (Slab *)self;
  if (!size) return NULL;
  if (s->file && (s->unseen += size) >= LETTING_GO) {
    let_go(s->file);
    s->unseen = 0;
  }
  void *p = plain(size, LARGE);
  if (!p) return NULL;
  ((Head *)p - 1)->reserved = size;
  take(s);
  s->reserved += size;
  give(s);
  return p;
}

static const void *slab_info(const OrtAllocator *self) { return ((const Slab *)self)->info; }

/* ---- for Python ---- */

static void forked(void) { generation++; }

/* What register_custom_ops_library calls; registers no operator. */
EXPORT void *RegisterCustomOps(void *options, const OrtApiBase *given) {
  (void)options;
  if (!base) pthread_atfork(NULL, NULL, forked);
  base = given;
  return NULL;
}

static char failure[512];
static int failed(void *status) {
  if (!status) return 0;
  const char *(*text)(const void *) = (const char *(*)(const void *))ort()[GET_ERROR];
  strncpy(failure, text(status), sizeof failure - 1);
  ((void (*)(void *))ort()[RELEASE_STATUS])(status);
  return 1;
}
EXPORT const char *slab_error(void) { return failure; }

static void *environment(void) { /* the process has one; this counts a use of it */
  static void *env;
  typedef void *(*Create)(int, const char *, void **);
  if (!env) failed(((Create)ort()[CREATE_ENV])(3, "onnxremat", &env));
  return env;
}

/* A new allocator for the sessions made with session.use_env_allocators=1 until slab_unregister. A
 * session and its outputs keep using the one it was made with, so these few bytes are never freed. */
EXPORT Slab *slab_register(void) {
  Slab *s;
  if (!base || !ort() || !(s = calloc(1, sizeof *s))) return NULL;
  s->api = (OrtAllocator){18, slab_alloc, slab_free, slab_info, slab_reserve};
  s->generation = generation;
  typedef void *(*Info)(int, int, const void **);
  typedef void *(*Put)(void *, OrtAllocator *);
  if (!environment() || failed(((Info)ort()[CPU_MEMORY_INFO])(0, 0, &s->info)) ||
      failed(((Put)ort()[REGISTER])(environment(), &s->api))) {
    free(s);
    return NULL;
  }
  return s;
}
EXPORT int slab_unregister(Slab *s) {
  typedef void *(*Drop)(void *, const void *);
  return failed(((Drop)ort()[UNREGISTER])(environment(), s->info));
}

/* While a session is made from a file that it maps: its kernels pack their weights one by one, and
 * the originals would stay in memory beside the copies until the last reader is done. */
EXPORT void slab_watch(Slab *s, const char *file) {
  free(s->file);
  s->file = file ? strdup(file) : NULL;
  s->unseen = LETTING_GO; /* at the first block already */
}

/* This thread begins a run: it is replayed, or recorded where there is no trace. 1 where the slab
 * is taken (another thread runs, or holds a block): then every block is plain. */
EXPORT int slab_begin(Slab *s, Trace *t) {
  int taken;
  take(s);
  taken = s->mode != IDLE || s->live || s->closed || (t && t->common && t->common->closed) ||
          !prepare(s, t && !t->common ? t->bytes : 0);
  if (taken) s->elsewhere++;
  else {
    s->mode = t ? REPLAY : RECORD;
    s->synced = 1;
    s->at = s->count = s->slots = 0;
    forget_blocks(s);
    s->run++;
    s->trace = t;
    if (t && t->common) s->common = t->common;
    s->outer = running;
    running = s;
  }
  give(s);
  return taken;
}

/* This thread's run is over. 0 where all of it was as recorded; of a recorded run its events, -1
 * where they are not known. */
EXPORT int64_t slab_end(Slab *s) {
  int64_t found;
  take(s);
  if (s->mode == RECORD) found = s->synced ? s->count : -1;
  else {
    found = !s->synced || s->at != s->trace->count;
    if (found) s->differed++;
    else s->planned++;
  }
  s->mode = IDLE;
  running = s->outer;
  give(s);
  return found;
}

/* The events of the run that was recorded last; room for them all. */
EXPORT void slab_recorded(Slab *s, Event *out) {
  take(s);
  if (s->count) memcpy(out, s->events, s->count * sizeof(Event));
  free(s->events);
  s->events = NULL;
  s->room = s->count = 0;
  give(s);
}

/* The slot of the run recorded last that has a block at this address; -1 where none has. */
EXPORT int64_t slab_slot(Slab *s, const void *p) {
  int64_t found = -1;
  take(s);
  for (int64_t i = 0; p && found < 0 && i < s->block_room && i < s->slots; i++)
    if (s->block[i] == p) found = i;
  give(s);
  return found;
}

EXPORT void trace_free(Trace *t) {
  if (!t) return;
  free(t->events); free(t->offset); free(t->kept); free(t->lent); free(t);
}

EXPORT Trace *trace_new(const Event *events, int64_t count, const int64_t *offset,
                        const char *kept, int64_t slots, size_t bytes, Common *common) {
  Trace *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  *t = (Trace){count, slots, malloc(count * sizeof(Event) + 1), malloc(slots * sizeof(int64_t) + 1),
               malloc(slots + 1), calloc(slots + 1, sizeof(void *)), bytes, common};
  if (!t->events || !t->offset || !t->kept || !t->lent) { trace_free(t); return NULL; }
  memcpy(t->events, events, count * sizeof(Event));
  memcpy(t->offset, offset, slots * sizeof(int64_t));
  memcpy(t->kept, kept, slots);
  return t;
}

/* Forget a trace: not while one of its runs is on. */
EXPORT void slab_forget(Slab *s, Trace *t) {
  take(s);
  if (s->trace == t) {
    detach(s);
    s->trace = NULL;
  }
  give(s);
  trace_free(t);
}

/* What is held for the next run goes to the system, unless one is on. */
EXPORT void slab_release(Slab *s) {
  take(s);
  if (s->mode == IDLE && !s->live) {
    detach(s);
    unmap(s);
  }
  give(s);
}

/* The session is gone; what callers still hold stays theirs. */
EXPORT void slab_close(Slab *s) {
  take(s);
  if (!s->closed) {
    detach(s);
    s->closed = 1;
    if (!s->live) unmap(s);
  }
  give(s);
}

/* One slab for several sessions; NULL where the system refuses. */
EXPORT Common *common_new(size_t bytes) {
  Common *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->bytes = page_up(bytes);
  if ((c->at = map_huge(c->bytes))) return c;
  free(c);
  return NULL;
}

EXPORT char *common_begin(const Common *c) { return c->at; }

EXPORT int64_t common_live(const Common *c) { return __atomic_load_n(&c->live, __ATOMIC_ACQUIRE); }

/* Nobody runs in it again; its pages go with the last block that somebody still holds. */
EXPORT void common_close(Common *c) {
  __atomic_store_n(&c->closed, 1, __ATOMIC_RELEASE);
  if (!common_live(c)) unmap_common(c);
}

EXPORT void slab_counts(Slab *s, int64_t *out) {
  take(s);
  out[0] = s->planned; out[1] = s->differed; out[2] = s->elsewhere;
  out[3] = (int64_t)s->reserved; out[4] = (int64_t)s->bytes; out[5] = s->live;
  give(s);
}
#endif

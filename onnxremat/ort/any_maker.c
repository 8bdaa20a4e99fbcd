/* A plugin library of onnxruntime that is OpenVINO's, told that every processor is Intel's.
 *
 * OpenVINO computes on any x86-64 processor, but its plugin offers one only where onnxruntime says
 * that Intel made it (onnxruntime's pull request 31981 would lift that). onnxruntime loads this
 * library in its place; it loads the plugin and hands it onnxruntime's interface with that one
 * answer changed, for the plugin alone.
 *
 * No header of Python's or onnxruntime's is needed. Linux only; elsewhere the library says so. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Build tools for extension modules look for it; the library is loaded with ctypes. */
EXPORT void *PyInit__any_maker(void) { return NULL; }

#ifndef __linux__
EXPORT const char *any_maker(const char *plugin) { return plugin ? "it serves Linux only" : ""; }
#else
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const void *(*GetApi)(uint32_t);
  const char *(*GetVersionString)(void);
} OrtApiBase;
typedef void *(*Create)(const char *, const OrtApiBase *, const void *, void **, size_t, size_t *);
typedef void *(*Release)(void *);
/* Positions in OrtApi; functions are only ever appended to it. SLOTS: more than it has. */
enum { HARDWARE_TYPE = 307, HARDWARE_VENDOR_ID = 308, SLOTS = 1024 };
enum { CPU = 0, INTEL = 0x8086 };

static const OrtApiBase *real;
static OrtApiBase ours;
static Create create;
static Release release;
static uint32_t (*type_of)(const void *), (*maker_of)(const void *);

static uint32_t maker(const void *device) {
  return type_of(device) == CPU ? INTEL : maker_of(device);
}

typedef struct { uintptr_t at, end; } Span;

/* Where the loaded segment ends that a span begins in: the interface does not tell its length. */
static int segment(struct dl_phdr_info *library, size_t size, void *asked) {
  Span *span = asked;
  (void)size;
  for (int i = 0; i < library->dlpi_phnum; i++) {
    uintptr_t begin = library->dlpi_addr + library->dlpi_phdr[i].p_vaddr;
    uintptr_t end = begin + library->dlpi_phdr[i].p_memsz;
    if (library->dlpi_phdr[i].p_type != PT_LOAD || span->at < begin || span->at >= end) continue;
    span->end = end;
    return 1;
  }
  return 0;
}

static const void *changed(uint32_t version) {
  const void *found = real->GetApi(version);
  Span span = {(uintptr_t)found, 0};
  if (!found || !dl_iterate_phdr(segment, &span)) return found;
  void **api = calloc(SLOTS, sizeof *api); /* for as long as the plugin may call, the process */
  size_t bytes = span.end - span.at;
  if (!api) return found;
  memcpy(api, found, bytes < SLOTS * sizeof *api ? bytes : SLOTS * sizeof *api);
  type_of = (uint32_t (*)(const void *))api[HARDWARE_TYPE];
  maker_of = (uint32_t (*)(const void *))api[HARDWARE_VENDOR_ID];
  api[HARDWARE_VENDOR_ID] = (void *)maker;
  return api;
}

/* Loads the plugin; "" or why not. Before onnxruntime is given this library. */
EXPORT const char *any_maker(const char *plugin) {
  void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  create = (Create)dlsym(library, "CreateEpFactories");
  release = (Release)dlsym(library, "ReleaseEpFactory");
  return create && release ? "" : "it is no plugin of onnxruntime";
}

EXPORT void *CreateEpFactories(const char *name, const OrtApiBase *base, const void *logger,
                               void **factories, size_t most, size_t *count) {
  real = base;
  ours = *base;
  ours.GetApi = changed;
  return create(name, &ours, logger, factories, most, count);
}

EXPORT void *ReleaseEpFactory(void *factory) { return release(factory); }
#endif

/* A last word where compiled code crashes: Python cannot say one any more.
 *
 * Set beforehand by last_word (crash.py), said in a signal handler: only what POSIX allows there. */
#include <stdint.h>

#ifdef __linux__
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 2000, ROOM = 64 << 20, SHORT_OF_MEMORY = 9 };
static char said[MOST], then[MOST], stack[64 << 10];
static int code, busy;
static const struct { int number; const char *name; } fatal[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"},
    {SIGABRT, "SIGABRT"}};
enum { KINDS = sizeof fatal / sizeof *fatal };

static void tell(const char *text) {
  ssize_t done = write(2, text, strlen(text));
  (void)done; /* nobody can be told of that */
}

static void crashed(int number) {
  void *room;
  if (__atomic_exchange_n(&busy, 1, __ATOMIC_SEQ_CST))
    for (;;) pause(); /* another thread crashed before, and speaks */
  if (isatty(2)) tell("\r\x1b[2K\x1b[?25h"); /* what is shown goes, and the cursor comes back */
  room = mmap(0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    tell("error: out of memory on this machine\n  why   a library ended the process for it\n"
         "  try   --threads 1 and smaller --shape or --dim need less; a limit on this process "
         "(ulimit -a, a container's) may be in the way\n");
    _exit(SHORT_OF_MEMORY);
  }
  tell(said);
  for (int i = 0; i < KINDS; i++)
    if (fatal[i].number == number) tell(fatal[i].name);
  tell(then);
  _exit(code);
}

/* From now on a crash says ``before``, the signal's name and ``after``, and exits with ``exit_code``. */
EXPORT void last_word(const char *before, const char *after, int exit_code) {
  static int watching;
  strncpy(said, before, MOST - 1);
  strncpy(then, after, MOST - 1);
  code = exit_code;
  if (watching) return;
  watching = 1;
  stack_t other = {.ss_sp = stack, .ss_size = sizeof stack}; /* its own may be used up */
  sigaltstack(&other, 0);
  struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK | SA_RESETHAND};
  for (int i = 0; i < KINDS; i++) sigaction(fatal[i].number, &action, 0);
}
#endif

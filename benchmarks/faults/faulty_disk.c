/* A disk that fails on demand, for benchmarks/faults.py: loaded before libc (LD_PRELOAD), it counts every operation
 * that changes a file or a folder below `arm`'s path, in every thread, and at the nth kills the process or is full. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, TEAR, FULL };
static char below[PATH_MAX];
static int mode, target;
static atomic_int seen;

void arm(const char *path, int how, int nth) { strcpy(below, path); mode = how; target = nth; seen = 0; }
int operations(void) { return seen; }

static int is_below(const char *path) { return below[0] && !strncmp(path, below, strlen(below)); }

static int names(int folder, const char *path) {
  char link[64], at[PATH_MAX];
  if (path && path[0] == '/') return is_below(path);
  snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
  ssize_t n = readlink(link, at, sizeof at - 1);
  if (n < 0) return 0;
  at[n] = 0;
  return is_below(at);
}

/* 0: go on; 1: write half, then die; -1: the disk is full */
static int strike(int counts) {
  if (!counts) return 0;
  int now = ++seen;
  if (mode == FULL && now >= target) { errno = ENOSPC; return -1; }
  if (now != target || mode == COUNT || mode == FULL) return 0;
  if (mode == TEAR) return 1;
  kill(getpid(), SIGKILL);
  return 0;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define DIE kill(getpid(), SIGKILL)
#define PLAIN(type, name, where, params, args) \
  type name params { REAL(name); int s = strike(where); if (s < 0) return -1; if (s) DIE; return real args; }
#define TORN(name, first_half, params, args) \
  ssize_t name params { REAL(name); int s = strike(names(fd, 0)); if (s < 0) return -1; if (s) { first_half; DIE; } return real args; }
/* making room works on a full disk */
#define FREES(type, name, where, params, args) \
  type name params { REAL(name); if (mode != FULL) { int s = strike(where); if (s) DIE; } return real args; }

TORN(write, real(fd, data, size / 2), (int fd, const void *data, size_t size), (fd, data, size))
TORN(pwrite, real(fd, data, size / 2, at), (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
TORN(pwrite64, real(fd, data, size / 2, at), (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
TORN(writev, write(fd, parts->iov_base, parts->iov_len / 2), (int fd, const struct iovec *parts, int count), (fd, parts, count))
PLAIN(int, fsync, names(fd, 0), (int fd), (fd))
PLAIN(int, fdatasync, names(fd, 0), (int fd), (fd))
PLAIN(int, rename, names(AT_FDCWD, to), (const char *from, const char *to), (from, to))
PLAIN(int, renameat, names(b, to), (int a, const char *from, int b, const char *to), (a, from, b, to))
PLAIN(int, renameat2, names(b, to), (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f))
PLAIN(int, mkdir, names(AT_FDCWD, path), (const char *path, mode_t m), (path, m))
PLAIN(int, mkdirat, names(folder, path), (int folder, const char *path, mode_t m), (folder, path, m))
FREES(int, ftruncate, names(fd, 0), (int fd, off_t size), (fd, size))
FREES(int, ftruncate64, names(fd, 0), (int fd, off64_t size), (fd, size))
FREES(int, unlink, names(AT_FDCWD, path), (const char *path), (path))
FREES(int, unlinkat, names(folder, path), (int folder, const char *path, int flags), (folder, path, flags))
FREES(int, rmdir, names(AT_FDCWD, path), (const char *path), (path))

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t m = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); int s = strike((flags & (O_CREAT | O_TRUNC)) && names(AT_FDCWD, path)); \
    if (s < 0) return -1; if (s) DIE; return real(path, flags, m); }
#define OPENS_AT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t m = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); int s = strike((flags & (O_CREAT | O_TRUNC)) && names(folder, path)); \
    if (s < 0) return -1; if (s) DIE; return real(folder, path, flags, m); }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

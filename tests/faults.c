/* Faults of a disk, on demand: LD_PRELOAD this, then arm it through ctypes (tests/faults.py).

   Every call that changes a file or folder below a prefix is numbered. At the n-th the process is
   killed (before the call, or half way through a write), or the call fails with an errno, once or
   from then on. Calls can be written to a journal in memory, with their data, from which
   tests/powercut.py rebuilds what a disk would hold that lost what was not synced.

   Not seen: stores to mapped memory, and what stdio writes other than by fwrite. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { COUNT, KILL, TEAR, FAIL_ONCE, FAIL_FROM };
enum verdict { GO, HALF, FAIL };

/* Kinds: w write, t truncate, c create a file (or empty it), s sync a file, S sync a folder,
   r rename, l link, u unlink, m make a folder, d remove a folder, k a mark of the caller. */

static char prefix[4096];
static size_t prefix_length;
static long target, count;
static int action, fault, recording;
static char *journal;
static size_t journal_size, journal_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static ssize_t do_pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    return real(fd, data, size, offset);
}

static ssize_t do_write(int fd, const void *data, size_t size) {
    REAL(write);
    return real(fd, data, size);
}

/* ---- what the caller asks ---- */

void faults_arm(const char *below, long number, int what, int error, int record) {
    strncpy(prefix, below, sizeof prefix - 1);
    target = number, action = what, fault = error, recording = record, count = 0;
    journal_size = 0;
    prefix_length = strlen(prefix);
}

void faults_disarm(void) { prefix_length = 0; }

const char *faults_journal(size_t *size) {
    *size = journal_size;
    return journal;
}

/* ---- the journal ---- */

static void put(const void *data, size_t size) {
    if (journal_size + size > journal_room) {
        journal_room = 2 * (journal_size + size);
        journal = realloc(journal, journal_room);
        if (!journal) abort();
    }
    memcpy(journal + journal_size, data, size);
    journal_size += size;
}

static void note(char kind, const char *one, const char *two, int64_t at, const void *data,
                 size_t size) {
    if (!recording || !prefix_length) return;
    int64_t sizes[4] = {(int64_t)strlen(one), (int64_t)strlen(two), at, data ? (int64_t)size : 0};
    pthread_mutex_lock(&lock);
    put(&kind, 1);
    put(sizes, sizeof sizes);
    put(one, sizes[0]);
    put(two, sizes[1]);
    if (data) put(data, size);
    pthread_mutex_unlock(&lock);
}

void faults_mark(long number) { note('k', "", "", number, NULL, 0); }

/* ---- which calls concern us ---- */

static int below(const char *path) {
    return prefix_length && !strncmp(path, prefix, prefix_length)
           && (path[prefix_length] == '/' || !path[prefix_length]);
}

/* The path of a descriptor, or "" if it is not below the prefix. */
static const char *path_of(int fd, char *path) {
    path[0] = 0;
    if (!prefix_length) return path;
    int kept = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 4095);
    path[length < 0 ? 0 : length] = 0;
    if (!below(path)) path[0] = 0;
    errno = kept;
    return path;
}

static const char *path_at(int folder, const char *name, char *path) {
    path[0] = 0;
    if (!prefix_length) return path;
    if (name[0] == '/') {
        snprintf(path, 4096, "%s", name);
    } else {
        char base[4096];
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return path;
        } else if (!*path_of(folder, base)) {
            return path;
        }
        snprintf(path, 4096, "%.2000s/%.2000s", base, name);
    }
    if (!below(path)) path[0] = 0;
    return path;
}

static int applies(char kind) {
    switch (fault) {
    case ENOSPC:  /* what takes room, or tells that room was lacking */
        return strchr("wtcsSrlm", kind) != NULL;
    case EROFS:
    case EACCES:  /* names; what is open for writing stays so */
        return strchr("crlumd", kind) != NULL;
    default:
        return 1;
    }
}

static enum verdict strike(char kind) {
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (action == COUNT || number < target) return GO;
    if (number > target && action != FAIL_FROM) return GO;
    if (action == TEAR && kind == 'w') return HALF;
    if (action == KILL || action == TEAR) kill(getpid(), SIGKILL);
    if (!applies(kind)) return GO;
    /* A disk that fills up takes what still fits. */
    if (kind == 'w' && fault == ENOSPC && action == FAIL_FROM && number == target) return HALF;
    errno = fault;
    return FAIL;
}

static int unwritable(void) {
    return action == FAIL_FROM && (fault == EROFS || fault == EACCES) && count + 1 >= target;
}

/* ---- writes ---- */

static ssize_t written(int fd, const char *path, const void *data, size_t size, off_t at,
                       int moving) {
    enum verdict verdict = strike('w');
    if (verdict == FAIL) return -1;
    size_t part = verdict == HALF ? (size + 1) / 2 : size;
    ssize_t done = moving ? do_write(fd, data, part) : do_pwrite(fd, data, part, at);
    if (verdict == HALF && action == TEAR) kill(getpid(), SIGKILL);
    if (done > 0) note('w', path, "", at, data, done);
    return done;
}

static off_t position(int fd) {
    struct stat now;
    if (fcntl(fd, F_GETFL) & O_APPEND && !fstat(fd, &now)) return now.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[4096];
    if (!*path_of(fd, path)) return do_write(fd, data, size);
    return written(fd, path, data, size, position(fd), 1);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    char path[4096];
    if (!*path_of(fd, path)) return do_pwrite(fd, data, size, at);
    return written(fd, path, data, size, at, 0);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return pwrite(fd, data, size, at);
}

static char *flat(const struct iovec *parts, int number, size_t *size) {
    *size = 0;
    for (int i = 0; i < number; i++) *size += parts[i].iov_len;
    char *data = malloc(*size + 1), *end = data;
    for (int i = 0; i < number; end += parts[i++].iov_len)
        memcpy(end, parts[i].iov_base, parts[i].iov_len);
    return data;
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    char path[4096];
    REAL(writev);
    if (!*path_of(fd, path)) return real(fd, parts, number);
    size_t size;
    char *data = flat(parts, number, &size);
    ssize_t done = written(fd, path, data, size, position(fd), 1);
    free(data);
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t at) {
    char path[4096];
    REAL(pwritev);
    if (!*path_of(fd, path)) return real(fd, parts, number, at);
    size_t size;
    char *data = flat(parts, number, &size);
    ssize_t done = written(fd, path, data, size, at, 0);
    free(data);
    return done;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int number, off64_t at) {
    return pwritev(fd, parts, number, at);
}

/* Flushed at once, so that every write of a stream is a boundary of its own. */
size_t fwrite(const void *data, size_t size, size_t number, FILE *file) {
    char path[4096];
    REAL(fwrite);
    if (!size || !number || !*path_of(fileno(file), path)) return real(data, size, number, file);
    off_t at = ftello(file);
    enum verdict verdict = strike('w');
    if (verdict == FAIL) return 0;
    size_t bytes = verdict == HALF ? (size * number + 1) / 2 : size * number;
    size_t done = real(data, 1, bytes, file);
    if (fflush(file)) return 0;
    if (verdict == HALF && action == TEAR) kill(getpid(), SIGKILL);
    note('w', path, "", at, data, done);
    if (verdict == HALF) errno = fault;
    return done / size;
}

/* Refused as on a file system without it: callers fall back on write. */
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    char path[4096];
    REAL(sendfile);
    if (*path_of(to, path)) return errno = ENOTSOCK, -1;
    return real(to, from, at, size);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    return sendfile(to, from, (off_t *)at, size);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size,
                        unsigned flags) {
    char path[4096];
    REAL(copy_file_range);
    if (*path_of(to, path)) return errno = ENOSYS, -1;
    return real(from, from_at, to, to_at, size, flags);
}

/* ---- syncs and sizes ---- */

#define SYNC(name) \
    int name(int fd) { \
        char path[4096]; \
        struct stat what; \
        REAL(name); \
        if (!*path_of(fd, path)) return real(fd); \
        char kind = !fstat(fd, &what) && S_ISDIR(what.st_mode) ? 'S' : 's'; \
        if (strike(kind) == FAIL) return -1; \
        int done = real(fd); \
        if (!done) note(kind, path, "", 0, NULL, 0); \
        return done; \
    }
SYNC(fsync)
SYNC(fdatasync)

int ftruncate(int fd, off_t size) {
    char path[4096];
    REAL(ftruncate);
    if (!*path_of(fd, path)) return real(fd, size);
    if (strike('t') == FAIL) return -1;
    int done = real(fd, size);
    if (!done) note('t', path, "", size, NULL, 0);
    return done;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *name, off_t size) {
    char path[4096];
    REAL(truncate);
    if (!*path_at(AT_FDCWD, name, path)) return real(name, size);
    if (strike('t') == FAIL) return -1;
    int done = real(name, size);
    if (!done) note('t', path, "", size, NULL, 0);
    return done;
}

int truncate64(const char *name, off64_t size) { return truncate(name, size); }

/* ---- names ---- */

/* Before an open: 0 to go on (*made says whether a file is made or emptied), -1 to fail. */
static int opening(const char *path, int flags, int *made) {
    *made = 0;
    if (!*path || (flags & O_ACCMODE) == O_RDONLY) return 0;
    int there = !faccessat(AT_FDCWD, path, F_OK, AT_EACCESS);
    *made = there ? (flags & O_TRUNC ? 1 : 0) : (flags & O_CREAT ? 2 : 0);
    if (*made) return strike('c') == FAIL ? -1 : 0;
    if (unwritable()) return errno = fault, -1;
    return 0;
}

#define OPEN(name) \
    int name(const char *file, int flags, ...) { \
        char path[4096]; \
        int made; \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(name); \
        if (opening(path_at(AT_FDCWD, file, path), flags, &made)) return -1; \
        int fd = real(file, flags, mode); \
        if (fd >= 0 && made) note('c', path, "", 0, NULL, 0); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *file, int flags, ...) { \
        char path[4096]; \
        int made; \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(name); \
        if (opening(path_at(folder, file, path), flags, &made)) return -1; \
        int fd = real(folder, file, flags, mode); \
        if (fd >= 0 && made) note('c', path, "", 0, NULL, 0); \
        return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *file, const char *mode) { \
        char path[4096]; \
        int made, flags = mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC \
                          : mode[0] == 'a' ? O_WRONLY | O_CREAT \
                          : strchr(mode, '+') ? O_RDWR : O_RDONLY; \
        REAL(name); \
        if (opening(path_at(AT_FDCWD, file, path), flags, &made)) return NULL; \
        FILE *stream = real(file, mode); \
        if (stream && made) note('c', path, "", 0, NULL, 0); \
        return stream; \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* A call on one name: the plain one and the one relative to a folder. */
#define NAMED(kind, plain, parameters, arguments) \
    int plain parameters { \
        char path[4096]; \
        REAL(plain); \
        if (!*path_at(AT_FDCWD, name, path)) return real arguments; \
        if (strike(kind) == FAIL) return -1; \
        int done = real arguments; \
        if (!done) note(kind, path, "", 0, NULL, 0); \
        return done; \
    }
NAMED('u', unlink, (const char *name), (name))
NAMED('d', rmdir, (const char *name), (name))
NAMED('m', mkdir, (const char *name, mode_t mode), (name, mode))

#define NAMED_AT(kind, plain, parameters, arguments) \
    int plain parameters { \
        char path[4096]; \
        REAL(plain); \
        if (!*path_at(folder, name, path)) return real arguments; \
        if (strike(kind) == FAIL) return -1; \
        int done = real arguments; \
        if (!done) note(kind, path, "", 0, NULL, 0); \
        return done; \
    }
NAMED_AT(flags & AT_REMOVEDIR ? 'd' : 'u', unlinkat, (int folder, const char *name, int flags),
         (folder, name, flags))
NAMED_AT('m', mkdirat, (int folder, const char *name, mode_t mode), (folder, name, mode))

/* A call on two names. */
#define MOVED(kind, call, parameters, arguments, from_folder, to_folder) \
    int call parameters { \
        char one[4096], two[4096]; \
        REAL(call); \
        path_at(from_folder, from, one); \
        if (!*path_at(to_folder, to, two) && !*one) return real arguments; \
        if (strike(kind) == FAIL) return -1; \
        int done = real arguments; \
        if (!done) note(kind, one, two, 0, NULL, 0); \
        return done; \
    }
MOVED('r', rename, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD)
MOVED('r', renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), a, b)
MOVED('r', renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
      (a, from, b, to, flags), a, b)
MOVED('l', link, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD)
MOVED('l', linkat, (int a, const char *from, int b, const char *to, int flags),
      (a, from, b, to, flags), a, b)

int access(const char *name, int mode) {
    char path[4096];
    REAL(access);
    if (mode & W_OK && *path_at(AT_FDCWD, name, path) && unwritable()) return errno = fault, -1;
    return real(name, mode);
}

/* Holds things in memory that a pause must not lose, and tells what it and a folder hold.
 *
 *   keeper hold SEED   holds a region filled from SEED, a connection over loopback, a full pipe and a deleted file; answers on a port
 *   keeper look DIR    prints every file below DIR with its hash, then what the holder holds
 *   keeper do DIR      takes changes from stdin, one per line, then prints the same
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT 7310
#define REGION (256 * 1024)
#define DELETED 8192
#define PIPED 4000
#define CHUNK 65536

static void die(const char *what) { fprintf(stderr, "keeper: %s: %s\n", what, strerror(errno)); exit(1); }

/* The same numbers as `keeper.rs` makes. */
static void make(uint64_t seed, uint8_t *out, size_t length) {
    uint64_t x = seed * 0x9E3779B97F4A7C15ull | 1;
    for (size_t at = 0; at < length; at += 8) {
        x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
        uint64_t word = x * 0x2545F4914F6CDD1Dull;
        memcpy(out + at, &word, length - at < 8 ? length - at : 8);
    }
}

static uint64_t mix(uint64_t hash, uint64_t word) { return ((hash << 27 | hash >> 37) ^ word) * 0x9E3779B97F4A7C15ull; }

static uint64_t mix_bytes(uint64_t hash, const uint8_t *bytes, size_t length) {
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, length - at < 8 ? length - at : 8);
        hash = mix(hash, word);
    }
    return hash;
}

static uint64_t hash_of(const uint8_t *bytes, size_t length) { return mix(mix_bytes(1, bytes, length), length); }

static uint64_t hash_file(int fd) {
    static uint8_t chunk[CHUNK];
    uint64_t hash = 1, all = 0;
    for (;;) {
        size_t have = 0;
        ssize_t got;
        while (have < CHUNK && (got = pread(fd, chunk + have, CHUNK - have, all + have)) > 0) have += got;
        hash = mix_bytes(hash, chunk, have);
        all += have;
        if (have < CHUNK) return mix(hash, all);
    }
}

static int put(int fd, const void *bytes, size_t length) {
    const uint8_t *from = bytes;
    while (length > 0) {
        ssize_t n = write(fd, from, length);
        if (n <= 0) return -1;
        from += n, length -= n;
    }
    return 0;
}

static int get(int fd, void *bytes, size_t length) {
    uint8_t *to = bytes;
    while (length > 0) {
        ssize_t n = read(fd, to, length);
        if (n <= 0) return -1;
        to += n, length -= n;
    }
    return 0;
}

static struct sockaddr_in here(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return at;
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = here(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (void *)&at, sizeof at) < 0 || listen(fd, 16) < 0) die("listen");
    return fd;
}

static int reach(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = here(port);
    if (fd < 0 || connect(fd, (void *)&at, sizeof at) < 0) { close(fd); return -1; }
    return fd;
}

/* The other end of the connection: counts what it is asked. */
static void peer(void) {
    int fd = reach(PORT + 1);
    uint64_t count = 0;
    uint8_t byte;
    while (fd >= 0 && get(fd, &byte, 1) == 0) {
        count++;
        if (put(fd, &count, sizeof count) < 0) break;
    }
    _exit(0);
}

static uint8_t *region;
static int connection, deleted, channel[2];

static void stir(uint64_t seed) {
    static uint8_t small[DELETED];
    make(seed, region, REGION);
    make(seed ^ 0x1111, small, DELETED);
    if (pwrite(deleted, small, DELETED, 0) != DELETED) die("deleted file");
}

static void answer(int fd, uint64_t counter) {
    uint64_t count = 0;
    uint8_t piped[PIPED], byte = 1;
    char line[512];
    int has_peer = put(connection, &byte, 1) == 0 && get(connection, &count, sizeof count) == 0;
    int has_pipe = get(channel[0], piped, PIPED) == 0 && put(channel[1], piped, PIPED) == 0;
    int length = snprintf(line, sizeof line, "held page=%016llx counter=%llu peer=%llu deleted=%016llx pipe=%016llx at=%p pid=%d\n",
        (unsigned long long)hash_of(region, REGION), (unsigned long long)counter,
        (unsigned long long)(has_peer ? count : 0), (unsigned long long)hash_file(deleted),
        (unsigned long long)(has_pipe ? hash_of(piped, PIPED) : 0), (void *)region, getpid());
    put(fd, line, length);
}

static _Noreturn void hold(uint64_t seed) {
    signal(SIGPIPE, SIG_IGN);
    int questions = listen_on(PORT), waiting = listen_on(PORT + 1);
    if (fork() == 0) { close(questions); close(waiting); peer(); }
    connection = accept(waiting, NULL, NULL);
    region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    deleted = open("/home/user/.deleted", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (connection < 0 || region == MAP_FAILED || deleted < 0 || pipe(channel) < 0) die("hold");
    unlink("/home/user/.deleted");
    uint8_t piped[PIPED];
    make(seed ^ 0x2222, piped, PIPED);
    if (put(channel[1], piped, PIPED) < 0) die("pipe");
    stir(seed);
    puts("holding");
    fflush(stdout);
    for (uint64_t counter = 0;;) {
        int fd = accept(questions, NULL, NULL);
        if (fd < 0) continue;
        struct timeval patience = {.tv_sec = 5};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        uint64_t question;
        if (get(fd, &question, sizeof question) == 0) {
            if (question != 0) stir(question);
            answer(fd, ++counter);
        }
        close(fd);
    }
}

/* Nought asks; anything else is a new filling. */
static void ask(uint64_t question, int aloud) {
    char line[512];
    size_t have = 0;
    ssize_t got;
    int fd = reach(PORT);
    if (fd >= 0 && put(fd, &question, sizeof question) == 0)
        while (have < sizeof line && (got = read(fd, line + have, sizeof line - have)) > 0) have += got;
    if (fd >= 0) close(fd);
    if (aloud && have == 0) puts("held nothing");
    else if (aloud) fwrite(line, 1, have, stdout);
}

static void tree(const char *folder) {
    DIR *open_folder = opendir(folder);
    struct dirent *entry;
    if (open_folder == NULL) die(folder);
    while ((entry = readdir(open_folder)) != NULL) {
        char path[1024], target[512];
        struct stat about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || !strcmp(entry->d_name, "fill")) continue;
        snprintf(path, sizeof path, "%s%s%s", strcmp(folder, ".") ? folder : "", strcmp(folder, ".") ? "/" : "", entry->d_name);
        if (lstat(path, &about) < 0) die(path);
        if (S_ISLNK(about.st_mode)) {
            ssize_t n = readlink(path, target, sizeof target - 1);
            if (n < 0) die(path);
            target[n] = 0;
            printf("l %s %s\n", path, target);
        } else if (S_ISDIR(about.st_mode)) {
            printf("d %s\n", path);
            tree(path);
        } else {
            int fd = open(path, O_RDONLY | O_NOFOLLOW);
            if (fd < 0) die(path);
            printf("f %s %lu %lld %016llx\n", path, (unsigned long)about.st_nlink, (long long)about.st_size, (unsigned long long)hash_file(fd));
            close(fd);
        }
    }
    closedir(open_folder);
}

static int store(const char *path, int flags, uint64_t offset, uint64_t seed, size_t length) {
    uint8_t *bytes = malloc(length + 8);
    int fd = open(path, flags, 0644), wrong = fd < 0;
    make(seed, bytes, length);
    for (size_t at = 0; !wrong && at < length;) {
        ssize_t n = pwrite(fd, bytes + at, length - at, offset + at);
        if (n <= 0) wrong = 1;
        else at += n;
    }
    free(bytes);
    if (fd >= 0) close(fd);
    return wrong ? -1 : 0;
}

/* Writes until the disk takes no more. */
static int fill(const char *path, uint64_t seed) {
    static uint8_t chunk[CHUNK];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    long long all = 0;
    ssize_t n;
    if (fd < 0) return -1;
    make(seed, chunk, CHUNK);
    while ((n = write(fd, chunk, CHUNK)) > 0) all += n;
    int why = errno;
    close(fd);
    printf("filled %lld %s\n", all, strerrorname_np(why));
    return 0;
}

static int change(char *line) {
    char a[512] = "", b[512] = "";
    unsigned long long x = 0, y = 0, z = 0;
    if (sscanf(line, "write %511s %llu %llu", a, &x, &y) == 3) return store(a, O_WRONLY | O_CREAT | O_TRUNC, 0, x, y);
    if (sscanf(line, "patch %511s %llu %llu %llu", a, &x, &y, &z) == 4) return store(a, O_WRONLY | O_CREAT, x, y, z);
    if (sscanf(line, "rename %511s %511s", a, b) == 2) return rename(a, b);
    if (sscanf(line, "symlink %511s %511s", a, b) == 2) return symlink(a, b);
    if (sscanf(line, "link %511s %511s", a, b) == 2) return link(a, b);
    if (sscanf(line, "unlink %511s", a) == 1) return unlink(a);
    if (sscanf(line, "mkdir %511s", a) == 1) return mkdir(a, 0755);
    if (sscanf(line, "fill %511s %llu", a, &x) == 2) return fill(a, x);
    if (sscanf(line, "stir %llu", &x) == 1) { ask(x, 0); return 0; }
    errno = EINVAL;
    return -1;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "hold")) hold(strtoull(argv[2], NULL, 10));
    if (argc != 3) return 2;
    if (chdir(argv[2]) < 0) die(argv[2]);
    if (!strcmp(argv[1], "do")) {
        char line[2048];
        while (fgets(line, sizeof line, stdin) != NULL)
            if (change(line) < 0) printf("wrong %s %s", strerrorname_np(errno), line);
    }
    tree(".");
    ask(0, 1);
    puts("end");
    return 0;
}

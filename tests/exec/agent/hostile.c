/* Programs that trouble their supervisor.
 *
 * hostile HOW
 *
 * flood     8 threads call accept(2) on a non-blocking listener without a pause, and 8 call getpeername(2)
 * spin      16 threads without a system call
 * sockaddr  reports to each client the address that getpeername(2) returns, twice, as server.c does, while a thread changes
 *           the buffers of accept(2) */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 8 };

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static int listener(int flags) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    must(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(8443)};
    must(bind(fd, (void *)&any, sizeof any) == 0, "bind");
    must(listen(fd, 512) == 0, "listen");
    return fd;
}

static void *accept_on(void *fd) {
    for (;;) accept4(*(int *)fd, NULL, NULL, 0);
    return NULL;
}

static void *name_peer_of(void *fd) {
    struct sockaddr_storage peer;
    for (;;) {
        socklen_t len = sizeof peer;
        getpeername(*(int *)fd, (void *)&peer, &len);
    }
    return NULL;
}

static void *spin(void *none) {
    for (volatile long count = 0;; count++) {}
    return none;
}

static void start(void *(*work)(void *), void *argument) {
    pthread_t thread;
    for (int i = 0; i < THREADS; i++) must(pthread_create(&thread, NULL, work, argument) == 0, "pthread_create");
}

/* The address buffer of accept(2), and its length. */
static char *page;
static volatile socklen_t length;

static void *change(void *none) {
    static const socklen_t lengths[] = {0, 1, 16, 128, 0x7fffffff, 0xffffffff};
    for (unsigned turn = 0;; turn++) {
        length = lengths[turn % (sizeof lengths / sizeof *lengths)];
        if (turn % 5 == 1) mprotect(page, PAGE, PROT_NONE);
        if (turn % 5 == 2) munmap(page, PAGE);
        if (turn % 5 >= 3) mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        usleep(20);
    }
    return none;
}

static void report_to_clients(int fd) {
    for (;;) {
        int client = accept4(fd, (void *)page, (socklen_t *)&length, 0);
        if (client < 0) {
            must(errno == EFAULT || errno == EINVAL, "accept");
            continue;
        }
        char greeting[64];
        recv(client, greeting, sizeof greeting, 0);
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        must(getpeername(client, (void *)&peer, &len) == 0, "getpeername");
        const char *ip = inet_ntoa(peer.sin_addr);
        int port = ntohs(peer.sin_port);
        dprintf(client, "accept %s:%d getpeername %s:%d\n", ip, port, ip, port);
        close(client);
    }
}

int main(int argc, char **argv) {
    must(argc == 2, "usage");
    if (!strcmp(argv[1], "flood")) {
        int fd = listener(SOCK_NONBLOCK);
        start(accept_on, &fd);
        start(name_peer_of, &fd);
        pause();
    } else if (!strcmp(argv[1], "spin")) {
        int fd = listener(0);
        start(spin, &fd);
        start(spin, &fd);
        pause();
    } else if (!strcmp(argv[1], "sockaddr")) {
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(page != MAP_FAILED, "mmap");
        int fd = listener(0);
        pthread_t thread;
        must(pthread_create(&thread, NULL, change, NULL) == 0, "pthread_create");
        report_to_clients(fd);
    }
    return 2;
}

/* A server in a dozen variants: reports to each client the address that accept(2) returned for it and the one that
 * getpeername(2) returns, then closes.
 *
 * accept --accept=HOW [--family=4|6] [--port=8443]
 *
 * HOW  block, threads, fork, poll, select, level, edge, exclusive, oneshot (of epoll), rebind, exit */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int family = AF_INET, port = 8443;

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static int listener(int flags) {
    int one = 1, fd = socket(family, SOCK_STREAM | flags, 0);
    must(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; } addr;
    memset(&addr, 0, sizeof addr);
    socklen_t len = family == AF_INET ? sizeof addr.v4 : sizeof addr.v6;
    addr.any.sa_family = family;
    if (family == AF_INET) addr.v4.sin_port = htons(port);
    else addr.v6.sin6_port = htons(port);
    must(bind(fd, &addr.any, len) == 0, "bind");
    must(listen(fd, 512) == 0, "listen");
    return fd;
}

static void print(char *out, size_t size, const struct sockaddr_storage *addr) {
    char ip[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)addr;
        inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof ip);
        snprintf(out, size, "%s %d", ip, ntohs(v4->sin_port));
    } else {
        const struct sockaddr_in6 *v6 = (const void *)addr;
        inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof ip);
        snprintf(out, size, "%s %d", ip, ntohs(v6->sin6_port));
    }
}

/* Accepts once and answers. -1 with errno where accept(2) fails. */
static int serve(int fd) {
    struct sockaddr_storage accepted, peer;
    socklen_t len = sizeof accepted;
    int client = accept4(fd, (void *)&accepted, &len, SOCK_CLOEXEC);
    if (client < 0) return -1;
    char a[80], p[80] = "";
    print(a, sizeof a, &accepted);
    len = sizeof peer;
    if (getpeername(client, (void *)&peer, &len) == 0) print(p, sizeof p, &peer);
    else snprintf(p, sizeof p, "errno %d", errno);
    must((fcntl(client, F_GETFL) & O_NONBLOCK) == 0, "a blocking socket was wanted");
    must(fcntl(client, F_GETFD) & FD_CLOEXEC, "a socket closed on exec was wanted");
    dprintf(client, "%s, %s\n", a, p);
    close(client);
    return 0;
}

static void serve_all(int fd) {
    while (serve(fd) == 0) {}
    must(errno == EAGAIN, "accept");
}

static void *block(void *fd) {
    while (serve(*(int *)fd) == 0) {}
    must(0, "accept");
    return NULL;
}

static void in_epoll(int flags) {
    int fd = listener(SOCK_NONBLOCK), ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | flags}, found;
    must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    for (;;) {
        if (epoll_wait(ep, &found, 1, -1) == 1) {
            if (flags & EPOLLET) serve_all(fd);
            else must(serve(fd) == 0 || errno == EAGAIN, "accept");
            if (flags & EPOLLONESHOT) must(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event) == 0, "epoll_ctl");
        }
    }
}

static void note(int signal) { (void)signal; }

int main(int argc, char **argv) {
    static const struct option options[] = {{"accept", required_argument, NULL, 'a'},
                                            {"family", required_argument, NULL, 'f'},
                                            {"port", required_argument, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    const char *variant = "";
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'a') variant = optarg;
        else if (option == 'f') family = strcmp(optarg, "4") ? AF_INET6 : AF_INET;
        else if (option == 'p') port = atoi(optarg);
        else return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int fd;
    if (!strcmp(variant, "block")) {
        fd = listener(0);
        block(&fd);
    } else if (!strcmp(variant, "threads")) {
        fd = listener(0);
        pthread_t thread;
        for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, block, &fd);
        pause();
    } else if (!strcmp(variant, "fork")) {
        fd = listener(0);
        for (int i = 0; i < 3; i++) if (fork() == 0) block(&fd);
        while (wait(NULL) > 0) {}
    } else if (!strcmp(variant, "poll") || !strcmp(variant, "select")) {
        fd = listener(SOCK_NONBLOCK);
        for (;;) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            fd_set set;
            FD_ZERO(&set);
            FD_SET(fd, &set);
            if (*variant == 'p') poll(&p, 1, -1);
            else select(fd + 1, &set, NULL, NULL, NULL);
            must(serve(fd) == 0 || errno == EAGAIN, "accept");
        }
    } else if (!strcmp(variant, "level")) {
        in_epoll(0);
    } else if (!strcmp(variant, "edge")) {
        in_epoll(EPOLLET);
    } else if (!strcmp(variant, "exclusive")) {
        in_epoll(EPOLLEXCLUSIVE);
    } else if (!strcmp(variant, "oneshot")) {
        in_epoll(EPOLLONESHOT);
    } else if (!strcmp(variant, "rebind")) {
        /* A signal ends the wait; then the port must be free at once. */
        struct sigaction action = {.sa_handler = note};
        sigaction(SIGUSR1, &action, NULL);
        fd = listener(0);
        must(serve(fd) == -1 && errno == EINTR, "EINTR");
        close(fd);
        fd = listener(0);
        puts("bound again");
        block(&fd);
    } else if (!strcmp(variant, "exit")) {
        fd = listener(0);
        serve(fd);
        return 7;
    }
    return 2;
}

/* A server that waits for connections by each call that there is, and reports to each client what
 * accept(2) and getpeername(2) return for it: here, on a duplicate, in a forked child, in a program run
 * from it, and on a descriptor that has travelled through a Unix socket.
 *
 * server --accept=HOW [--family=4|6] [--port=8443] [--multipath] [--brief] [--hold]
 *
 * HOW          block, threads, fork, poll, select, level, edge, exclusive, oneshot (of epoll), cancel, rebind, shutdown,
 *              interrupt, exit
 * --multipath  listen by MPTCP
 * --brief      accept(2) and getpeername(2) only
 * --hold       like --brief, and the connection stays open until the client closes it
 *
 * Each connection is answered after its first bytes. SIGUSR1 does nothing but interrupt a system call.
 *
 * cancel     cancels a thread that waits in accept(2), and prints whether that ended it
 * rebind     closes the listener at SIGUSR2, and opens it again at the next one
 * shutdown   shuts the listener down at SIGUSR2, while a thread waits in accept(2), and goes on
 * interrupt  opens the listener again once SIGUSR1 has interrupted accept(2)
 * exit       exits with 7 after a connection
 *
 * Where accept(2) fails with ENOSYS, because no supervisor is left, the server exits with 1.
 */
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
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef EPOLLEXCLUSIVE
#define EPOLLEXCLUSIVE (1u << 28)
#endif
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

enum { TEXT = 80, ANSWER = 1000, DUPLICATE = 77, CHILD_SOCKET = 78, CHILD_PIPE = 79 };
static int hold, brief, multipath;
static volatile sig_atomic_t usr2_count; /* of SIGUSR2 */

static void format_address(const struct sockaddr_storage *address, socklen_t len, char *text)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;
    if (address->ss_family == AF_INET && len == sizeof *v4) {
        inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof ip);
        snprintf(text, TEXT, "%s:%d", ip, ntohs(v4->sin_port));
    } else if (address->ss_family == AF_INET6 && len == sizeof *v6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof ip);
        snprintf(text, TEXT, "[%s]:%d", ip, ntohs(v6->sin6_port));
    } else {
        snprintf(text, TEXT, "family-%d-length-%d", address->ss_family, (int)len);
    }
}

static void format_peer(int fd, char *text)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    int result;
    do /* EINTR only under a supervisor (docs/exec.md) */
        result = getpeername(fd, (void *)&address, &len);
    while (result && errno == EINTR);
    if (result)
        snprintf(text, TEXT, "errno-%d", errno);
    else
        format_address(&address, len, text);
}

/* getpeername(2) copies no more than the buffer holds, and returns the true length. */
static void report_truncation(int fd, char *text)
{
    struct sockaddr_storage whole;
    unsigned char part[8];
    socklen_t len = sizeof whole, part_len = 4;
    memset(part, 0x55, sizeof part);
    getpeername(fd, (void *)&whole, &len);
    getpeername(fd, (void *)part, &part_len);
    int right = part_len == len && !memcmp(part, &whole, 4) && part[4] == 0x55;
    part_len = -1;
    right = right && getpeername(fd, (void *)part, &part_len) == -1 && errno == EINVAL;
    right = right && getpeername(fd, NULL, &len) == -1 && errno == EFAULT;
    right = right && getpeername(-1, (void *)part, &len) == -1 && errno == EBADF;
    snprintf(text, TEXT, "%s", right ? "right" : "wrong");
}

static void format_peer_in_child(int fd, int run_program, char *text)
{
    int line[2];
    if (pipe(line))
        abort();
    if (fork() == 0) {
        if (run_program) {
            dup2(fd, CHILD_SOCKET);
            dup2(line[1], CHILD_PIPE);
            for (int n = 3; n < 64; n++) /* as sshd does: nothing but the environment is left */
                if (n != CHILD_SOCKET && n != CHILD_PIPE)
                    close(n);
            execl("/proc/self/exe", "server", "--child", (char *)NULL);
            _exit(9);
        }
        char said[TEXT] = "";
        format_peer(fd, said);
        _exit(write(line[1], said, TEXT) != TEXT);
    }
    if (read(line[0], text, TEXT) < 1)
        strcpy(text, "nothing");
    wait(NULL);
    close(line[0]);
    close(line[1]);
}

static void format_peer_of_passed_fd(int fd, char *text)
{
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    int pair[2], got;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &message, 0) < 0)
        abort();
    message.msg_controllen = sizeof control;
    if (recvmsg(pair[1], &message, 0) < 0)
        abort();
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    format_peer(got, text);
    close(got);
    close(pair[0]);
    close(pair[1]);
}

static void *close_after_client(void *fd)
{
    char byte;
    while (read((int)(long)fd, &byte, 1) > 0)
        ;
    close((int)(long)fd);
    return NULL;
}

static void answer(int fd, const struct sockaddr_storage *address, socklen_t len)
{
    char accepted[TEXT], peer[TEXT], dup_[TEXT], forked[TEXT], run[TEXT], sent[TEXT], truncation[TEXT];
    char said[100], text[ANSWER];
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    ssize_t got;
    do
        got = recv(fd, said, sizeof said, 0);
    while (got < 0 && errno == EINTR);
    if (got < 1) {
        close(fd);
        return;
    }
    format_address(address, len, accepted);
    format_peer(fd, peer);
    if (brief) {
        snprintf(text, ANSWER, "accept %s getpeername %s\n", accepted, peer);
    } else {
        int other = dup2(fd, DUPLICATE);
        format_peer(other, dup_);
        close(other);
        format_peer_in_child(fd, 0, forked);
        format_peer_in_child(fd, 1, run);
        format_peer_of_passed_fd(fd, sent);
        report_truncation(fd, truncation);
        snprintf(text, ANSWER, "accept %s getpeername %s dup %s fork %s exec %s rights %s truncation %s\n",
                 accepted, peer, dup_, forked, run, sent, truncation);
    }
    if (send(fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        perror("send");
    pthread_t thread;
    if (hold && pthread_create(&thread, NULL, close_after_client, (void *)(long)fd) == 0)
        pthread_detach(thread);
    else
        close(fd);
}

/* Accepts one connection and answers it. Returns its descriptor, which is closed unless `hold` is set, or -1. */
static int accept_and_answer(int listener, int nonblocking)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof address;
    int fd = nonblocking ? accept4(listener, (void *)&address, &len, SOCK_NONBLOCK | SOCK_CLOEXEC)
                         : accept(listener, (void *)&address, &len);
    if (fd >= 0) {
        int flags = fcntl(fd, F_GETFL), on_exec = fcntl(fd, F_GETFD);
        if (!(flags & O_NONBLOCK) != !nonblocking || !(on_exec & FD_CLOEXEC) != !nonblocking) {
            fprintf(stderr, "flags of the connection are wrong\n");
            exit(1);
        }
        answer(fd, &address, len);
    } else if (errno == EMFILE) {
        usleep(20000);
    } else if (errno == ENOSYS) { /* no supervisor is left */
        perror("accept");
        exit(1);
    } else if (errno != EAGAIN && errno != EINTR) {
        perror("accept");
    }
    return fd;
}

static void *accept_forever(void *listener)
{
    for (;;)
        accept_and_answer((int)(long)listener, 0);
    return NULL;
}

static void *accept_until_it_fails(void *listener)
{
    while (accept_and_answer((int)(long)listener, 0) >= 0)
        ;
    return NULL;
}

static void accept_by_epoll(int listener, unsigned flags)
{
    int instance = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | flags}, found;
    epoll_ctl(instance, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        epoll_wait(instance, &found, 1, -1);
        while (accept_and_answer(listener, 1) >= 0 && flags & EPOLLET)
            ;
        if (flags & EPOLLONESHOT)
            epoll_ctl(instance, EPOLL_CTL_MOD, listener, &event);
    }
}

static void run_in_children(int listener, void (*work)(int))
{
    for (int n = 0; n < 3; n++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(listener);
        }
    for (;;)
        pause();
}

static void accept_in_loop(int listener)
{
    for (;;)
        accept_and_answer(listener, 0);
}

static void accept_by_exclusive_epoll(int listener)
{
    accept_by_epoll(listener, EPOLLEXCLUSIVE);
}

static void ignore(int number)
{
    (void)number;
}

static void count_usr2(int number)
{
    (void)number;
    usr2_count++;
}

static int open_listener(int six, int port, int nonblocking)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int one = 1, kind = SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0);
    int listener = socket(six ? AF_INET6 : AF_INET, kind, multipath ? IPPROTO_MPTCP : 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, six ? (void *)&v6 : (void *)&v4, six ? sizeof v6 : sizeof v4) ||
        listen(listener, 1024)) {
        perror("listen");
        exit(1);
    }
    return listener;
}

/* poll(2) is always interrupted by a signal, so no flag is overlooked for long. */
static void accept_and_rebind(int listener, int six, int port)
{
    for (;;) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        poll(&wait, 1, 50);
        if (usr2_count == 1 && listener >= 0) {
            close(listener);
            listener = -1;
            fprintf(stderr, "closed\n");
        } else if (usr2_count == 2 && listener < 0) {
            listener = open_listener(six, port, 1);
            fprintf(stderr, "bound again\n");
        } else if (listener >= 0) {
            accept_and_answer(listener, 1);
        }
    }
}

int main(int count, char **args)
{
    if (count > 1 && !strcmp(args[1], "--child")) {
        char said[TEXT] = "";
        format_peer(CHILD_SOCKET, said);
        return write(CHILD_PIPE, said, TEXT) != TEXT;
    }
    static const struct option options[] = {{"accept", required_argument, NULL, 'a'},
                                            {"family", required_argument, NULL, 'f'},
                                            {"port", required_argument, NULL, 'p'},
                                            {"multipath", no_argument, &multipath, 1},
                                            {"brief", no_argument, &brief, 1},
                                            {"hold", no_argument, &hold, 1},
                                            {NULL, 0, NULL, 0}};
    const char *how = "";
    int six = 0, port = 8443, option;
    while ((option = getopt_long(count, args, "", options, NULL)) != -1) {
        if (option == 'a')
            how = optarg;
        else if (option == 'f')
            six = *optarg == '6';
        else if (option == 'p')
            port = atoi(optarg);
        else if (option != 0)
            return 2;
    }
    brief |= hold;
    struct sigaction usr1_action = {.sa_handler = ignore}, usr2_action = {.sa_handler = count_usr2};
    sigaction(SIGUSR1, &usr1_action, NULL);
    sigaction(SIGUSR2, &usr2_action, NULL);
    int blocks = !strcmp(how, "block") || !strcmp(how, "threads") || !strcmp(how, "fork") ||
                !strcmp(how, "shutdown") || !strcmp(how, "interrupt") || !strcmp(how, "exit");
    int listener = open_listener(six, port, !blocks);
    if (!strcmp(how, "cancel")) { /* a thread that waits in accept(2) can be cancelled there */
        pthread_t waiting;
        void *result = NULL;
        pthread_create(&waiting, NULL, accept_forever, (void *)(long)listener);
        usleep(100000);
        pthread_cancel(waiting);
        pthread_join(waiting, &result);
        puts(result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        return 0;
    }
    if (!strcmp(how, "shutdown")) {
        pthread_t waiting;
        sigset_t shuts_down;
        int number;
        sigemptyset(&shuts_down);
        sigaddset(&shuts_down, SIGUSR2);
        pthread_sigmask(SIG_BLOCK, &shuts_down, NULL);
        pthread_create(&waiting, NULL, accept_until_it_fails, (void *)(long)listener);
        sigwait(&shuts_down, &number);
        shutdown(listener, SHUT_RDWR);
    }
    if (!strcmp(how, "interrupt")) {
        accept_until_it_fails((void *)(long)listener);
        int error = errno;
        close(listener);
        listener = open_listener(six, port, 0);
        fprintf(stderr, "bound again after: %s\n", strerror(error));
        accept_in_loop(listener);
    }
    if (!strcmp(how, "exit")) {
        accept_and_answer(listener, 0);
        return 7;
    }
    if (!strcmp(how, "rebind"))
        accept_and_rebind(listener, six, port);
    if (!strcmp(how, "block"))
        accept_in_loop(listener);
    if (!strcmp(how, "fork"))
        run_in_children(listener, accept_in_loop);
    if (!strcmp(how, "exclusive"))
        run_in_children(listener, accept_by_exclusive_epoll);
    if (!strcmp(how, "level"))
        accept_by_epoll(listener, 0);
    if (!strcmp(how, "edge"))
        accept_by_epoll(listener, EPOLLET);
    if (!strcmp(how, "oneshot"))
        accept_by_epoll(listener, EPOLLONESHOT);
    pthread_t thread;
    for (int n = 0; !strcmp(how, "threads") && n < 3; n++)
        pthread_create(&thread, NULL, accept_forever, (void *)(long)listener);
    while (!strcmp(how, "poll")) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        poll(&wait, 1, -1);
        accept_and_answer(listener, 1);
    }
    while (!strcmp(how, "select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(listener, &set);
        select(listener + 1, &set, NULL, NULL, NULL);
        accept_and_answer(listener, 1);
    }
    for (;;)
        pause();
}

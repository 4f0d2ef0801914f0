/* A client that connects by each call that there is, sends "hello", and prints what the calls
 * returned and then the server's answer.
 *
 * client MODE ADDRESS PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef MSG_FASTOPEN
#define MSG_FASTOPEN 0x20000000
#endif

enum { THREADS = 8, ROUNDS = 4 };
static const char hello[] = "hello";
static struct sockaddr_storage to;
static socklen_t to_len;

static const char *name_result(int result)
{
    if (result >= 0)
        return "done";
    switch (errno) {
    case EINPROGRESS: return "EINPROGRESS";
    case EALREADY: return "EALREADY";
    case EISCONN: return "EISCONN";
    case ECONNREFUSED: return "ECONNREFUSED";
    case ENETUNREACH: return "ENETUNREACH";
    case EINTR: return "EINTR";
    case EFAULT: return "EFAULT";
    case EINVAL: return "EINVAL";
    case EBADF: return "EBADF";
    case ENOTSOCK: return "ENOTSOCK";
    case EAFNOSUPPORT: return "EAFNOSUPPORT";
    default: return strerror(errno);
    }
}

static int new_socket(int flags)
{
    return socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
}

static int try_connect(int fd)
{
    return connect(fd, (void *)&to, to_len);
}

static int socket_error(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static void wait_for(int fd, int events)
{
    struct pollfd wait = {.fd = fd, .events = events};
    poll(&wait, 1, 10000);
}

/* Sends hello, unless it was sent already, and prints the answer up to its end. */
static void send_and_print_answer(int fd, int has_spoken)
{
    char answer[500];
    ssize_t n;
    if (!has_spoken && write(fd, hello, 5) != 5)
        printf("write %s\n", strerror(errno));
    shutdown(fd, SHUT_WR);
    for (;;) {
        wait_for(fd, POLLIN);
        if ((n = read(fd, answer, sizeof answer)) < 1)
            break;
        fwrite(answer, 1, n, stdout);
    }
    close(fd);
}

static void connect_by_poll(void)
{
    int fd = new_socket(SOCK_NONBLOCK);
    printf("connect %s\n", name_result(try_connect(fd)));
    try_connect(fd); /* as some programs poll for progress: EALREADY, or connected */
    wait_for(fd, POLLOUT);
    try_connect(fd); /* connected, if the call before was too early */
    int error = socket_error(fd);
    printf("SO_ERROR %s\n", error ? strerror(error) : "0");
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("%s\n", fcntl(fd, F_GETFL) & O_NONBLOCK ? "does not block" : "blocks");
    send_and_print_answer(fd, 0);
}

/* Waits for the server to speak, and never writes. */
static void read_first(void)
{
    char byte;
    int fd = new_socket(SOCK_NONBLOCK);
    try_connect(fd);
    wait_for(fd, POLLIN);
    printf("read %s\n", name_result(read(fd, &byte, 1)));
    send_and_print_answer(fd, 1);
}

static void refused(void)
{
    int fd = new_socket(SOCK_NONBLOCK);
    printf("connect %s\n", name_result(try_connect(fd)));
    wait_for(fd, POLLOUT);
    errno = socket_error(fd);
    printf("SO_ERROR %s\n", name_result(-1));
    close(fd);
    fd = new_socket(0);
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("connect %s\n", name_result(try_connect(fd)));
    close(fd);
}

static void fast_open(const char *mode)
{
    struct iovec part = {(char *)hello, 5};
    struct mmsghdr message = {.msg_hdr = {.msg_name = &to, .msg_namelen = to_len,
                                          .msg_iov = &part, .msg_iovlen = 1}};
    int fd = new_socket(0);
    if (!strcmp(mode, "sendto"))
        printf("%d\n", (int)sendto(fd, hello, 5, MSG_FASTOPEN, (void *)&to, to_len));
    if (!strcmp(mode, "sendmsg"))
        printf("%d\n", (int)sendmsg(fd, &message.msg_hdr, MSG_FASTOPEN));
    if (!strcmp(mode, "sendmmsg"))
        printf("%d\n", sendmmsg(fd, &message, 1, MSG_FASTOPEN) == 1 ? (int)message.msg_len : -1);
    send_and_print_answer(fd, 1);
    fd = new_socket(SOCK_NONBLOCK);
    printf("%s\n", name_result(sendto(fd, hello, 5, MSG_FASTOPEN, (void *)&to, to_len)));
    wait_for(fd, POLLOUT);
    send_and_print_answer(fd, 0);
}

static void *connect_many(void *unused)
{
    for (int n = 0; n < ROUNDS; n++) {
        int fd = new_socket(n % 2 ? SOCK_NONBLOCK : 0);
        try_connect(fd);
        wait_for(fd, POLLOUT);
        if (socket_error(fd) || write(fd, hello, 5) != 5)
            puts("failed");
        close(fd);
    }
    return unused;
}

static void *connect_without_answer(void *unused)
{
    try_connect(new_socket(0));
    return unused;
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* To an address that never answers. */
static void never(void)
{
    struct timeval limit = {.tv_usec = 200000};
    int fd = new_socket(0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    printf("SO_SNDTIMEO %s\n", name_result(try_connect(fd)));
    close(fd);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval timer = {.it_value = limit};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    fd = new_socket(0);
    printf("signal %s\n", name_result(try_connect(fd)));
    close(fd);
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, connect_without_answer, NULL);
    usleep(100000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

/* connect(2)'s errors for invalid arguments. */
static void wrong(void)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(1)};
    int fd = new_socket(0), six = socket(AF_INET6, SOCK_STREAM, 0), pipes[2];
    if (pipe(pipes))
        abort();
    printf("no address %s\n", name_result(connect(fd, NULL, to_len)));
    printf("short %s\n", name_result(connect(fd, (void *)&to, 3)));
    printf("long %s\n", name_result(connect(fd, (void *)&to, 5000)));
    printf("other family %s\n", name_result(connect(six, (void *)&v4, sizeof v4)));
    printf("no descriptor %s\n", name_result(connect(-1, (void *)&to, to_len)));
    printf("no socket %s\n", name_result(connect(pipes[0], (void *)&to, to_len)));
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("undo %s\n", name_result(connect(fd, &none, sizeof none)));
    printf("connect %s\n", name_result(try_connect(fd)));
    close(fd);
}

/* Two connections, one after the other, on one descriptor. */
static void again(void)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int fd = new_socket(0);
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("connect %s\n", name_result(try_connect(fd)));
    printf("undo %s\n", name_result(connect(fd, &none, sizeof none)));
    printf("connect %s\n", name_result(try_connect(fd)));
    send_and_print_answer(fd, 0);
}

static void others(const char *path)
{
    int fd = socket(to.ss_family, SOCK_DGRAM, 0);
    printf("udp %s\n", name_result(try_connect(fd)));
    if (send(fd, hello, 5, 0) != 5)
        puts("failed");
    close(fd);
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    strncpy(local.sun_path, path, sizeof local.sun_path - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (void *)&local, sizeof local) || listen(listener, 1))
        puts("failed");
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    printf("unix %s\n", name_result(connect(fd, (void *)&local, sizeof local)));
    if (write(fd, hello, 5) != 5)
        puts("failed");
    char said[100] = "";
    if (read(accept(listener, NULL, NULL), said, 99) < 1)
        puts("failed");
    printf("%s\n", said);
}

int main(int count, char **args)
{
    const char *mode = args[1];
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(atoi(args[3]))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(args[3]))};
    if (inet_pton(AF_INET, args[2], &v4.sin_addr) == 1)
        memcpy(&to, &v4, to_len = sizeof v4);
    else if (inet_pton(AF_INET6, args[2], &v6.sin6_addr) == 1)
        memcpy(&to, &v6, to_len = sizeof v6);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!strcmp(mode, "block")) {
        int fd = new_socket(0);
        printf("connect %s\n", name_result(try_connect(fd)));
        send_and_print_answer(fd, 0);
    }
    if (!strcmp(mode, "stdio")) { /* no library can replace its write(2) */
        int fd = new_socket(0);
        try_connect(fd);
        FILE *stream = fdopen(fd, "w");
        fputs(hello, stream);
        fflush(stream);
        send_and_print_answer(fd, 1);
    }
    if (!strcmp(mode, "poll"))
        connect_by_poll();
    if (!strcmp(mode, "read_first"))
        read_first();
    if (!strcmp(mode, "refused"))
        refused();
    if (!strncmp(mode, "send", 4))
        fast_open(mode);
    if (!strcmp(mode, "never"))
        never();
    if (!strcmp(mode, "wrong"))
        wrong();
    if (!strcmp(mode, "again"))
        again();
    if (!strcmp(mode, "others"))
        others(count > 4 ? args[4] : "");
    pthread_t threads[THREADS];
    for (int n = 0; !strcmp(mode, "threads") && n < THREADS; n++)
        pthread_create(&threads[n], NULL, connect_many, NULL);
    for (int n = 0; !strcmp(mode, "threads") && n < THREADS; n++)
        pthread_join(threads[n], NULL);
    return 0;
}

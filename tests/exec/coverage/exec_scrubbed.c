/* Listens, executes itself anew by the function that is named, without an environment, and serves there: it sends
 * each client what accept(2) and getpeername(2) return for it, and which files of peername's the process has mapped.
 *
 * exec_scrubbed FUNCTION   a function of exec(3), posix_spawn(3), "vfork", or "syscall", which no library sees
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LISTENER = 60, TEXT = 256 };
extern char **environ;
static char *nothing[] = {NULL};
static char *given[] = {"LD_PRELOAD=libc.so.6", "OTHER=kept", NULL};

static int maps(const char *name)
{
    char line[1024];
    int found = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        found |= strstr(line, name) != NULL;
    if (file)
        fclose(file);
    return found;
}

static void serve(void)
{
    for (;;) {
        struct sockaddr_in shown, asked;
        socklen_t len = sizeof shown, asked_len = sizeof asked;
        int fd = accept(LISTENER, (void *)&shown, &len);
        if (fd < 0 || getpeername(fd, (void *)&asked, &asked_len))
            continue;
        char text[TEXT], ip[INET_ADDRSTRLEN];
        int same = !memcmp(&shown.sin_addr, &asked.sin_addr, 4) && shown.sin_port == asked.sin_port;
        const char *other = getenv("OTHER"), *preload = getenv("LD_PRELOAD");
        inet_ntop(AF_INET, &shown.sin_addr, ip, sizeof ip);
        snprintf(text, TEXT, "%s:%d %s library=%d table=%d other=%s last=%s\n", ip, ntohs(shown.sin_port),
                 same ? "same" : "different", maps("libpeername.so"), maps("/dev/shm/peername-"),
                 other ? other : "", preload && strrchr(preload, ':') ? strrchr(preload, ':') + 1 : "");
        if (write(fd, text, strlen(text)) < 0)
            perror("write");
        close(fd);
    }
}

static void run(const char *function, char *self)
{
    char *args[] = {self, "serve", NULL};
    if (!strcmp(function, "execve"))
        execve(self, args, nothing);
    if (!strcmp(function, "null")) /* a null pointer, which the kernel accepts as an empty environment */
        execve(self, args, NULL);
    if (!strcmp(function, "given"))
        execve(self, args, given);
    if (!strcmp(function, "execle"))
        execle(self, self, "serve", (char *)NULL, nothing);
    if (!strcmp(function, "execle8")) /* more arguments than registers */
        execle(self, self, "serve", "1", "2", "3", "4", "5", "6", (char *)NULL, nothing);
    if (!strcmp(function, "execvpe"))
        execvpe(self, args, nothing);
    if (!strcmp(function, "fexecve"))
        fexecve(open(self, O_RDONLY | O_CLOEXEC), args, nothing);
#ifdef __GLIBC__
    if (!strcmp(function, "execveat"))
        execveat(AT_FDCWD, self, args, nothing, 0);
#endif
    if (!strcmp(function, "syscall"))
        syscall(SYS_execve, self, args, nothing);
    pid_t child = 0;
    if (!strcmp(function, "posix_spawn"))
        posix_spawn(&child, self, NULL, NULL, args, nothing);
    if (!strcmp(function, "posix_spawnp"))
        posix_spawnp(&child, self, NULL, NULL, args, nothing);
    if (!strcmp(function, "vfork") && (child = vfork()) == 0) {
        execve(self, args, nothing);
        _exit(127);
    }
    /* The others take the environment of this process. */
    environ = nothing;
    if (!strcmp(function, "execv"))
        execv(self, args);
    if (!strcmp(function, "execvp"))
        execvp(self, args);
    if (!strcmp(function, "execl"))
        execl(self, self, "serve", (char *)NULL);
    if (!strcmp(function, "execl8"))
        execl(self, self, "serve", "1", "2", "3", "4", "5", "6", "7", (char *)NULL);
    if (!strcmp(function, "execlp"))
        execlp(self, self, "serve", (char *)NULL);
    waitpid(child, NULL, 0);
    perror(function);
    exit(1);
}

int main(int count, char **args)
{
    (void)count;
    if (!strcmp(args[1], "serve"))
        serve();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8443)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 128)) {
        perror("listen");
        return 1;
    }
    dup2(listener, LISTENER);
    close(listener);
    run(args[1], args[0]);
}

/* A 32-bit x86 program without a C library: listens on port 8443, and sends each client what accept(2) and getpeername(2)
 * return for it, as two `struct sockaddr_in`. It accepts by socketcall(2) and by accept4(2) in turns.
 *
 * gcc -m32 -ffreestanding -fno-pie -nostdlib -static
 */
enum { EXIT = 1, WRITE = 4, CLOSE = 6, SOCKETCALL = 102, ACCEPT4 = 364, GETPEERNAME = 368 };
enum { SOCKET = 1, BIND = 2, LISTEN = 4, ACCEPT = 5, GETPEERNAME_OF_SOCKETCALL = 7, SETSOCKOPT = 14 };

static long call(long number, long a, long b, long c, long d)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d) : "memory");
    return result;
}

static long socketcall(long which, long a, long b, long c, long d, long e)
{
    long args[] = {a, b, c, d, e};
    return call(SOCKETCALL, which, (long)args, 0, 0);
}

struct address {
    unsigned short family, port;
    unsigned ip;
    unsigned char zero[8];
};

void _start(void)
{
    struct address own = {2, 0xfb20, 0, {0}}; /* AF_INET, 8443 */
    long one = 1, listener = socketcall(SOCKET, 2, 1, 0, 0, 0);
    socketcall(SETSOCKOPT, listener, 1, 2, (long)&one, sizeof one);
    if (socketcall(BIND, listener, (long)&own, sizeof own, 0, 0) || socketcall(LISTEN, listener, 128, 0, 0, 0))
        call(EXIT, 1, 0, 0, 0);
    for (int turn = 0;; turn = !turn) {
        struct address shown[2];
        long len = sizeof *shown, other = sizeof *shown;
        long fd = turn ? call(ACCEPT4, listener, (long)shown, (long)&len, 0)
                       : socketcall(ACCEPT, listener, (long)shown, (long)&len, 0, 0);
        if (fd < 0)
            continue;
        long told = turn ? call(GETPEERNAME, fd, (long)&shown[1], (long)&other, 0)
                         : socketcall(GETPEERNAME_OF_SOCKETCALL, fd, (long)&shown[1], (long)&other, 0, 0);
        if (told == 0)
            call(WRITE, fd, (long)shown, sizeof shown, 0);
        call(CLOSE, fd, 0, 0, 0);
    }
}

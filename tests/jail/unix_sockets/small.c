static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
static struct { unsigned short family; char path[16]; } address = { 1, "\0peername-32" };
void _start(void) {
    long server = call(359, 1, 1, 0), client = call(359, 1, 1, 0);
    long result = call(361, server, (long)&address, sizeof address) || call(363, server, 5, 0) || call(362, client, (long)&address, sizeof address);
    call(1, result != 0, 0, 0);
}

# Follows server.py: sends requests of every malformed kind.
kept = [open("/proc/self/status"), socket.socket(socket.AF_UNIX)]
for number in range(2000):
    for bytes in (b"P", b"T", b"N", b"PPPP", b"", b"x" * 4096):
        for passed in ((), kept[:1], kept[1:], [listener], [listener] * 100):
            try:
                request(bytes, *passed)
            except OSError:
                pass
    if number == 1:
        print("begun")

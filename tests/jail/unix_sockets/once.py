# Follows prelude.py: prints how many of 1500 calls fail while signals interrupt them.
# signal(3) of the C library: with SA_RESTART, and a handler that does nothing.
libc.signal(signal.SIGALRM, ctypes.cast(libc.getppid, ctypes.c_void_p))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
failures = 0
for number in range(1500):
    path = "%s/%d" % (directory, number)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(path)
        server.listen()
        socket.socket(socket.AF_UNIX).connect(path)
        os.unlink(path)
    except OSError:
        failures += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(failures)
listen(directory + "/last")
connect(directory + "/last")
print("ok")

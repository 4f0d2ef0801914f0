# Follows prelude.py: connect(2) to a full backlog fails, times out, is interrupted or waits.
path = directory + "/full"
server = listen(path, backlog=0)
first = connect(path)

client = socket.socket(socket.AF_UNIX)
client.setblocking(False)
print(error(lambda: client.connect(path)))

# SO_SNDTIMEO.
client = socket.socket(socket.AF_UNIX)
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("2l", 0, 200000))
start = time.monotonic()
address = struct.pack("H", socket.AF_UNIX) + path.encode() + b"\0"
print(libc.connect(client.fileno(), address, len(address)), errno.errorcode[ctypes.get_errno()])
assert 0.15 < time.monotonic() - start < 2

# A signal without SA_RESTART.
def interrupt(*_): pass
signal.signal(signal.SIGALRM, interrupt)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.3)
client = socket.socket(socket.AF_UNIX)
start = time.monotonic()
print(libc.connect(client.fileno(), address, len(address)), errno.errorcode[ctypes.get_errno()])
assert 0.2 < time.monotonic() - start < 2

# Until the server accepts.
done = []
def wait():
    waiting = connect(path)
    done.append(time.monotonic())
thread = threading.Thread(target=wait)
thread.start()
time.sleep(0.3)
assert not done
# Other calls are served meanwhile.
listen(directory + "/other")
connect(directory + "/other")
server.accept()
thread.join(2)
assert done
print("ok")

# Attempts by races with a call that is checked or made, and by addresses that two parsers could read differently.

# %% a path that is exchanged during the call [not-tried]
import threading
with tempfile.TemporaryDirectory() as dir:
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/own")
    server.listen(1000)
    os.symlink(os.environ["CANARY"], dir + "/link")
    def swap():
        while True:
            libc.renameat2(-100, (dir + "/own").encode(), -100, (dir + "/link").encode(), 2)
    threading.Thread(target=swap, daemon=True).start()
    connect_for(1.5, dir + "/own")
    print("closed")
    os._exit(0)

# %% a directory that is exchanged during the call [not-tried]
import threading
with tempfile.TemporaryDirectory() as dir:
    os.mkdir(dir + "/real")
    name = os.path.basename(os.environ["CANARY"])
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/real/" + name)
    server.listen(1000)
    os.symlink(os.path.dirname(os.environ["CANARY"]), dir + "/link")
    def swap():
        while True:
            libc.renameat2(-100, (dir + "/real").encode(), -100, (dir + "/link").encode(), 2)
    threading.Thread(target=swap, daemon=True).start()
    connect_for(1.5, dir + "/real/" + name)
    print("closed")
    os._exit(0)

# %% a path that is replaced while it is bound [not-tried]
import threading
with tempfile.TemporaryDirectory() as dir:
    path = dir + "/own"
    def replace():
        while True:
            try:
                os.symlink(os.environ["CANARY"], dir + "/link")
                os.rename(dir + "/link", path)
            except OSError:
                pass
    threading.Thread(target=replace, daemon=True).start()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            os.unlink(path)
        except OSError:
            pass
        try:
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen(10)
        except OSError:
            pass
        connect_for(0, path)
    print("closed")
    os._exit(0)

# %% a working and a root directory that change during the call [not-tried]
import threading
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
with tempfile.TemporaryDirectory() as dir:
    name = os.path.basename(os.environ["CANARY"])
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/" + name)
    server.listen(1000)
    inside, outside = (os.open(path, os.O_RDONLY) for path in (dir, os.path.dirname(os.environ["CANARY"])))
    def swap():
        while True:
            os.fchdir(inside)
            os.fchdir(outside)
    threading.Thread(target=swap, daemon=True).start()
    connect_for(1.5, name)
    print("closed")
    os._exit(0)

# %% callers that are killed during the call [not-tried]
end, number = time.monotonic() + 1.5, 0
while time.monotonic() < end:
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            while True:
                libc.connect(socket.socket(socket.AF_UNIX).fileno(), b"\1\0" + os.environ["CANARY"].encode() + b"\0", len(os.environ["CANARY"]) + 3)
        children.append(child)
    time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
with tempfile.TemporaryDirectory() as dir:
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/own")
    server.listen()
    socket.socket(socket.AF_UNIX).connect(dir + "/own")
unix(os.environ["CANARY"])

# %% a call that a signal interrupts [not-tried]
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
connect_for(1.5, os.environ["CANARY"])
print("closed")

# %% a Unix socket from a process without its descriptors in common (CLONE_FILES) [succeeds]
import threading
def connect():
    call(libc.unshare(0x400))
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(os.environ["CANARY"])
        print("OUT", client.recv(10))
    except OSError as error:
        print("closed", error)
thread = threading.Thread(target=connect)
thread.start()
thread.join()

# %% a Unix socket from a PID namespace of one's own [succeeds]
own_namespace(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(os.environ["CANARY"])
        print("OUT", client.recv(10), flush=True)
    except OSError as error:
        print("closed", error, flush=True)
    os._exit(0)
os.wait()

# %% the limits of a process outside from a PID namespace of one's own [not-tried]
import resource
own_namespace(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
if os.fork() == 0:
    for number in (VICTIM, 1, -1, 2**31 - 1):
        try:
            before = resource.prlimit(number, resource.RLIMIT_CORE)
            resource.prlimit(number, resource.RLIMIT_CORE, before)
            # In this namespace 1 is this process.
            print("OUT" if number != 1 else "closed", number, flush=True)
        except (OSError, OverflowError) as error:
            print("closed", number, error, flush=True)
    os._exit(0)
os.wait()

# %% a Unix socket of the host by a path with a zero in it [succeeds]
path = os.environ["CANARY"].encode() + b"\0/tmp/own"
connect_by(b"\1\0" + path)

# %% a Unix socket of the host by a path of 108 bytes without a zero [succeeds]
with tempfile.TemporaryDirectory() as dir:
    path = (dir + "/" + "x" * 108)[:108]
    os.symlink(os.environ["CANARY"], path)
    connect_by(b"\1\0" + path.encode())

# %% a Unix socket of the host by a path through proc [succeeds]
path = os.environ["CANARY"]
client = socket.socket(socket.AF_UNIX)
for prefix in ("/proc/self/root", "/proc/thread-self/root", "/proc/%d/root" % os.getpid(), "/proc/self/cwd/../../../../../..", "//proc//self/root"):
    try:
        client.connect(prefix + path)
        print("OUT", prefix, client.recv(10))
        break
    except OSError as error:
        print("closed", prefix, error)

# %% a Unix socket of the host by a name in proc of the mediator [not-tried]
for target in ["/proc/self/fd/%d" % number for number in range(20)] + ["/proc/self/root", "/proc/self/cwd"]:
    with tempfile.TemporaryDirectory() as dir:
        os.symlink(target, dir + "/link")
        for path in (dir + "/link", dir + "/link" + os.environ["CANARY"], dir + "/link/../" + os.environ["CANARY"]):
            connect_for(0, path)
print("closed")

# %% addresses with lengths that no socket has [not-tried]
address = b"\1\0" + os.environ["CANARY"].encode() + b"\0"
for length in (-1, 0, 1, 2, 129, 4096, 2**31 - 1, -(2**31)):
    for function in (libc.connect, libc.bind):
        client = socket.socket(socket.AF_UNIX)
        function(client.fileno(), address.ljust(200, b"\0"), length)
        client.setblocking(False)
        try:
            print("OUT" if client.recv(10) == b"hello" else "closed", length)
        except OSError as error:
            print("closed", length, error)

# %% the address of a Unix socket in another family's, and the other way round [not-tried]
path = os.environ["CANARY"].encode() + b"\0"
for family in (0, 2, 10, 17, 40, 0x101, 0xffff):
    for kind in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        client = socket.socket(kind)
        client.setblocking(False)
        libc.connect(client.fileno(), struct.pack("H", family) + path, len(path) + 2)
        try:
            print("OUT" if client.recv(10) == b"hello" else "closed", family)
        except OSError:
            pass
print("closed")

# %% a packet with an address of its own (SOCK_SEQPACKET) [not-tried]
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
for path in (os.environ["CANARY"] + ".packets", os.environ["CANARY"] + ".datagrams"):
    try:
        one.sendto(b"x", path)
        # The address is ignored: the packet goes to the peer.
        print("closed", other.recv(10))
    except OSError as error:
        print("closed", error)

# %% a Unix socket of the host by a 32-bit system call [not-tried]
source = """
#include <sys/mman.h>
#include <string.h>
#include <stdlib.h>
int main(void) {
    long result, socket;
    char *low = mmap((void *)0x10000000, 4096, 3, 0x32, -1, 0), *path = getenv("CANARY");
    low[0] = 1; low[1] = 0; strcpy(low + 2, path);
    __asm__ volatile("int $0x80" : "=a"(socket) : "a"(359), "b"(1), "c"(1), "d"(0) : "memory");
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(362), "b"(socket), "c"(low), "d"(strlen(path) + 3) : "memory");
    return result == 0 ? 0 : 1;
}
"""
with tempfile.TemporaryDirectory() as dir:
    with open(dir + "/a.c", "w") as file:
        file.write(source)
    if subprocess.run(["cc", "-o", dir + "/a", dir + "/a.c"], capture_output=True).returncode != 0:
        report("no such machine")
    done = subprocess.run([dir + "/a"])
print("OUT" if done.returncode == 0 else "closed", done)

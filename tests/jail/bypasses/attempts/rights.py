# Attempts by names that the program may change, and by rights that it has over what its user owns.

# %% a Unix socket that was linked to its path [succeeds]
unix(os.environ["CANARY"] + ".linked")

# %% a Unix socket that was renamed to its path [succeeds]
unix(os.environ["CANARY"] + ".renamed")

# %% a Unix socket that is bound later [succeeds]
unix(os.environ["CANARY"] + ".later")

# %% a Unix socket by a symbolic link [succeeds]
with tempfile.TemporaryDirectory() as dir:
    os.symlink(os.environ["CANARY"], dir + "/link")
    unix(dir + "/link")

# %% a Unix socket by a relative path [succeeds]
os.chdir(os.path.dirname(os.environ["CANARY"]))
unix(os.path.basename(os.environ["CANARY"]))

# %% a Unix socket by a descriptor of its file [succeeds]
unix("/proc/self/fd/%d" % os.open(os.environ["CANARY"], os.O_PATH))

# %% a Unix socket from another root directory [succeeds]
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
os.chroot(os.path.dirname(os.environ["CANARY"]))
unix("/" + os.path.basename(os.environ["CANARY"]))

# %% a Unix socket of packets [succeeds]
unix(os.environ["CANARY"] + ".packets", socket.SOCK_SEQPACKET)

# %% a Unix datagram [succeeds]
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.sendto(b"x", os.environ["CANARY"] + ".datagrams")
print("OUT")

# %% a Unix datagram from a connected pair [succeeds]
client, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
client.sendto(b"x", os.environ["CANARY"] + ".datagrams")
print("OUT")

# %% a Unix datagram by SOCK_RAW [succeeds]
client = socket.socket(socket.AF_UNIX, socket.SOCK_RAW)
client.sendto(b"x", os.environ["CANARY"] + ".datagrams")
print("OUT")

# %% a Unix socket moved to the path of one's own [succeeds]
with tempfile.TemporaryDirectory() as dir:
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/own")
    server.listen()
    os.unlink(dir + "/own")
    os.symlink(os.environ["CANARY"], dir + "/own")
    unix(dir + "/own")

# %% an address and a socket that change during the call [not-tried]
import threading
outside = bytes([1, 0]) + os.environ["CANARY"].encode() + b"\0"
with tempfile.TemporaryDirectory() as dir:
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/own")
    server.listen(1000)
    inside = (bytes([1, 0]) + (dir + "/own").encode()).ljust(len(outside), b"\0")
    buffer = ctypes.create_string_buffer(inside.ljust(110, b"\0"), 110)
    def swap():
        while True:
            ctypes.memmove(buffer, outside, len(outside))
            ctypes.memmove(buffer, inside, len(inside))
    threading.Thread(target=swap, daemon=True).start()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        client = socket.socket(socket.AF_UNIX)
        spare = socket.socket(socket.AF_INET)
        threading.Thread(target=os.dup2, args=(client.fileno(), spare.fileno())).start()
        libc.connect(spare.fileno(), buffer, 110)
        client.setblocking(False)
        try:
            if client.recv(10) == b"hello":
                print("OUT")
        except OSError:
            pass
    print("closed")

# %% mounts in a namespace of one's own [not-tried]
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
tries = {
    "mount": lambda: libc.mount(b"t", b"/mnt", b"tmpfs", 0, None),
    "bind": lambda: libc.mount(b"/usr", b"/mnt", None, 0x1000, None),
    "umount": lambda: libc.umount2(b"/proc", 2),
    "open_tree": lambda: libc.syscall(428, -100, b"/", 1),
    "fsopen": lambda: libc.syscall(430, b"tmpfs", 0),
    "mount_setattr": lambda: libc.syscall(442, -100, b"/", 0x8000, bytes(32), 32),
}
print("closed", [(name, "OUT" if run() >= 0 else ctypes.get_errno()) for name, run in tries.items()])

# %% a file by its handle [not-tried]
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
call(libc.name_to_handle_at(-100, os.path.dirname(os.environ["CANARY"]).encode(), handle, ctypes.byref(mount), 0))
call(libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, os.O_RDONLY))
print("OUT")

# %% the limits of a process outside [succeeds]
import resource
resource.prlimit(VICTIM, resource.RLIMIT_CORE, resource.prlimit(VICTIM, resource.RLIMIT_CORE))
print("OUT")

# %% the processors of a process outside [succeeds]
os.sched_setaffinity(VICTIM, os.sched_getaffinity(VICTIM))
print("OUT")

# %% the scheduling of a process outside [succeeds]
os.sched_setscheduler(VICTIM, os.SCHED_OTHER, os.sched_param(0))
print("OUT")

# %% the priority of a process outside [succeeds]
os.setpriority(os.PRIO_PROCESS, VICTIM, os.getpriority(os.PRIO_PROCESS, VICTIM))
print("OUT")

# %% the priority of every process of the user [not-tried]
os.setpriority(os.PRIO_USER, os.getuid(), os.getpriority(os.PRIO_PROCESS, 0))
print("OUT")

# %% the I/O priority of a process outside [succeeds]
number = {"x86_64": 251, "aarch64": 30, "riscv64": 30}[os.uname().machine]
call(libc.syscall(number, 1, VICTIM, 0))
print("OUT")

# %% the limits of the jail's own processes [not-tried]
import glob, resource
for path in glob.glob("/proc/[0-9]*"):
    try:
        name = open(path + "/comm").read().strip()
        if "peername" in name or name in ("worker", "tokio"):
            resource.prlimit(int(path[6:]), resource.RLIMIT_FSIZE, (0, 0))
            print("OUT", name)
    except OSError:
        pass
print("closed")

# %% the memory of the jail's own processes [not-tried]
import glob
for path in glob.glob("/proc/[0-9]*"):
    try:
        if "peername" in open(path + "/comm").read():
            os.open(path + "/mem", os.O_RDWR)
            print("OUT", path)
    except OSError:
        pass
print("closed")

# %% a key of the user [not-tried]
number = {"x86_64": 248, "aarch64": 217, "riscv64": 217}[os.uname().machine]
call(libc.syscall(number, b"user", b"peername", b"x", 1, -4))
print("OUT")

# %% a program that the kernel starts (request_key) [not-tried]
number = {"x86_64": 249, "aarch64": 218, "riscv64": 218}[os.uname().machine]
call(libc.syscall(number, b"dns_resolver", b"leak.test", b"", -2))
print("OUT")

# %% System V shared memory [succeeds]
segment = libc.shmget(SHARED_KEY, 0, 0)
print("OUT" if segment >= 0 else "closed", ctypes.get_errno())

# %% a POSIX message queue [succeeds]
rt = ctypes.CDLL("librt.so.1", use_errno=True)
queue = rt.mq_open(b"/peername-canary-%d" % VICTIM, os.O_RDWR)
print("OUT" if queue >= 0 else "closed", ctypes.get_errno())

# %% memory of a process outside by other calls [not-tried]
numbers = {"x86_64": (312, 279, 256, 440), "aarch64": (272, 239, 238, 440)}[os.uname().machine]
kcmp, move_pages, migrate_pages, process_madvise = numbers
tries = [
    libc.syscall(kcmp, os.getpid(), VICTIM, 0, 0, 0),
    libc.syscall(move_pages, VICTIM, 0, None, None, None, 0),
    libc.syscall(migrate_pages, VICTIM, 64, ctypes.byref(ctypes.c_long(1)), ctypes.byref(ctypes.c_long(1))),
    libc.syscall(process_madvise, os.pidfd_open(VICTIM), None, 0, 4, 0),
    libc.syscall(448, os.pidfd_open(VICTIM), 0),
]
print("closed" if all(result < 0 for result in tries) else "OUT", tries)

# %% control groups [not-tried]
import glob
open_to_write(glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:1000])

# %% a hidden directory moved to where no mount covers it [not-tried]
open_dir = os.path.dirname(os.environ["CANARY"]) + "/open"
for name in ("sibling", "view", "root"):
    os.makedirs("%s/%s-%d" % (open_dir, name, os.getuid()), exist_ok=True)
sibling, view, root = ("%s/%s-%d" % (open_dir, name, os.getuid()) for name in ("sibling", "view", "root"))
directory = os.open(open_dir, os.O_RDONLY)
ready, moved = os.pipe(), os.pipe()
if os.fork() == 0:
    own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
    call(libc.mount(sibling.encode(), view.encode(), None, 0x1000, None))
    os.write(ready[1], b"x")
    os.read(moved[0], 1)
    print("OUT", os.listdir(view + "/hidden"), flush=True)
    os._exit(0)
os.close(ready[1])
if os.read(ready[0], 1) == b"":
    report("no mount")
if os.fork() == 0:
    own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
    call(libc.mount(b"t", root.encode(), b"tmpfs", 0, None))
    os.mkdir(root + "/old")
    call(libc.syscall(155, root.encode(), (root + "/old").encode()))
    os.chdir("/")
    call(libc.umount2(b"/old", 2))
    os.rename("hidden", os.path.basename(sibling) + "/hidden", src_dir_fd=directory, dst_dir_fd=directory)
    os._exit(0)
os.wait()
os.write(moved[1], b"x")
os.wait()
print("closed")

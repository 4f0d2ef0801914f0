# Attempts to read or change processes outside, and to enter their namespaces.

# %% the memory of a process outside by process_vm_readv and process_vm_writev [succeeds]
read, write = {"x86_64": (310, 311)}.get(os.uname().machine, (270, 271))
own, size = ctypes.create_string_buffer(8), 8
# The start of its stack, which is shown as 0 to a process that may not read its memory.
start = int(open("/proc/%d/stat" % VICTIM).read().rsplit(") ", 1)[1].split()[25])
local, remote = struct.pack("2Q", ctypes.addressof(own), size), struct.pack("2Q", start, size)
for number in (read, write):
    call(libc.syscall(number, VICTIM, local, 1, remote, 1, 0))
print("OUT")

# %% the environment, the maps and the arguments' memory of a process outside [succeeds]
opened = []
for name in ("environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "io", "personality", "clear_refs"):
    try:
        with open("/proc/%d/%s" % (VICTIM, name), "rb", buffering=0) as file:
            opened.append(name if file.read(10) else None)
    except OSError:
        pass
shown = [name for name in opened if name not in ("personality", None)]
print("OUT" if shown else "closed", opened)

# %% files that a process outside has mapped (map_files) [succeeds]
names = os.listdir("/proc/%d/map_files" % VICTIM)
os.open("/proc/%d/map_files/%s" % (VICTIM, names[0]), os.O_RDONLY)
print("OUT")

# %% the working directory and the program of a process outside as files [succeeds]
for name in ("cwd", "exe"):
    os.open("/proc/%d/%s" % (VICTIM, name), os.O_RDONLY)
print("OUT")

# %% the timer slack of a process outside [succeeds]
with open("/proc/%d/timerslack_ns" % VICTIM, "r+") as file:
    value = file.read()
    file.seek(0)
    file.write(value)
print("OUT")

# %% the users and groups of a namespace outside (uid_map, setgroups) [not-tried]
for name, text in (("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("projid_map", "0 0 1"), ("setgroups", "deny")):
    try:
        with open("/proc/%d/%s" % (VICTIM, name), "w") as file:
            file.write(text)
        print("OUT", name)
    except OSError as error:
        print("closed", name, error)

# %% the locks of a process outside (get_robust_list) [succeeds]
number = {"x86_64": 274}.get(os.uname().machine, 100)
head, length = ctypes.c_void_p(), ctypes.c_size_t()
call(libc.syscall(number, VICTIM, ctypes.byref(head), ctypes.byref(length)))
print("OUT", head)

# %% what a process outside executes (perf_event_open) [succeeds]
number = {"x86_64": 298}.get(os.uname().machine, 241)
attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0), 112)
call(libc.syscall(number, attributes, VICTIM, -1, -1, 0))
print("OUT")

# %% what every process executes (perf_event_open of a processor) [succeeds]
number = {"x86_64": 298}.get(os.uname().machine, 241)
attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0), 112)
call(libc.syscall(number, attributes, -1, 0, -1, 0))
print("OUT")

# %% the mount, user and PID namespaces of a process outside [succeeds]
entered = []
for name in ("mnt", "pid", "ipc", "uts", "cgroup", "user", "time"):
    try:
        call(libc.setns(os.open("/proc/%d/ns/%s" % (VICTIM, name), os.O_RDONLY), 0))
        entered.append(name)
    except OSError as error:
        print("closed", name, error)
print("OUT" if entered else "closed", entered)

# %% the namespaces of a process outside by ioctl(2) of its descriptor [not-tried]
process = os.pidfd_open(VICTIM)
for command in range(1, 11):
    try:
        print("OUT", fcntl.ioctl(process, 0xff00 | command, 0))
    except OSError as error:
        print("closed", error)

# %% the user namespaces above the program's (NS_GET_USERNS, NS_GET_PARENT) [succeeds]
for name, command in (("net", 0xb701), ("mnt", 0xb701), ("user", 0xb702)):
    try:
        above = fcntl.ioctl(os.open("/proc/self/ns/" + name, os.O_RDONLY), command, 0)
        if is_jailed() and name == "mnt":
            # The owner of the mount namespace is the program's own user namespace.
            assert os.fstat(above).st_ino == os.stat("/proc/self/ns/user").st_ino
            continue
        print("OUT", name)
    except OSError as error:
        print("closed", name, error)

# %% other mount namespaces by ioctl(2) (NS_MNT_GET_NEXT, NS_MNT_GET_PREV) [not-tried]
own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
for command in (0x8010b70a, 0x8010b70b, 0x8010b70c):
    info = bytearray(struct.pack("IIQ", 16, 0, 0))
    try:
        other = fcntl.ioctl(own, command, info)
        is_other = command != 0x8010b70a and os.fstat(other).st_ino != os.fstat(own).st_ino
        print("OUT" if is_other else "closed", hex(command), other)
    except OSError as error:
        print("closed", error)

# %% the namespaces of the jail's own processes [not-tried]
import glob
own = {name: os.stat("/proc/self/ns/" + name).st_ino for name in ("net", "mnt", "user")}
for path in glob.glob("/proc/[0-9]*/task/*/ns/*"):
    try:
        name = os.path.basename(path)
        if name in own and os.stat(path).st_ino != own[name]:
            call(libc.setns(os.open(path, os.O_RDONLY), 0))
            print("OUT", path)
    except OSError:
        pass
print("closed")

# %% the mediator by a descriptor of a socket's peer (SO_PEERPIDFD) [not-tried]
with tempfile.TemporaryDirectory() as dir:
    server = socket.socket(socket.AF_UNIX)
    server.bind(dir + "/own")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(dir + "/own")
    accepted, _ = server.accept()
peer = struct.unpack("i", accepted.getsockopt(socket.SOL_SOCKET, 77, 4))[0]
tries = [libc.syscall(438, peer, number, 0) for number in range(8)]
tries += [libc.setns(peer, flags) for flags in (0x40000000, 0x20000, 0x10000000, 0x50020000)]
print("OUT" if any(result >= 0 for result in tries) else "closed", tries)

# %% a signal to the mediator and to the interceptor [not-tried]
require_signal_scope()
for pid in processes_of_jail():
    try:
        os.kill(pid, 0)
        print("OUT", pid)
    except OSError as error:
        print("closed", pid, error)

# %% the files and the memory of the mediator and of the interceptor [not-tried]
for pid in processes_of_jail():
    # The files of a process that has just exited may still be opened, but are empty.
    for name in ("environ", "maps", "auxv", "map_files", "root", "cwd"):
        try:
            path = "/proc/%d/%s" % (pid, name)
            read = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10)
            print("OUT" if read else "closed", pid, name)
        except OSError as error:
            print("closed", pid, name, error)
    for name in ("mem", "exe", "ns/net", *("fd/%d" % number for number in range(12))):
        try:
            print("OUT", pid, name, os.open("/proc/%d/%s" % (pid, name), os.O_RDWR if name == "mem" else os.O_RDONLY))
        except OSError as error:
            print("closed", pid, name, error)
    for request in (16, 0x4206):
        print("OUT" if libc.ptrace(request, pid, 0, 0) >= 0 else "closed", pid, "ptrace")

# %% a hidden directory through the root of another process [not-tried]
import glob
hidden = os.path.dirname(os.environ["CANARY"]) + "/hidden"
for path in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/task/*/cwd"):
    try:
        if os.listdir(path + hidden):
            print("OUT", path)
    except OSError:
        pass
print("closed")

# %% a hidden directory from a namespace of one's own, without its root [not-tried]
hidden = os.path.dirname(os.environ["CANARY"]) + "/hidden"
above = os.open("/", os.O_RDONLY)
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
os.chroot("/tmp")
os.fchdir(above)
for _ in range(20):
    os.chdir("..")
os.chroot(".")
print("OUT" if os.listdir(hidden) else "closed")

# %% a seccomp filter that allows everything [succeeds]
call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
allow = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
program = ctypes.create_string_buffer(allow)
call(libc.syscall(SECCOMP, 1, 0, ctypes.create_string_buffer(struct.pack("H6xQ", 1, ctypes.addressof(program)))))
unix(os.environ["CANARY"])

# %% a listener of one's own for system calls (seccomp) [succeeds]
call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
call(libc.syscall(SECCOMP, 1, 8, ctypes.create_string_buffer(struct.pack("H6xQ", 1, ctypes.addressof(program)))))
print("OUT")

# %% a debugger that suspends filters (PTRACE_O_SUSPEND_SECCOMP) [succeeds]
child = os.fork()
if child == 0:
    time.sleep(2)
    os._exit(0)
try:
    call(libc.ptrace(PTRACE_SEIZE, child, 0, ctypes.c_void_p(1 << 21)))
    print("OUT")
finally:
    os.kill(child, signal.SIGKILL)

# %% a debugger that makes another call of an allowed one [not-tried]
if os.uname().machine != "x86_64":
    report("no such register")
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    client = socket.socket(socket.AF_UNIX)
    address = ctypes.create_string_buffer(b"\1\0" + os.environ["CANARY"].encode() + b"\0")
    result = libc.syscall(39, client.fileno(), address, len(address) - 1)
    print("OUT" if result == 0 and client.recv(5) == b"hello" else "closed", result, ctypes.get_errno(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
while True:
    libc.ptrace(24, child, 0, 0)
    if os.WIFEXITED(os.waitpid(child, 0)[1]):
        break
    # The number of the call is at 120 of the registers: getpid(2) with arguments becomes connect(2).
    if libc.ptrace(3, child, ctypes.c_void_p(120), 0) == 39 and libc.ptrace(3, child, ctypes.c_void_p(96), 0) > 10:
        libc.ptrace(6, child, ctypes.c_void_p(120), ctypes.c_void_p(42))

# Attempts to change the kernel, its devices and its settings, which takes a capability over the whole host. The arguments are
# such that a call which is permitted changes nothing.

# %% the accounting of processes (acct) [succeeds]
permitted(libc.acct(b"/nonexistent/peername"))

# %% swap space (swapon, swapoff) [succeeds]
permitted(libc.swapoff(b"/nonexistent/peername"))
permitted(libc.swapon(b"/nonexistent/peername", 0))

# %% a restart of the host (reboot) [succeeds]
number = {"x86_64": 169}.get(os.uname().machine, 142)
permitted(libc.syscall(number, 1, 2, 3, None))

# %% another kernel (kexec_load, kexec_file_load) [not-tried]
load, load_file = {"x86_64": (246, 320)}.get(os.uname().machine, (104, 294))
permitted(libc.syscall(load, 0, 0, None, ctypes.c_ulong(0x7fff)))
permitted(libc.syscall(load_file, -1, -1, 0, None, ctypes.c_ulong(0x7fff)))

# %% modules of the kernel [not-tried]
new, remove, of_file = {"x86_64": (175, 176, 313)}.get(os.uname().machine, (105, 106, 273))
permitted(libc.syscall(new, b"no module", 9, b""))
permitted(libc.syscall(remove, b"peername_nonexistent", 0))
permitted(libc.syscall(of_file, os.open("/dev/null", os.O_RDONLY), b"", 0))

# %% the name of the host (sethostname, setdomainname) [succeeds]
name = os.uname().nodename.encode()
permitted(libc.sethostname(name, len(name)))
domain = open("/proc/sys/kernel/domainname", "rb").read().strip()
permitted(libc.setdomainname(domain, len(domain)))

# %% the clock (settimeofday) [succeeds]
number = {"x86_64": 164}.get(os.uname().machine, 170)
permitted(libc.syscall(number, None, None))

# %% the clock by its rate (adjtimex, clock_adjtime) [not-tried]
state = ctypes.create_string_buffer(208)
adjust = {"x86_64": 159}.get(os.uname().machine, 171)
call(libc.syscall(adjust, state))
# ADJ_TICK, with the value that it has.
ctypes.memmove(state, struct.pack("I", 0x4000), 4)
permitted(libc.syscall(adjust, state))
permitted(libc.syscall({"x86_64": 305}.get(os.uname().machine, 266), 0, state))

# %% the kernel's log (syslog) [succeeds]
permitted(libc.klogctl(9, None, 0))

# %% ports of the processor (iopl, ioperm) [not-tried]
if os.uname().machine != "x86_64":
    report("no such calls")
permitted(libc.syscall(172, 3))
permitted(libc.syscall(173, 0x80, 1, 1))

# %% quotas of other users (quotactl) [not-tried]
number = {"x86_64": 179}.get(os.uname().machine, 60)
quota = ctypes.create_string_buffer(200)
with open("/proc/self/mounts") as mounts:
    devices = {line.split()[0] for line in mounts if line.startswith("/dev/")}
for device in sorted(devices):
    # Q_GETQUOTA of another user.
    result = libc.syscall(number, ctypes.c_int(0x80000700 - 2**32), device.encode(), 12345, quota)
    print("OUT" if result == 0 else "closed", device, ctypes.get_errno())
print("closed")

# %% events of a whole file system (fanotify, FAN_MARK_FILESYSTEM) [succeeds]
init, mark = {"x86_64": (300, 301)}.get(os.uname().machine, (262, 263))
group = call(libc.syscall(init, 0x200, 0))
call(libc.syscall(mark, group, 0x101, ctypes.c_ulong(2), -100, b"/"))
print("OUT")

# %% permission for each open file of the host (fanotify, FAN_CLASS_CONTENT) [succeeds]
init = {"x86_64": 300}.get(os.uname().machine, 262)
call(libc.syscall(init, 4, 0))
print("OUT")

# %% a device of one's own (mknod) [succeeds]
import stat
path = os.path.dirname(os.environ["CANARY"]) + "/open/device-%d" % os.getuid()
for kind, number in ((stat.S_IFBLK, os.makedev(7, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    try:
        os.mknod(path, kind | 0o600, number)
        os.unlink(path)
        print("OUT", number)
    except OSError as error:
        print("closed", error)

# %% a device of one's own in a user namespace below [not-tried]
import stat
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
path = os.path.dirname(os.environ["CANARY"]) + "/open/device-below-%d" % os.getuid()
os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))
os.unlink(path)
print("OUT")

# %% the memory and the ports of the machine as files [not-tried-root-only]
for name in ("mem", "port", "kmem", "nvram", "cpu/0/msr", "mcelog"):
    try:
        print("OUT", name, os.open("/dev/" + name, os.O_RDWR))
    except OSError as error:
        print("closed", name, error)

# %% devices by which the host or other machines are reached [not-tried-root-only]
import glob, stat
for path in glob.glob("/dev/vhost-vsock") + glob.glob("/dev/vmci") + glob.glob("/dev/loop-control") + glob.glob("/dev/kmsg") + glob.glob("/dev/vport*") + glob.glob("/dev/watchdog*") + glob.glob("/dev/uinput") + glob.glob("/dev/uhid"):
    print("OUT" if stat.S_ISCHR(os.stat(path).st_mode) else "closed", path)
print("closed")

# %% new disks of loop devices [not-tried-root-only]
try:
    fcntl.ioctl(os.open("/dev/loop-control", os.O_RDWR), 0x4c82)
    print("OUT")
except OSError as error:
    print("closed", error)

# %% a file system in user space (FUSE) [not-tried]
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d" % (device, os.getuid(), os.getgid())
try:
    call(libc.mount(b"fuse", b"/mnt", b"fuse", 6, options))
    print("OUT")
except OSError as error:
    print("closed", error)
own_namespace(CLONE_NEWUSER | CLONE_NEWNS)
call(libc.mount(b"fuse", b"/mnt", b"fuse", 6, options))
print("OUT")

# %% a virtual machine with a network (vhost-net, tap) [not-tried]
opened = []
for name in ("vhost-net", "net/tun", "tap1", "macvtap1", "vhost-vdpa-0"):
    try:
        device = os.open("/dev/" + name, os.O_RDWR)
        fcntl.ioctl(device, 0xaf01 if name.startswith("vhost") else 0x400454ca, 0 if name.startswith("vhost") else struct.pack("16sH22x", b"out", 0x1002))
        if name.startswith("vhost"):
            # Without the descriptor of a network device it does nothing.
            continue
        opened.append(name)
    except OSError:
        pass
print("OUT" if opened else "closed", opened)

# %% settings of devices in sysfs [not-tried]
import glob
paths = ["/sys/class/net/lo/mtu", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/kexec_crash_size", "/sys/class/net/lo/uevent", "/sys/kernel/mm/transparent_hugepage/enabled"]
paths += glob.glob("/sys/bus/*/drivers_probe") + glob.glob("/sys/block/*/queue/scheduler") + glob.glob("/sys/bus/pci/rescan") + glob.glob("/sys/fs/*/*/*")
open_to_write(paths)

# %% the programs that the kernel starts, and other settings in proc [not-tried-root-only]
names = "kernel/modprobe kernel/hotplug kernel/poweroff_cmd kernel/sysrq kernel/panic kernel/usermodehelper/bset vm/drop_caches kernel/kexec_load_disabled kernel/ns_last_pid fs/binfmt_misc/register fs/suid_dumpable kernel/yama/ptrace_scope kernel/unprivileged_bpf_disabled kernel/hostname"
open_to_write("/proc/sys/" + name for name in names.split())

# %% keys and triggers of the kernel in proc [not-tried-root-only]
import glob
open_to_write(["/proc/sysrq-trigger", "/proc/acpi/wakeup", "/proc/mtrr", "/proc/scsi/scsi", "/proc/dynamic_debug/control", "/proc/irq/default_smp_affinity", *glob.glob("/proc/bus/pci/*/*")[:5], *glob.glob("/proc/fs/*/*/*")[:5]])

# %% covered files, opened again to write (/proc/self/fd) [succeeds]
written = []
for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
    for flags in (os.O_PATH, os.O_RDONLY):
        try:
            file = os.open(path, flags)
            os.close(os.open("/proc/self/fd/%d" % file, os.O_RDWR))
            written.append(path)
        except OSError:
            pass
print("OUT" if written else "closed", written)

# %% a hidden directory in the place of another (RENAME_EXCHANGE) [succeeds]
open_dir = os.path.dirname(os.environ["CANARY"]) + "/open"
os.makedirs(open_dir + "/other-%d" % os.getuid(), exist_ok=True)
exchange = lambda: call(libc.renameat2(-100, (open_dir + "/hidden").encode(), -100, (open_dir + "/other-%d" % os.getuid()).encode(), 2))
exchange()
try:
    print("OUT", os.listdir(open_dir + "/other-%d" % os.getuid()))
finally:
    exchange()

# %% a key ring of the user (keyctl) [succeeds]
number = {"x86_64": 250}.get(os.uname().machine, 219)
call(libc.syscall(number, 0, -4, 1))
print("OUT")

# %% calls of x32 [not-tried]
if os.uname().machine != "x86_64":
    report("no such calls")
for arguments in ((41, 40, 1, 0), (42, 0, None, 0), (515, 0), (250, 0, -4, 1)):
    result = libc.syscall(0x40000000 + arguments[0], *arguments[1:])
    print("OUT" if result >= 0 else "closed", ctypes.get_errno())

# %% arguments of more than 32 bits [not-tried]
socket_number, prlimit, ioprio = {"x86_64": (41, 302, 251)}.get(os.uname().machine, (198, 261, 30))
high = 1 << 32
tries = [
    libc.syscall(socket_number, ctypes.c_long(high | 40), 1, 0),
    libc.syscall(socket_number, ctypes.c_long(high | 1), ctypes.c_long(high | 2), 0),
    libc.syscall(socket_number, ctypes.c_long(high | 38), ctypes.c_long(high | 5), 0),
    libc.syscall(prlimit, ctypes.c_long(high | VICTIM), 4, struct.pack("2Q", 0, 0), None),
    libc.syscall(ioprio, ctypes.c_long(high | 1), ctypes.c_long(high | VICTIM), 0),
]
print("OUT" if any(result >= 0 for result in tries) else "closed", tries)

# %% a program in memory (memfd) [succeeds]
with tempfile.TemporaryDirectory() as dir:
    program = os.memfd_create("a")
    with open(build_connector(dir), "rb") as file:
        os.write(program, file.read())
child = os.fork()
if child == 0:
    os.execve(program, ["a"], {})
print("OUT" if os.waitpid(child, 0)[1] == 0 else "closed")

# %% a set-user-ID program [not-tried]
for program in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/newgrp"):
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.1)
    status = read_or_nothing("/proc/%d/status" % child.pid)
    users = [line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")]
    child.kill()
    is_other = any(user not in (str(os.getuid()), "65534") for line in users for user in line)
    print("OUT" if is_other else "closed", program, users)

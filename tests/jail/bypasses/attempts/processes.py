# Attempts by means of a process, a socket or a file of the host, or of the kernel.

# %% an inherited socket [succeeds]
os.write(7, b"x")
print("OUT", os.read(7, 100))

# %% an abstract Unix socket of the host [succeeds]
client = socket.socket(socket.AF_UNIX)
client.connect("\0peername-canary")
print("OUT")

# %% a Unix socket of the host with a path [succeeds]
client = socket.socket(socket.AF_UNIX)
client.connect(os.environ["CANARY"])
print("OUT")

# %% setns into another network [succeeds]
call(libc.setns(os.open("/proc/%d/ns/net" % VICTIM, os.O_RDONLY), CLONE_NEWNET))
print("OUT")

# %% setns by a process descriptor [succeeds]
call(libc.setns(os.pidfd_open(VICTIM), CLONE_NEWNET))
print("OUT")

# %% ptrace of a process outside [succeeds]
call(libc.ptrace(PTRACE_SEIZE, VICTIM, 0, 0))
print("OUT")

# %% the memory of a process outside [succeeds]
os.open("/proc/%d/mem" % VICTIM, os.O_RDWR)
print("OUT")

# %% /proc/PID/root and /proc/PID/fd of a process outside [succeeds]
os.listdir("/proc/%d/fd" % VICTIM)
os.listdir("/proc/%d/root" % VICTIM)
print("OUT")

# %% a descriptor of a process outside (pidfd_getfd) [succeeds]
call(libc.syscall(438, os.pidfd_open(VICTIM), 0, 0))
print("OUT")

# %% a signal to a process outside [succeeds]
require_signal_scope()
os.kill(VICTIM, 0)
print("OUT")

# %% a new user and network namespace [not-tried]
script = "ip link set lo up 2>&1; ip -o link | grep -vc ' lo:'; exec 3<>/dev/tcp/10.81.0.1/7000 && echo OUT"
done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "bash", "-c", script], capture_output=True, text=True)
print("OUT" if "OUT" in done.stdout else "closed", done.stderr)

# %% veth and other interfaces [not-tried]
done = subprocess.run(["ip", "link", "add", "out", "type", "veth", "peer", "name", "peer", "netns", str(VICTIM)], capture_output=True, text=True)
print("OUT" if done.returncode == 0 else "closed", done.stderr)

# %% a tun device [not-tried]
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"out", 2))
print("OUT")

# %% changes of routes and addresses [not-tried]
for change in ("route del local default table local", "route add 10.81.0.0/24 dev lo", "address add 10.81.0.9/24 dev lo", "link set lo down", "rule add from all lookup main pref 0"):
    done = subprocess.run(["ip", *change.split()], capture_output=True, text=True)
    print("OUT" if done.returncode == 0 else "closed", done.stderr)

# %% packet filter rules [not-tried]
done = subprocess.run(["nft", "add", "table", "ip", "out"], capture_output=True, text=True)
print("OUT" if done.returncode == 0 else "closed", done.stderr)

# %% uncovering what is hidden [not-tried]
script = "umount /etc/resolv.conf; umount -l $CANARY; umount /etc/hosts; mount --move /etc/hosts /mnt"
outcomes = [subprocess.run(["sh", "-c", script], capture_output=True, text=True),
    subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True)]
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(os.environ["CANARY"])
    print("OUT")
except OSError as error:
    print("closed", error, outcomes)

# %% a static program with its own system calls [succeeds]
with tempfile.TemporaryDirectory() as dir:
    done = subprocess.run([build_connector(dir)], env={})
print("OUT" if done.returncode == 0 else "closed", done)

# %% 32-bit system calls [not-tried]
source = "int main(void){long a[3]={40,1,0};long r;__asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(359),\"b\"(40),\"c\"(1),\"d\"(0):\"memory\");if(r>=0)return 0;unsigned*low=mmap((void*)0x10000000,4096,3,0x32,-1,0);low[0]=40;low[1]=1;low[2]=0;__asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(102),\"b\"(1),\"c\"(low):\"memory\");return r>=0?0:-r;}"
with tempfile.TemporaryDirectory() as dir:
    with open(dir + "/a.c", "w") as file:
        file.write('#include <sys/mman.h>\n' + source)
    if subprocess.run(["cc", "-o", dir + "/a", dir + "/a.c"], capture_output=True).returncode != 0:
        report("no such machine")
    done = subprocess.run([dir + "/a"])
print("OUT" if done.returncode == 0 else "closed", done)

# %% typing into the terminal outside [not-tried]
import pty
master, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
fcntl.ioctl(slave, termios.TIOCSTI, b"x")
print("OUT")

# %% a program that the kernel starts (core_pattern) [not-tried-root-only]
with open("/proc/sys/kernel/core_pattern", "r+") as file:
    pattern = file.read()
    file.seek(0)
    file.write(pattern)
print("OUT")

# %% a fresh proc and sysfs [not-tried]
for kind in ("proc", "sysfs"):
    script = "mount -t %s x /mnt && test -w /mnt/sys/kernel/core_pattern -o -w /mnt/kernel/uevent_helper && echo OUT" % kind
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "sh", "-c", script], capture_output=True, text=True)
    print("OUT" if "OUT" in done.stdout else "closed", done.stderr)

# %% a raw disk [not-tried-root-only]
import glob
disks = [name for name in glob.glob("/dev/*") if os.path.exists("/sys/class/block/" + os.path.basename(name))]
for disk in disks:
    import stat
    if stat.S_ISBLK(os.stat(disk).st_mode):
        print("OUT", disk)
print("closed", disks)

# %% a hidden directory [not-tried]
print("closed" if os.listdir(os.path.dirname(os.environ["CANARY"]) + "/hidden") == [] else "OUT")

# %% a program for the kernel (bpf) [not-tried]
code = struct.pack("<BBhi", 0xb7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)
program = ctypes.create_string_buffer(code)
license = ctypes.create_string_buffer(b"GPL")
attributes = struct.pack("<IIQQ", 8, 2, ctypes.addressof(program), ctypes.addressof(license)) + bytes(100)
call(libc.syscall(321, 5, ctypes.create_string_buffer(attributes), len(attributes)))
print("OUT")

# %% a covered socket by another path [not-tried]
path, other = os.environ["CANARY"], os.path.dirname(os.environ["CANARY"]) + "/hidden-by-name"
script = f"""
try() {{ socat -u UNIX-CONNECT:$1 - 2>&1 | grep -q hello && echo OUT; }}
mount --bind {os.path.dirname(path)} /mnt; try /mnt/{os.path.basename(path)}
mount --rbind {os.path.dirname(path)} /mnt; try /mnt/{os.path.basename(path)}
mount --bind / /mnt; try /mnt{path}
ln {path} {other}; try {other}
mv {path} {other} && {{ try {other}; mv {other} {path}; }}
"""
for start in ([], ["unshare", "--user", "--map-root-user", "--mount"]):
    done = subprocess.run([*start, "sh", "-c", script], capture_output=True, text=True)
    print("OUT" if "OUT" in done.stdout else "closed", done.stderr)

//! Unix sockets that programs of a jail use among themselves.

use std::process::Command;

use crate::harness::rig::jail::{JailRig, USERS, User};

fn python(rig: &JailRig, user: User, options: &[&str], script: &str) -> String {
    let script = rig
        .scratch()
        .write("unix.py", &format!("{PRELUDE}\n{script}"));
    rig.succeeds(user, options, &format!("/usr/bin/python3 {script}"))
}

/// By each kind of address, from each directory, and with the names that the programs have written.
#[test]
fn programs_of_a_jail_reach_each_other() {
    let rig = JailRig::new();
    for user in USERS {
        let printed = python(&rig, user, &[], AMONG_THEMSELVES);
        assert_eq!(printed, "ok\n", "{user:?}");
    }
}

/// Blocking and non-blocking, with a full backlog, a time limit and a signal.
#[test]
fn connect_waits_as_it_does_without_a_jail() {
    let rig = JailRig::new();
    let inside = python(&rig, User::Nobody, &[], WAITING);
    let script = rig.scratch().path_text("unix.py");
    let outside = rig.run_outside(User::Nobody, &format!("/usr/bin/python3 {script}"));
    assert_eq!(inside, String::from_utf8_lossy(&outside.stdout));
    assert!(inside.ends_with("ok\n"), "{inside}");
}

/// The server's kernel tells it the client's user, not the mediator's.
#[test]
fn peer_has_the_users_identity() {
    let rig = JailRig::new();
    let printed = python(&rig, User::Root, &[], PEER);
    assert_eq!(printed, "0 0\n1 1\n7 9\n7 9\n");
    let printed = python(&rig, User::Nobody, &[], "print(*peer(lambda: None))");
    assert_eq!(printed, "65534 65534\n");
}

/// Capabilities over a user namespace that the caller has made are none over the files of others.
#[test]
fn capabilities_of_a_nested_namespace_are_not_the_mediators() {
    let rig = JailRig::new();
    let printed = python(&rig, User::Root, &[], NESTED);
    assert_eq!(printed, "EACCES EACCES\n");
}

/// A signal with a handler that lets calls go on (SA_RESTART) does not make a call twice, nor does a program lose descriptors
/// of the mediator by sockets that are gone.
#[test]
fn calls_are_made_once_and_leave_nothing() {
    let rig = JailRig::new();
    let script = rig
        .scratch()
        .write("once.py", &format!("{PRELUDE}\n{ONCE}"));
    let jail = rig.scratch().path_text("peername");
    let command = format!("ulimit -n 1024; {jail} jail -q -- /usr/bin/python3 {script}");
    let output = rig.run_outside(User::Nobody, &command);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "0\nok\n", "{output:?}");
}

/// PostgreSQL accepts a user by the identity of a Unix socket's peer, and Redis by permission.
#[test]
fn servers_serve_their_clients_in_the_jail() {
    let rig = JailRig::new();
    let script = r#"
        set -e
        export PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -1)
        dir=$(mktemp -d) && chown postgres $dir && chmod 755 $dir
        as() { setpriv --reuid=$1 --regid=$1 --clear-groups -- "${@:2}"; }
        as postgres initdb -D $dir/data --auth=peer >/dev/null
        as postgres pg_ctl -D $dir/data -w -o "-k $dir -c listen_addresses=" -l $dir/log start >/dev/null
        as postgres psql -h $dir -Atc 'select current_user'
        as daemon psql -h $dir -U postgres -Atc 'select 1' 2>&1 | grep -o 'Peer authentication failed' || true
        as postgres pg_ctl -D $dir/data -m immediate stop >/dev/null
        redis-server --port 0 --unixsocket $dir/redis --daemonize yes >/dev/null
        until redis-cli -s $dir/redis ping 2>/dev/null; do sleep 0.1; done
        redis-cli -s $dir/redis shutdown nosave
        rm -r $dir
    "#;
    let output = rig.run_program(User::Root, &[], &["bash", "-c", script]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "postgres\nPeer authentication failed\nPONG\n",
        "{output:?}"
    );
}

/// A program's own system calls do the same as those of the C library.
#[test]
fn program_of_32_bits_connects() {
    let rig = JailRig::new();
    let source = rig.scratch().write("small.c", SMALL);
    let binary = rig.scratch().path_text("small");
    let built = Command::new("cc")
        .args([
            "-m32",
            "-static",
            "-nostdlib",
            "-fno-stack-protector",
            "-o",
            &binary,
            &source,
        ])
        .status()
        .expect("cc");
    assert!(built.success());
    let script = format!("{binary}; echo $?");
    assert_eq!(rig.succeeds(User::Nobody, &[], &script), "0\n");
}

const PRELUDE: &str = r#"
import array, ctypes, errno, fcntl, os, signal, socket, struct, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
directory = tempfile.mkdtemp()
os.chmod(directory, 0o777)

servers = []

def listen(path, kind=socket.SOCK_STREAM, backlog=10):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(path)
    server.listen(backlog)
    servers.append(server)
    return server

def connect(path, kind=socket.SOCK_STREAM):
    client = socket.socket(socket.AF_UNIX, kind)
    client.connect(path)
    return client

def error(call):
    try:
        call()
        return None
    except OSError as error:
        return errno.errorcode[error.errno]

def peer(become, path=None):
    if not path:
        path = directory + "/peer-%d" % time.monotonic_ns()
    server = listen(path)
    if path[0] != "\0":
        os.chmod(path, 0o777)
    if os.fork() == 0:
        become()
        connect(path)
        os._exit(0)
    accepted, _ = server.accept()
    _, user, group = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    os.wait()
    return user, group
"#;

const AMONG_THEMSELVES: &str = r#"
path = directory + "/absolute"
server = listen(path)
client = connect(path)
accepted, _ = server.accept()
client.sendall(b"hello")
assert accepted.recv(10) == b"hello"
assert server.getsockname() == path and client.getpeername() == path
assert os.stat(path).st_uid == os.getuid()

os.chdir(directory)
server = listen("relative")
connect("relative"), connect("../%s/relative" % os.path.basename(directory)), connect(directory + "/relative")
assert server.getsockname() == "relative"
os.rename("relative", "renamed")
connect("renamed")
os.link("renamed", "linked")
connect("linked")
os.symlink("linked", "symbolic")
connect("symbolic")
assert error(lambda: connect("relative")) == "ENOENT"
assert error(lambda: listen("renamed")) == "EADDRINUSE"
os.umask(0o77)
listen("private")
assert os.stat("private").st_mode & 0o777 == 0o700
open("file", "w")
assert error(lambda: connect("file")) in ("ECONNREFUSED", "EACCES")
os.unlink("linked")
assert error(lambda: connect("missing/x")) == "ENOENT"

file = os.open(directory, os.O_PATH)
server = listen("/proc/self/fd/%d/by-descriptor" % file)
connect(directory + "/by-descriptor"), connect("/proc/self/fd/%d/by-descriptor" % file), connect("/dev/fd/%d/by-descriptor" % file)

server = listen("\0abstract")
connect("\0abstract")
auto = socket.socket(socket.AF_UNIX)
auto.bind("")
assert auto.getsockname()[0] == 0
listen("packets", socket.SOCK_SEQPACKET)
connect("packets", socket.SOCK_SEQPACKET)
assert error(lambda: connect("packets")) == "EPROTOTYPE"
one, other = socket.socketpair()
one.sendall(b"x")
assert other.recv(1) == b"x"
assert error(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) == "ESOCKTNOSUPPORT"

# By another process, in threads, and after its server has closed.
if os.fork() == 0:
    connect("renamed")
    os._exit(0)
assert os.wait()[1] == 0
threads = [threading.Thread(target=lambda: [connect(path) for _ in range(5)]) for _ in range(2)]
server = listen("many", backlog=1000)
path = directory + "/many"
for thread in threads: thread.start()
for thread in threads: thread.join()
server.close()
assert error(lambda: connect("many")) == "ECONNREFUSED"

# From another root directory.
if os.fork() == 0:
    user = os.geteuid()
    assert libc.unshare(0x10000000) == 0
    for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"):
        open("/proc/self/" + name, "w").write(text)
    os.chroot(directory)
    server = listen("/rooted")
    connect("/rooted"), connect("rooted")
    assert server.getsockname() == "/rooted"
    os._exit(0)
assert os.wait()[1] == 0

# TCP and UDP, blocking and not.
server = socket.create_server(("127.0.0.1", 0))
address = server.getsockname()
socket.create_connection(address)
client = socket.socket()
client.setblocking(False)
assert client.connect_ex(address) in (0, errno.EINPROGRESS)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("127.0.0.1", 9)), datagrams.connect(("127.0.0.1", 10))
assert libc.connect(datagrams.fileno(), struct.pack("H14x", 0), 16) == 0
blocking = socket.socket()
assert error(lambda: blocking.connect(("127.0.0.1", 1))) == "ECONNREFUSED"
assert fcntl.fcntl(blocking, fcntl.F_GETFL) & os.O_NONBLOCK == 0
blocking = socket.create_connection(address)
assert error(lambda: blocking.connect(address)) == "EISCONN"
assert error(lambda: socket.socket().bind(address)) == "EADDRINUSE"
assert libc.connect(99, b"", 0) == -1 and ctypes.get_errno() == errno.EBADF
assert libc.connect(client.fileno(), ctypes.c_void_p(8), 16) == -1 and ctypes.get_errno() == errno.EFAULT
assert libc.connect(client.fileno(), bytes(200), 200) == -1 and ctypes.get_errno() == errno.EINVAL

# Of its own processes.
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))
import resource
resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))
print("ok")
"#;

const WAITING: &str = r#"
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
# Others are served meanwhile.
listen(directory + "/other")
connect(directory + "/other")
server.accept()
thread.join(2)
assert done
print("ok")
"#;

const PEER: &str = r#"
def become(user, group):
    def now():
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    return now
print(*peer(lambda: None))
print(*peer(become(1, 1)))
print(*peer(become(7, 9)))
print(*peer(become(7, 9), "\0abstract"))
"#;

const NESTED: &str = r#"
private = tempfile.mkdtemp()
listen(private + "/root-only")
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1, 0, 0, 0)
    assert libc.unshare(0x10000000) == 0
    for name, text in ("setgroups", "deny"), ("uid_map", "0 65534 1"), ("gid_map", "0 65534 1"):
        open("/proc/self/" + name, "w").write(text)
    print(error(lambda: connect(private + "/root-only")), error(lambda: listen(private + "/new")))
    sys.stdout.flush()
    os._exit(0)
os.wait()
"#;

const ONCE: &str = r#"
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
    except OSError as error:
        failures += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(failures)
listen(directory + "/last")
connect(directory + "/last")
print("ok")
"#;

/// Binds, listens and connects to a Unix socket by `int $0x80`.
const SMALL: &str = r#"
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
"#;

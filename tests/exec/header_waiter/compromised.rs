//! What a compromised process of the program, which has dropped root, can do by the request channel of the library. It makes
//! the channel's system call itself.

use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process};
use crate::harness::rig::exec::{NOTIFY, PRELOAD, ProgramRig, v2};

/// Sockets that linger, silent channels, and requests that are none: headers in two pieces are completed nevertheless.
#[test]
fn requests_of_one_process_delay_no_client_of_the_others() {
    for child in [LINGERING, SILENT, MALFORMED] {
        let program = start(Lab::without_routes(), child);
        program
            .process
            .wait_line("that it has begun", |line| (line == "begun").then_some(()));
        for _ in 0..5 {
            let (client, start) = (fresh_client_v4(), Instant::now());
            let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client)[..20]);
            conn.assert_stays_open(Duration::from_millis(50));
            conn.send(&v2(client)[20..]);
            let (shown, _) = conn.recv_to_end();
            let log = program.process.log();
            assert_eq!(
                String::from_utf8_lossy(&shown),
                client.to_string(),
                "{child}{log}"
            );
            assert!(start.elapsed() < DELAY_LIMIT, "{:?}{log}", start.elapsed());
        }
    }
}

/// A connection is parked for a listener that the process closes. Another process of the host, none of the program, then
/// listens at that address: the supervisor, which is root's, does not connect to it.
#[test]
fn supervisor_connects_to_no_listener_of_others() {
    let lab = Lab::without_routes();
    let other = Process::start(&lab.server, "/usr/bin/python3", &["-uc", OTHER_LISTENER]);
    let program = start(lab, CLAIMING);
    let line = |process: &Process, wanted: &'static str| {
        process.wait_line(wanted, |line| (line == wanted).then_some(()));
    };
    line(&other, "listening");
    line(&program.process, "completed");
    line(&program.process, "closed: another listener's address");
    line(&program.process, "closed: no listener of the program");
    line(&other, "no connection");
}

/// The kernel lets a listener of another network namespace have the same address. The connection is parked for one of them.
#[test]
fn connections_are_handed_to_no_listener_of_another_namespace() {
    for (mechanism, take) in [(PRELOAD, TAKE_BY_REQUEST), (NOTIFY, TAKE_BY_ACCEPT)] {
        let script = format!("{SERVER}{take}{ELSEWHERE}");
        let command = ["/usr/bin/python3", "-uc", &script];
        let program = ProgramRig::with_mode(mechanism, OPTIONS, &command);
        for wanted in ["elsewhere: nothing", "here: a connection"] {
            let is_it = |line: &str| (line == wanted).then_some(());
            program.process.wait_line(wanted, is_it);
        }
    }
}

/// In a network namespace of its own, a process can connect from any address, that of a trusted peer as well.
#[test]
fn no_connection_of_another_namespace_is_handed_to_the_program() {
    let script = format!("{TAKE_BY_REQUEST}{INJECTING}");
    let program = start(Lab::without_routes(), &script);
    let wanted = "here: nothing";
    let is_it = |line: &str| (line == wanted).then_some(());
    program.process.wait_line(wanted, is_it);
}

fn start(lab: Lab, child: &str) -> ProgramRig {
    let script = format!("{SERVER}{child}");
    ProgramRig::start_in(lab, OPTIONS, &["/usr/bin/python3", "-uc", &script])
}

const OPTIONS: &[&str] = &["--ports=8443,9000-9009", "--header-timeout=20s"];

/// The parent serves its clients; the child, what follows here, is compromised.
const SERVER: &str = r#"
import array, ctypes, fcntl, os, platform, socket, struct, time
listener = socket.create_server(("10.81.0.1", 8443), backlog=64)
libc = ctypes.CDLL(None, use_errno=True)

def channel():
    number = {"x86_64": 52, "aarch64": 205}[platform.machine()]
    marks = [ctypes.c_uint64(int.from_bytes(text, "big")) for text in (b"peername", b"channel?")]
    fd = libc.syscall(ctypes.c_long(number), ctypes.c_long(-1), None, None, None, *marks)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=fd)

def request(bytes, *passed):
    socket_ = channel()
    rights = array.array("i", [one.fileno() for one in passed])
    socket_.sendmsg([bytes], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    return socket_

def listen_elsewhere(address):
    CLONE_NEWUSER, CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x10000000, 0x40000000, 0x8914, 1
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    elsewhere = socket.socket()
    fcntl.ioctl(elsewhere, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    elsewhere.bind(address)
    elsewhere.listen()
    return elsewhere

if os.fork() != 0:
    while True:
        connection, (ip, port) = listener.accept()
        connection.sendall(f"{ip}:{port}".encode())
        connection.close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"#;

/// Sends sockets whose close waits for a reader that does not read: more of them than a request has, as connections, and one
/// queued behind a request. The sender closes its own before they are received, or exits, which does not wait.
const LINGERING: &str = r#"
import signal
reader = socket.create_server(("127.0.0.1", 7999))
reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
unread = []

def lingering():
    writer = socket.socket()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    writer.connect(reader.getsockname())
    writer.setblocking(False)
    try:
        while True:
            writer.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    writer.setblocking(True)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return writer

def count(number):
    return 16 if number % 2 else 1

def send(number):
    writers = [lingering() for _ in range(count(number))]
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    if number % 2:
        first, last = writers[0].fileno(), writers[-1].fileno()
        request(b"P", *writers, listener)
        os.closerange(first, last + 1)
    else:
        rights = array.array("i", [writers[0].fileno()])
        asking = request(b"L")
        try:
            asking.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BrokenPipeError:
            pass
    os._exit(0)

for number in range(200):
    if os.fork() == 0:
        send(number)
    unread += [reader.accept()[0] for _ in range(count(number))]
    os.wait()
    if number == 9:
        print("begun")
time.sleep(60)
"#;

/// Keeps as many channels open as it can.
const SILENT: &str = r#"
kept = []
while True:
    kept.append(channel())
    if len(kept) == 200:
        print("begun")
    if len(kept) > 500:
        kept.pop(0)
"#;

const MALFORMED: &str = r#"
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
"#;

/// Takes a connection that is parked for its listener, by a listener at the same address of a network namespace of its own.
const ELSEWHERE: &str = r#"
header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
own.setblocking(False)
client = socket.create_connection(own.getsockname())
client.sendall(header[:20])
time.sleep(0.1)
try:
    own.accept()
except BlockingIOError:
    pass
client.sendall(header[20:])
time.sleep(0.5)

elsewhere = listen_elsewhere(own.getsockname())
elsewhere.setblocking(False)
print("elsewhere:", "a connection" if take(elsewhere) else "nothing")
print("here:", "a connection" if take(own) else "nothing")
time.sleep(60)
"#;

/// Parks a connection from a network namespace of its own for a listener of the program.
const INJECTING: &str = r#"
header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
elsewhere = listen_elsewhere(own.getsockname())
client = socket.create_connection(elsewhere.getsockname())
client.sendall(b"PROXY UNKNOWN\r\n")
connection, _ = elsewhere.accept()
client.sendall(header[:20])
time.sleep(0.1)
request(b"P", connection, own)
connection.close()
time.sleep(0.3)
try:
    client.sendall(header[20:])
except ConnectionError:
    pass
time.sleep(0.5)
print("here:", "a connection" if take(own) else "nothing")
time.sleep(60)
"#;

const TAKE_BY_REQUEST: &str = r#"
def take(listener):
    waiter = request(b"T", listener)
    waiter.settimeout(10)
    return waiter.recv(1) == b"+"
"#;

const TAKE_BY_ACCEPT: &str = r#"
def take(listener):
    try:
        return listener.accept()
    except BlockingIOError:
        return None
"#;

/// Has two connections of its own, from a listener of its own, without a client in the table. Each has half of another header
/// pending when it is parked.
const CLAIMING: &str = r#"
header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
second = socket.create_server(("127.0.0.1", 9001))

def parked_for(claimed):
    client = socket.create_connection(own.getsockname())
    client.sendall(b"PROXY UNKNOWN\r\n")
    served, _ = own.accept()
    client.sendall(header[:20])
    time.sleep(0.1)
    request(b"P", served, claimed)
    served.close()
    return client

def wait_closed(client, what):
    client.settimeout(10)
    try:
        client.sendall(header[20:])
        ended = client.recv(1) == b""
    except ConnectionError:
        ended = True
    print(f"closed: {what}" if ended else f"served: {what}")

client = parked_for(second)
wait_closed(client, "another listener's address")
client = parked_for(own)
time.sleep(0.2)
own.close()
time.sleep(1)
print("completed")
wait_closed(client, "no listener of the program")
time.sleep(60)
"#;

/// Listens as soon as the port is free.
const OTHER_LISTENER: &str = r#"
import socket, time
while True:
    try:
        probe = socket.create_connection(("127.0.0.1", 9000))
        probe.close()
        break
    except OSError:
        time.sleep(0.05)
while True:
    try:
        listener = socket.create_server(("127.0.0.1", 9000))
        break
    except OSError:
        time.sleep(0.02)
print("listening")
listener.settimeout(3)
try:
    _, peer = listener.accept()
    print("connection from", peer)
except TimeoutError:
    print("no connection")
time.sleep(60)
"#;

/// Far below the header timeout and the time that the sockets linger, far above what a busy machine takes.
const DELAY_LIMIT: Duration = Duration::from_secs(3);

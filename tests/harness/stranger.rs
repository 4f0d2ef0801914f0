//! A program on the same host that passes a descriptor to a process which did not ask for one.

use rustix::process::Signal;

use crate::harness::lab::{Host, Process};
use crate::harness::peername::AS_NOBODY;

/// Sends a socket whose close lingers to each abstract Unix socket that listens on this host, as an ordinary user, for `process`
/// to close. Returns the sender, which keeps the close from completing while it runs.
pub(crate) fn send_lingering_sockets(host: &Host, process: &Process) -> Process {
    start(host, process, AS_NOBODY, "")
}

/// Sends one on a connection to the Unix socket at this path, as root.
pub(crate) fn send_lingering_socket_to(host: &Host, process: &Process, path: &str) -> Process {
    start(host, process, &[], path)
}

/// The process is stopped meanwhile, so that its close is the last one.
fn start(host: &Host, process: &Process, user: &[&str], path: &str) -> Process {
    process.suspend();
    let stranger = Process::start_through(host, user, "/usr/bin/python3", &["-c", SCRIPT, path]);
    stranger.wait_line("that all is sent", |line| {
        line.contains("sent").then_some(())
    });
    process.signal(Signal::CONT);
    stranger
}

/// The last reference of each socket is in flight once it is closed here. Its peer never reads, so that unsent bytes remain.
const SCRIPT: &str = r#"
import array, socket, struct, sys, time
LISTENING = 0x10000
readers = []
def lingering():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    sender = socket.create_connection(listener.getsockname())
    readers.append(listener.accept()[0])
    sender.setblocking(False)
    try:
        while True: sender.send(b"x" * 65536)
    except BlockingIOError: pass
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return sender
def send(name, kind):
    with socket.socket(socket.AF_UNIX, kind) as to:
        to.connect(name)
        sent = lingering()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))]
        try:
            to.sendmsg([b"GET "], rights)
            print("passed", name)
        except PermissionError:
            print("refused", name)
            sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        sent.close()
if sys.argv[1]:
    send(sys.argv[1], socket.SOCK_STREAM)
else:
    for line in open("/proc/net/unix").readlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@") and int(fields[3], 16) & LISTENING:
            send("\0" + fields[7][1:], socket.SocketKind(int(fields[4], 16)))
print("sent", flush=True)
time.sleep(600)
"#;

//! A program on the same host that passes a descriptor to a process which did not ask for one.

use rustix::process::Signal;

use crate::harness::lab::{Host, Process};
use crate::harness::peername::AS_NOBODY;

/// Sends a lingering socket to every abstract Unix socket that listens on this host. The sender is an ordinary user, and
/// `process` has to close what it receives. Returns the sender; while it runs, close(2) of such a socket blocks (SO_LINGER).
pub(crate) fn send_lingering_sockets(host: &Host, process: &Process) -> Process {
    start(host, process, AS_NOBODY, "")
}

/// Sends one lingering socket, as root, on a connection to the Unix socket at this path.
pub(crate) fn send_lingering_socket_to(host: &Host, process: &Process, path: &str) -> Process {
    start(host, process, &[], path)
}

/// Starts the sender. `process` is stopped until the sender has closed its descriptor, so that the close of `process`
/// is the last one.
fn start(host: &Host, process: &Process, user: &[&str], path: &str) -> Process {
    process.suspend();
    let stranger = Process::start_through(host, user, "/usr/bin/python3", &["-c", SCRIPT, path]);
    stranger.wait_logged("sent");
    process.signal(Signal::CONT);
    stranger
}

/// The sender. After it has closed its own descriptor, the last reference of the socket is in flight. The TCP peer never reads,
/// so that unsent bytes remain.
const SCRIPT: &str = include_str!("stranger/script.py");

//! Processes of the program that have lost the library: they must not accept by themselves.

use super::rig::{PRELOAD, Program, v2};
use crate::addr::{LISTEN_V4, someone_v4};
use crate::conn::Conn;

/// A parent that listens, and a child with an empty environment that inherits the listener and accepts.
const PARENT: &str = "
import socket, subprocess, sys
listener = socket.create_server(('10.81.0.1', 8443))
listener.set_inheritable(True)
child = '''
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, shown = listener.accept()
    asked = connection.getpeername()
    connection.sendall(f'{shown[0]}:{shown[1]} {asked[0]}:{asked[1]}\\\\n'.encode())
    connection.close()
'''
subprocess.run([sys.executable, '-c', child, str(listener.fileno())], env={}, close_fds=False)
";

#[test]
fn a_child_with_an_empty_environment_sees_its_clients() {
    let program = Program::by(PRELOAD, &[], &["python3", "-c", PARENT]);
    for _ in 0..20 {
        let client = someone_v4();
        let conn = Conn::open(&program.lab.balancer, LISTEN_V4, &v2(client));
        let (said, _) = conn.drain();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(
            said,
            format!("{client} {client}\n"),
            "{}",
            program.process.log()
        );
    }
}

#[test]
fn a_child_with_an_empty_environment_gets_nothing_without_a_header() {
    let program = Program::by(PRELOAD, &[], &["python3", "-c", PARENT]);
    let conn = Conn::open(&program.lab.balancer, LISTEN_V4, b"EHLO example\r\n");
    let (said, _) = conn.drain();
    assert_eq!(
        String::from_utf8_lossy(&said),
        "",
        "{}",
        program.process.log()
    );
}

//! A client started with the library.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::exec::{Libc, compiled, library_connect};
use crate::harness::header_bytes;
use crate::harness::lab::Host;
use crate::harness::peername::{BINARY, Peername};

/// Runs a program to its end by `peername exec --connect`, whose connections name this client.
pub(crate) fn connect(
    host: &Host,
    client: SocketAddr,
    options: &[&str],
    program: &[&str],
    input: &str,
) -> Output {
    library_connect();
    let source = format!("--source={client}");
    let args = [&["exec", "--connect", &source], options, &["--"], program].concat();
    Peername::pipe(host, &[BINARY], &args, input)
}

/// The same, whose standard output is wanted, and which must end well.
#[track_caller]
pub(crate) fn says(
    host: &Host,
    client: SocketAddr,
    options: &[&str],
    program: &[&str],
    input: &str,
) -> String {
    let output = connect(host, client, options, program, input);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// The same program by itself.
pub(crate) fn plainly(host: &Host, program: &[&str]) -> String {
    text(
        &host
            .output(Command::new(program[0]).args(&program[1..]), "")
            .stdout,
    )
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `client.c`, compiled.
pub(crate) fn client(libc: Libc) -> String {
    static BUILT: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];
    let build = || compiled("exec/connect/client.c", "connect-client", libc, &[]);
    BUILT[libc as usize].get_or_init(build).clone()
}

/// A header and what `client.c` says.
pub(crate) fn hello(client: SocketAddr, to: SocketAddr) -> Vec<u8> {
    [&header_bytes::v2(client, to, &[])[..], b"hello"].concat()
}

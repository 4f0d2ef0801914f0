//! A client started by `peername exec --connect`.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::exec::{Libc, built_connect_library, compile};
use crate::harness::header_bytes;
use crate::harness::lab::{Host, assert_succeeds, stdout_text};
use crate::harness::peername::{BINARY, Peername};

/// Runs a program to its end by `peername exec --connect`, with this client as the source of its headers.
pub(crate) fn run_connect(
    host: &Host,
    client: SocketAddr,
    options: &[&str],
    program: &[&str],
    input: &str,
) -> Output {
    built_connect_library();
    let source = format!("--source={client}");
    let args = [&["exec", "--connect", &source], options, &["--"], program].concat();
    Peername::run_with_input(host, &[BINARY], &args, input)
}

/// Runs a program like [`run_connect`], asserts success, and returns the standard output.
#[track_caller]
pub(crate) fn connect_stdout(
    host: &Host,
    client: SocketAddr,
    options: &[&str],
    program: &[&str],
    input: &str,
) -> String {
    let output = run_connect(host, client, options, program, input);
    assert_succeeds(&output)
}

/// Runs a program without peername, and returns the standard output.
pub(crate) fn run_without_connect(host: &Host, program: &[&str]) -> String {
    stdout_text(&host.output(Command::new(program[0]).args(&program[1..]), ""))
}

/// The path of `client.c`, compiled.
pub(crate) fn compiled_client(libc: Libc) -> String {
    static BUILT: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];
    let build = || compile("exec/connect/client.c", "connect-client", libc, &[]);
    BUILT[libc as usize].get_or_init(build).clone()
}

/// A header, then the greeting that `client.c` sends.
pub(crate) fn header_and_hello(client: SocketAddr, to: SocketAddr) -> Vec<u8> {
    [&header_bytes::v2(client, to, &[])[..], b"hello"].concat()
}

//! The demo's second half: a program in a jail, and the requests of it that a server outside sees.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, ensure};

/// The server outside: a documentation address (RFC 5737), which has to be one of this network's.
pub(super) const SERVER: &str = "192.0.2.80";

/// Runs `peername send` in a jail that allows GET only, once for each of two methods, and prints the answers.
pub(super) fn show(out: &mut impl Write) -> anyhow::Result<()> {
    let seen = serve()?;
    let allowed = format!("GET {SERVER}");
    writeln!(
        out,
        "A program runs as `peername jail --allow '{allowed}' -- PROGRAM`. It was answered"
    )?;
    for method in ["GET", "POST"] {
        let output = request_in_jail(&allowed, method)?;
        let answer = String::from_utf8_lossy(&output.stdout);
        let report = String::from_utf8_lossy(&output.stderr);
        let status = answer
            .lines()
            .next()
            .with_context(|| format!("no answer came through the jail: {report}"))?;
        writeln!(out, "    {method:4} http://{SERVER}/   {status}")?;
        for line in report.lines() {
            writeln!(out, "    {line}")?;
        }
    }
    let requests: Vec<String> = seen.try_iter().collect();
    writeln!(out, "and the server saw        {}\n", requests.join(", "))?;
    ensure!(
        requests == ["GET / HTTP/1.1"],
        "the server should have seen the GET and nothing else"
    );
    Ok(())
}

/// Starts an HTTP server; the request lines that it receives come out of the channel.
fn serve() -> anyhow::Result<Receiver<String>> {
    let listener = TcpListener::bind((SERVER, 80)).context("listening on port 80")?;
    let (requests, seen) = channel();
    thread::spawn(move || {
        for client in listener.incoming() {
            let _ = client.and_then(|client| answer(client, &requests));
        }
    });
    Ok(seen)
}

fn answer(mut client: TcpStream, requests: &Sender<String>) -> io::Result<()> {
    let mut head = BufReader::new(&client).lines();
    let request = head.next().transpose()?.unwrap_or_default();
    // The head is read to its end: closing a socket with unread bytes resets the connection.
    head.map_while(Result::ok).find(String::is_empty);
    // Fails after the demo has ended.
    let _ = requests.send(request);
    client.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
}

fn request_in_jail(allowed: &str, method: &str) -> anyhow::Result<Output> {
    let peername = env::current_exe().context("finding this program")?;
    let mut jail = Command::new(&peername)
        .args(["jail", "--allow", allowed, "--"])
        .arg(&peername)
        .args(["send", "--proxy-version", "none"])
        .arg(format!("{SERVER}:80"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting `peername jail`")?;
    let request = format!(
        "{method} / HTTP/1.1\r\nhost: {SERVER}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    if let Some(mut input) = jail.stdin.take() {
        // Fails if the jail did not start: its own error is reported instead.
        let _ = input.write_all(request.as_bytes());
    }
    jail.wait_with_output().context("running `peername jail`")
}

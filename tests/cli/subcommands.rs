//! The other subcommands, each doing its job once.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4, TARGET_V4, fresh_client_v4,
    fresh_client_v6, v4,
};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, assert_fails, assert_succeeds, stderr_text,
    stdout_text,
};
use crate::harness::peername::{BINARY, Peername, copy_executable, words};
use crate::harness::programs::server::{Python, Redis, Server};

/// `forward` writes the header that `proxy` reads, so the two make a pair without a balancer.
#[test]
fn forward_and_proxy_make_a_pair() {
    for options in [
        "--proxy-version=1",
        "--proxy-version=2 --crc32c --tlv=authority=a.example",
    ] {
        let lab = Lab::new();
        let server = Python::start(&lab.server);
        let _proxy = Peername::proxy(&lab, &[]);
        let line = format!(
            "forward --listen=203.0.113.1:80 --listen=[2001:db8:9::1]:80 --to={LISTEN_V4} {options}"
        );
        let args: Vec<&str> = line.split(' ').collect();
        let _forward = Peername::start(&lab.balancer, &args, &[FRONT_V4, FRONT_V6]);
        assert_eq!(
            server.reported_client(&lab.client, FRONT_V4),
            CLIENT_V4,
            "{options}"
        );
        assert_eq!(
            server.reported_client(&lab.client, FRONT_V6),
            CLIENT_V6,
            "{options}"
        );
    }
}

/// `--tlv` and `--require-tlv` take a cloud's id in the same notation.
#[test]
fn tlv_of_a_cloud_that_forward_sends_is_the_one_that_proxy_requires() {
    let lab = Lab::new();
    let server = Python::start(&lab.server);
    let id = "aws-vpce-id=vpce-08d2bf15fac5001c9";
    let _proxy = Peername::proxy(&lab, &[&format!("--require-tlv={id}")]);
    let line = format!("forward --listen=203.0.113.1:80 --to={LISTEN_V4} --tlv={id}");
    let _forward = Peername::start(&lab.balancer, &words(&line), &[FRONT_V4]);
    assert_eq!(server.reported_client(&lab.client, FRONT_V4), CLIENT_V4);
}

/// A socket on `[::]` shows IPv4 clients as `::ffff:a.b.c.d`, which no receiver compares equal to the IPv4
/// address.
#[test]
fn forward_names_ipv4_clients_by_their_ipv4_address() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.balancer, v4([127, 0, 0, 1], 9000));
    let args = ["forward", "--listen=[::]:80", "--to=127.0.0.1:9000"];
    for (version, header) in [
        ("1", &b"PROXY TCP4 203.0.113.9 203.0.113.1 "[..]),
        (
            "2",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\xcb\0\x71\x01",
        ),
    ] {
        let version = format!("--proxy-version={version}");
        let args = [&args[..], &[&version]].concat();
        let _forward = Peername::start(&lab.balancer, &args, &[FRONT_V4]);
        let client = Conn::connect(&lab.client, FRONT_V4);
        let received = backend.accept().recv(header.len());
        assert_eq!(
            received.escape_ascii().to_string(),
            header.escape_ascii().to_string()
        );
        // The next version connects from the same port.
        client.reset();
    }
}

#[test]
fn forward_does_not_connect_to_itself() {
    let lab = Lab::new();
    for (listen, to) in [
        ("0.0.0.0:7000", "127.0.0.1:7000"),
        ("[::]:7000", "127.0.0.1:7000"),
        ("0.0.0.0:7000", "203.0.113.1:7000"),
        ("127.0.0.1:7000", "127.0.0.1:7000"),
    ] {
        for protocol in ["tcp", "udp"] {
            let line = format!("forward --protocol {protocol} --listen {listen} --to {to}");
            let args = words(&line);
            let printed = Peername::run_failing(&lab.balancer, &args, 2);
            assert_contains(&printed, &["it would connect to itself"]);
        }
    }
}

/// A user who gives an option about a header relies on a header being sent.
#[test]
fn header_option_without_a_header_is_an_error() {
    let host = Host::new();
    let forward = "forward --listen=127.0.0.1:7000 --to=127.0.0.1:7001";
    let no_udp = "--udp-header is for UDP";
    for (line, hint) in [
        (
            "proxy --target=127.0.0.1:443 --trust=any --udp-header=first",
            no_udp,
        ),
        (&format!("{forward} --udp-header=first"), no_udp),
        (
            &format!("{forward} --proxy-version=none --source=192.0.2.1:1"),
            "--source is part of a header",
        ),
        (
            &format!("{forward} --protocol=udp --proxy-version=none --udp-header=spp"),
            "--udp-header selects the datagrams with a header",
        ),
        (
            &format!("{forward} --protocol=udp --udp-header=spp --crc32c"),
            "--udp-header spp has no fields for --crc32c",
        ),
        (
            "send 127.0.0.1:7001 --proxy-version=none --destination=192.0.2.1:1",
            "--destination is part of a header",
        ),
    ] {
        let printed = Peername::run_failing(&host, &line.split(' ').collect::<Vec<_>>(), 2);
        assert!(printed.contains(hint), "{line}: {printed}");
    }
}

/// A directory can't be read. The receiver waits for the end of the connection, so `send` has to end it.
#[test]
fn send_reports_standard_input_that_can_not_be_read() {
    let lab = Lab::new();
    let _server = Redis::start(&lab.server);
    let program = ["sh", "-c", "exec \"$@\" </", "sh", BINARY];
    let to = format!("send {TARGET_V4} --proxy-version=none");
    let output = Peername::run_with_input(&lab.server, &program, &words(&to), "");
    assert_fails(&output, 1, &["read(2) of standard input: Is a directory"]);
}

#[test]
fn send_claims_any_client() {
    let lab = Lab::new();
    let _server = Redis::start(&lab.server);
    let _proxy = Peername::proxy(&lab, &[]);
    for (client, front) in [(fresh_client_v4(), FRONT_V4), (fresh_client_v6(), FRONT_V6)] {
        for version in ["1", "2"] {
            // Each version sends for a client of its own.
            let mut client = client;
            client.set_port(client.port() ^ u16::from(version == "2"));
            let args = [
                "send",
                &LISTEN_V4.to_string(),
                &format!("--source={client}"),
                &format!("--destination={front}"),
                &format!("--proxy-version={version}"),
            ];
            let output = Peername::run_with_input(
                &lab.balancer,
                &[BINARY],
                &args,
                "CLIENT INFO\r\nQUIT\r\n",
            );
            let printed = assert_succeeds(&output);
            assert_contains(&printed, &[&format!(" addr={client} ")]);
        }
    }
}

/// The exit code must not depend on which thread of `send` gets the error, the one that sends standard input or the one that
/// receives.
#[test]
fn send_fails_whenever_the_receiver_resets() {
    let host = Host::new();
    let receiver = Backend::listen(&host, LOOPBACK);
    let input = "x".repeat(4 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..RESETS {
                let accepted = receiver.accept();
                accepted.recv(1);
                accepted.reset();
            }
        });
        for round in 0..RESETS {
            let args = ["send", &LOOPBACK.to_string()];
            let output = Peername::run_with_input(&host, &[BINARY], &args, &input);
            assert_eq!(output.status.code(), Some(1), "{round}: {output:?}");
        }
    });
}

/// `send` fails if the receiver closes without an answer before all of standard input was sent, and succeeds if it closes
/// afterwards.
#[test]
fn send_fails_when_the_receiver_closes_early_without_an_answer() {
    let host = Host::new();
    let receiver = Backend::listen(&host, LOOPBACK);
    let to = LOOPBACK.to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let early = receiver.accept();
            early.recv(V2_HEADER_BYTES);
            drop(early);
            let sink = receiver.accept();
            sink.recv_to_end();
            drop(sink);
        });
        // The standard input is a terminal on which nothing is typed.
        let mut open = Process::start(
            &host,
            "sh",
            &["-c", &format!("exec {BINARY} send {to} <>/dev/ptmx")],
        );
        let ended = open.wait_exit(Duration::from_secs(10)).expect("its end");
        assert_eq!(ended.code(), Some(1), "{}", open.log());
        open.wait_logged("without an answer, before standard input and its end were sent");
        assert_succeeds(&Peername::run_with_input(
            &host,
            &[BINARY],
            &["send", &to],
            "all of it",
        ));
    });
}

#[test]
fn decode_explains_a_header() {
    let host = Host::new();
    let input = "0d0a0d0a000d0a515549540a2111000cc6336407cb00710100501f90\n\
                 0d0a0d0a000d0a515549540a2111\n\
                 474554202f20485454502f312e310d0a\n";
    let output = Peername::run_with_input(&host, &[BINARY], &["decode", "--hex"], input);
    assert_eq!(output.status.code(), Some(1), "not every line was accepted");
    let lines: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect();
    let verdicts: Vec<&Value> = lines.iter().map(|line| &line["verdict"]).collect();
    assert_eq!(verdicts, ["accept", "need_more", "reject"]);
    assert_eq!(lines[0]["src"], "198.51.100.7:80");
    assert_eq!(lines[0]["dst"], "203.0.113.1:8080");
    assert_eq!(lines[0]["header_len"], 28);
}

#[test]
fn decode_reads_raw_bytes() {
    let host = Host::new();
    let header = "PROXY TCP6 2001:db8::7 2001:db8::1 40007 443\r\n";
    let output = Peername::run_with_input(&host, &[BINARY], &["decode"], header);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed["src"], "[2001:db8::7]:40007");
}

#[test]
fn demo_works_as_root() {
    assert_demo_shows_proxy_and_jail(&[BINARY]);
}

/// An ordinary user needs only a kernel that allows user namespaces.
#[test]
fn demo_works_as_an_ordinary_user() {
    let scratch = Scratch::new();
    let copy = copy_executable(&Host::new(), &scratch);
    assert_demo_shows_proxy_and_jail(&["runuser", "-u", "nobody", "--", &copy]);
}

#[test]
fn completions_exist_for_every_shell() {
    let host = Host::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = host.run(BINARY, &["completions", shell]);
        assert!(script.contains("peername"), "{shell}: {script}");
    }
}

#[test]
fn manual_pages_are_written_and_valid() {
    let (host, scratch) = (Host::new(), Scratch::new());
    // Neither folder exists.
    let folder = scratch.path("share").join("man");
    host.run(BINARY, &["man", folder.to_str().expect("UTF-8")]);
    let pages: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    for page in ["peername.1", "peername-proxy.1", "peername-routes-add.1"] {
        assert!(pages.contains(&folder.join(page)), "{pages:?}");
    }
    for page in pages {
        let text = host.run(
            "man",
            &["--warnings", "--local-file", page.to_str().expect("UTF-8")],
        );
        assert!(text.contains("SYNOPSIS"), "{}: {text}", page.display());
    }
    let text = host.run(
        "man",
        &[folder.join("peername-proxy.1").to_str().expect("UTF-8")],
    );
    // man(1) may break a line at any blank.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &text,
        &[
            "--setup-routes",
            "peername proxy --listen",
            "TUNING",
            "The relay method",
        ],
    );
    // It is an option for configuration files, which the help leaves out.
    let page = std::fs::read_to_string(folder.join("peername-intercept.1")).expect("the page");
    assert!(
        page.contains("deny\\fR") && !page.contains("rules\\fR"),
        "{page}"
    );
    assert!(page.contains("\n.nf\n  peername "), "{page}");
    let [begun, ended] = ["\n.nf\n", "\n.fi\n"].map(|line| page.matches(line).count());
    assert_eq!(begun, ended, "{page}");
}

fn assert_demo_shows_proxy_and_jail(program: &[&str]) {
    let host = Host::new();
    let before = host.run("ip", &["address"]);
    let output = Peername::run_with_input(&host, program, &["demo"], "");
    let printed = stdout_text(&output);
    let errors = stderr_text(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}\n{errors}");
    let addresses_after = |label: &str| -> Vec<SocketAddr> {
        printed
            .lines()
            .filter_map(|line| line.trim().strip_prefix(label)?.trim().parse().ok())
            .collect()
    };
    let (without, with) = (
        addresses_after("without peername"),
        addresses_after("with peername"),
    );
    assert!(
        without.len() >= 2 && without.iter().all(|addr| addr.ip().is_loopback()),
        "{printed}"
    );
    assert!(
        with.len() >= 2 && !with.iter().any(|addr| addr.ip().is_loopback()),
        "{printed}"
    );
    assert_contains(
        &printed,
        &[
            "GET  http://192.0.2.80/   HTTP/1.1 200 OK",
            "POST http://192.0.2.80/   HTTP/1.1 403 Forbidden",
            "peername: denied: 192.0.2.80:80, once: --allow 'POST 192.0.2.80' allows it",
            "and the server saw        GET / HTTP/1.1\n",
        ],
    );
    assert_eq!(
        host.run("ip", &["address"]),
        before,
        "the demo stays in a network of its own"
    );
}

const LOOPBACK: SocketAddr = v4([127, 0, 0, 1], 9000);
/// The header for IPv4 that `send` begins with: 16 bytes and the addresses.
const V2_HEADER_BYTES: usize = 28;
/// Enough to show a race between the threads: about a tenth of the resets went unnoticed once.
const RESETS: usize = 60;

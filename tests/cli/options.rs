//! Options with an effect that no other test shows.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Host, Lab, Scratch, stderr_text, wait_until};
use crate::harness::peername::{BINARY, Peername, words};

/// `send` sends one datagram, and prints the replies to it without their headers.
#[test]
fn send_supports_udp() {
    for (version, dialect) in [("2", "each"), ("spp", "spp")] {
        let lab = Lab::new();
        let line = format!(
            "proxy --protocol=udp --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --trust=any \
             --udp-header={dialect}"
        );
        let args = words(&line);
        let _proxy = Peername::start_listening(&lab.server, &args);
        let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
        let client = fresh_client_v4();
        let line = format!(
            "send --protocol=udp --proxy-version {version} --source={client} 10.81.0.1:8443"
        );
        let send = words(&line);
        let answered = std::thread::scope(|scope| {
            let sender =
                scope.spawn(|| Peername::run_with_input(&lab.balancer, &[BINARY], &send, "ping"));
            assert_eq!(backend.recv(), (b"ping".to_vec(), client));
            backend.send(client, &[b"you"]);
            sender.join().expect("the sender")
        });
        assert!(answered.status.success(), "{answered:?}");
        assert_eq!(answered.stdout, b"you");
    }
    let output = Peername::run(
        &Host::new(),
        &["send", "--proxy-version=spp", "127.0.0.1:1"],
    );
    let printed = stderr_text(&output);
    assert!(
        output.status.code() == Some(2) && printed.contains("--protocol udp"),
        "{printed}"
    );
}

#[test]
fn help_of_shared_options_fits_the_command() {
    let host = Host::new();
    for (command, expected) in [
        ("intercept", "what is neither TLS nor HTTP is relayed"),
        (
            "jail",
            "connections are relayed unopened unless it is one of HTTP's",
        ),
        ("jail", "the program's connections may cause"),
    ] {
        let help = host.run(BINARY, &[command, "--help"]);
        // The help is wrapped.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(expected), "{help}");
    }
}

/// A script that sets a machine up may run again.
#[test]
fn ca_init_keeps_an_authority_on_request() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let ca = scratch.path_text("ca");
    let run = |args: &[&str]| {
        let output = Peername::run(&host, &[args, &["--ca", &ca]].concat());
        (output.status.code(), stderr_text(&output))
    };
    let (code, printed) = run(&["ca", "show"]);
    assert!(
        code == Some(1) && printed.contains(&format!("peername ca init --ca {ca}")),
        "{printed}"
    );
    assert_eq!(run(&["ca", "init", "--if-missing"]).0, Some(0));
    let first = std::fs::read(scratch.path("ca/authority.pem")).expect("the authority");
    assert_eq!(
        run(&["ca", "init", "--if-missing"]),
        (Some(0), String::new())
    );
    assert_eq!(run(&["ca", "init"]).0, Some(1));
    let now = std::fs::read(scratch.path("ca/authority.pem")).expect("the authority");
    assert_eq!(first, now);
    std::fs::write(scratch.path("ca/authority.pem"), "nonsense").expect("a file");
    assert_eq!(run(&["ca", "init", "--if-missing"]).0, Some(1));
}

#[test]
fn explicit_relay_option_is_logged() {
    let lab = Lab::new();
    let args = words(
        "proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --trust=any --relay=splice --log-format=json",
    );
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    proxy.wait_logged("--relay splice");
}

/// journald(8) reads the priority of a line from its prefix, which appears only where standard error leads to the journal.
#[test]
fn journal_lines_begin_with_their_priority() {
    for (stat_format, warning, info) in [("%d:%i", "<4>{", "<6>{"), ("8:1", "{", "{")] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let journal = scratch.write("journal", "");
        let script = format!(
            "JOURNAL_STREAM=$(stat --format={stat_format} {journal}); export JOURNAL_STREAM; exec \"$@\" 2>>{journal}"
        );
        let through = ["sh", "-c", &script, "sh"];
        let args = words(
            "proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --trust=192.0.2.0/24 --log-format=json",
        );
        let _proxy = Peername::start_through(&lab.server, &through, &args, &[LISTEN_V4]);
        wait_until("a warning", || {
            Conn::assert_refused(&lab.balancer, LISTEN_V4);
            scratch.read("journal").contains("untrusted_peer")
        });
        for line in scratch.read("journal").lines() {
            let prefix = if line.contains("\"WARN\"") {
                warning
            } else {
                info
            };
            assert!(line.starts_with(prefix), "{line}");
        }
    }
}

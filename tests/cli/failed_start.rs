//! A start that fails: its exit code is never 0, and the error has the reason.

use crate::harness::addr::LISTEN_V4;
use crate::harness::backend::Backend;
use crate::harness::lab::{Host, Lab, assert_contains, assert_count};
use crate::harness::peername::{Peername, words};

#[test]
fn failed_start_never_exits_with_0() {
    let host = Host::new();
    host.add_addresses("lo", &["192.0.2.1/32"]);
    let _taken = Backend::listen(&host, "192.0.2.1:8443".parse().expect("an endpoint"));
    for (code, hint, options) in [
        (1, "192.0.2.1:8443", "--listen=192.0.2.1:8443"),
        (1, "192.0.2.9:8443", "--listen=192.0.2.9:8443"),
        (2, "--listen", "--listen=nonsense"),
        (2, "--relay", "--relay=teleport"),
        (2, "--header-timeout", "--header-timeout=5"),
        (2, "--max-header", "--max-header=65552"),
        (2, "--target-v4", "--target-v4=[::1]:80"),
        (
            2,
            "--half-closed-timeout",
            "--half-closed-timeout=99999999999y",
        ),
        (2, "--send-proxy", "--protocol=both --send-proxy=v2"),
        (2, "--max-pending", "--max-pending=0"),
        (2, "--workers", "--workers=0"),
        (2, "name the backend", "-4 127.0.0.1:0"),
        (2, "to itself", "--listen=0.0.0.0:80 -4 127.0.0.1:80"),
        (2, "twice", "--listen=127.0.0.1:9 --listen=127.0.0.1:9"),
        (2, "--no-such-option", "--no-such-option"),
    ] {
        let line = format!("proxy --target=[::1]:443 --trust=any {options}");
        let error = Peername::run_failing(&host, &words(&line), code);
        assert!(error.contains(hint), "{line}: {error}");
    }
    assert_contains(
        &Peername::run_failing(&host, &["no-such-command"], 2),
        &["no-such-command"],
    );
}

/// `[::]` includes every address of this host, so each target is the proxy's own listener.
#[test]
fn proxy_does_not_start_with_itself_as_backend() {
    let lab = Lab::new();
    for target in ["--target-v4=10.81.0.1:8443", "--target-v6=[fd81::1]:8443"] {
        let args = ["proxy", "--listen=[::]:8443", "--trust=any", target];
        let error = Peername::run_failing(&lab.server, &args, 2);
        assert_contains(&error, &["the proxy would connect to itself"]);
    }
}

/// The workers of one proxy share its port (SO_REUSEPORT). Two proxies must not share it, because half of the connections
/// would go to the wrong backend.
#[test]
fn second_proxy_on_the_port_does_not_start() {
    let lab = Lab::new();
    let _first = Peername::proxy(&lab, &[]);
    let listen = format!("--listen={LISTEN_V4}");
    let error = Peername::run_failing(
        &lab.server,
        &["proxy", "--target=127.0.0.1:443", "--trust=any", &listen],
        1,
    );
    assert_contains(
        &error,
        &["another program listens there (`ss -ltunp` shows it)\n"],
    );
    // EADDRINUSE, once.
    assert_count(&error, "os error 98", 1);
}

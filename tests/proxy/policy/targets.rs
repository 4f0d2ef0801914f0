//! The backends that `--target` names, one for each address family of clients.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4, fresh_client_v6};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, assert_contains};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::header_for;

/// There is no default for a missing target, because it could be another server. A health check has no client whose address
/// must be kept, so it goes to the target of the other family.
#[test]
fn clients_of_a_family_without_a_target_are_refused() {
    let (v4, v6) = (fresh_client_v4(), fresh_client_v6());
    for (target, served, refused) in [(TARGET_V4, v4, v6), (TARGET_V6, v6, v4)] {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, target);
        let args = format!(
            "proxy --listen=10.81.0.1:8443 --target={target} --trust=10.81.0.0/24 --log-format=json -v"
        );
        let proxy = Peername::start(&lab.server, &words(&args), &[LISTEN_V4]);
        let connect = |bytes: &[u8]| Conn::connect_and_send(&lab.balancer, LISTEN_V4, bytes);
        let _down = connect(&header_for(served));
        let _up = backend.accept_from(served);
        let _ = connect(&header_for(refused)).wait_closed();
        proxy.wait_outcome("no_target");
        proxy.wait_logged(
            "clients; name one with --target or, over TCP, start the server by `peername exec`",
        );
        proxy.wait_logged(&format!(
            "for example client {} through 10.81.0.2;",
            refused.ip()
        ));
        let _check = connect(b"PROXY UNKNOWN\r\n");
        let _ = backend.accept();
    }
}

/// Where headers choose the destination, no target is needed. Otherwise a proxy without one does not start.
#[test]
fn target_is_required_and_given_once_for_each_family() {
    let host = Host::new();
    let usual = "proxy --listen=127.0.0.1:8443 --trust=any";
    for (options, message) in [
        (
            "",
            "--target is missing: name the backend's address and port",
        ),
        (
            "--target=127.0.0.1:1 -4 127.0.0.1:2",
            "--target-v4 127.0.0.1:2: IPv4 clients have a backend already, 127.0.0.1:1; another server needs",
        ),
        (
            "--target=[::1]:1 --target=[::1]:same",
            "--target [::1]:same: IPv6 clients have a backend already, [::1]:1",
        ),
        (
            "--target=127.0.0.1",
            "the port is missing, as in 127.0.0.1:443",
        ),
    ] {
        let args = format!("{usual} {options}");
        assert_contains(&Peername::run_failing(&host, &words(&args), 2), &[message]);
    }
    let dynamic = format!("{usual} --dynamic-destination --allow-destination=127.0.0.1:80");
    let listens = [([127, 0, 0, 1], 8443).into()];
    Peername::start(&host, &words(&dynamic), &listens).wait_started();
}

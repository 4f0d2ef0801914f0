//! Activated sockets to which TPROXY rules redirect (`--listen-transparent`). The service manager has not set IP_TRANSPARENT on
//! them, without which the kernel ignores the rules.

use std::net::SocketAddr;

use super::Backends;
use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::header_bytes;
use crate::harness::lab::{Scratch, assert_contains, assert_succeeds};
use crate::harness::peername::{PROXY_ARGS, Peername, words};
use crate::harness::programs::BECOME_ACTIVATED;
use crate::harness::rig::proxy::connect_fresh_client;
use crate::harness::rig::upgrade::UpgradeRig;

#[test]
fn rules_redirect_to_activated_sockets_before_and_after_upgrades() {
    let (backends, scratch) = (Backends::new(), Scratch::new());
    let server = &backends.lab.server;
    let rules = "routes add --tproxy-ports=10000-20000 --tproxy-to=8443 --protocol=both";
    assert_succeeds(&Peername::run(server, &words(rules)));
    let script = scratch.write("activate.py", BECOME_ACTIVATED);
    let args = [PROXY_ARGS, &["--protocol=both", "--listen-transparent"]].concat();
    let mut rig = UpgradeRig::start_with(server, &["python3", &script], &args);
    let redirected = SocketAddr::new(LISTEN_V4.ip(), 14_321);
    for round in 0..3 {
        if round > 0 {
            rig.upgrade(server).expect("it upgrades");
            rig.wait_drained();
        }
        let (down, up) = connect_fresh_client(&backends.lab, redirected, &backends.tcp);
        up.assert_reaches(&down, b"back");
        let client = fresh_client_v4();
        let header = header_bytes::v2_udp(client, redirected);
        backends
            .balancer
            .round_trip(redirected, &header, &backends.udp, client);
    }
}

/// Both processes have the same socket, and the previous one may go on.
#[test]
fn upgrade_that_makes_an_activated_socket_transparent_is_refused() {
    let (backends, scratch) = (Backends::new(), Scratch::new());
    let script = scratch.write("activate.py", BECOME_ACTIVATED);
    let config = |more: &str| {
        let table = format!(
            "[[listen]]\naddress = [\"{LISTEN_V4}\"]\nprotocol = \"both\"\ntarget-v4 = \"{TARGET_V4}\"\n\
             trust = [\"10.81.0.0/24\"]\n"
        );
        scratch.write("proxy.toml", &(table + more))
    };
    let file = format!("--config={}", config(""));
    let server = &backends.lab.server;
    let mut rig = UpgradeRig::start_with(server, &["python3", &script], &["proxy", &file]);
    config("listen-transparent = true\n");
    let error = rig.upgrade(server).expect_err("a refusal");
    assert_contains(
        &error,
        &["whether 10.81.0.1:8443 accepts what TPROXY rules redirect can't change"],
    );
    let _open = connect_fresh_client(&backends.lab, LISTEN_V4, &backends.tcp);
}

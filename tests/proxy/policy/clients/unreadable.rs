//! A list that can't be read for a while is in force as soon as it can be.

use std::time::Duration;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::admin::{self, ADMIN};
use crate::harness::conn::Conn;
use crate::harness::lab::{LeasedFile, Scratch};
use crate::harness::rig::proxy::{ProxyRig, header_for};
use crate::harness::rig::udp::UdpRig;

/// No event reports that a file can be read again, so the proxy retries every second. It logs that once in ten seconds.
#[test]
fn list_that_can_not_be_read_for_a_while_is_read_later() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}"), ADMIN]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    let leased = LeasedFile::replace(&rig.lab.server, &list, "denied", "198.51.100.7\n");
    rig.proxy.wait_logged(STALE);
    admin::wait_metric(&rig.lab.server, &[], "peername_lists_stale 1");
    down.assert_stays_open(Duration::from_secs(4));
    // Twice on a machine that is so busy that ten seconds have passed.
    let logged = rig.proxy.count_logged(STALE);
    assert!(logged <= 2, "{}", rig.proxy.log());
    drop(leased);
    down.wait_reset();
    admin::wait_metric(&rig.lab.server, &[], "peername_lists_stale 0");
}

/// The connections to the admin endpoint take none of the descriptors by which a list is read.
#[test]
fn list_is_read_with_all_connections_open() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let few_descriptors = ["prlimit", "--nofile=128:128"];
    let option = format!("--deny-client=@{path}");
    let rig = ProxyRig::start_through(&few_descriptors, &[&option, ADMIN]);
    let open = |_| rig.connect_and_send(&header_for(fresh_client_v4()));
    let downs: Vec<Conn> = (0..60).map(open).collect();
    let ups = rig.proxy.accept_until_full(&rig.backend_v4);
    assert!((5..60).contains(&ups.len()), "{} served", ups.len());
    let admin = v4([127, 0, 0, 1], 9300);
    let _admin: Vec<Conn> = (0..40)
        .map(|_| Conn::connect(&rig.lab.server, admin))
        .collect();
    rig.proxy.wait_idle();
    list.write("denied", "198.51.100.7\n");
    downs[0].wait_reset();
}

/// UDP sessions take none of the descriptors by which a list is read, of the workers and of the kernel data path. Each of 16
/// workers is full before the last client comes.
#[test]
fn list_is_read_with_all_udp_sessions_open() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let few_descriptors = ["prlimit", "--nofile=256:256"];
    let option = format!("--deny-client=@{path}");
    let args = [&option, "--workers=16", "--data-path=kernel"];
    let rig = UdpRig::start_through(&few_descriptors, &args);
    for _ in 0..300 {
        rig.round_trip(fresh_client_v4());
    }
    let exhausted = rig.proxy.count_logged("Too many open files");
    assert_eq!(exhausted, 0, "{}", rig.proxy.log());
    list.write("denied", "198.51.100.7\n");
    rig.proxy.wait_logged("lists of clients read");
}

const STALE: &str = "the previous lists stay in force";

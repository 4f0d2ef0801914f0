//! A list that can't be read for a while is in force as soon as it can be.

use std::time::Duration;

use crate::harness::addr::fresh_client_v4;
use crate::harness::admin::{self, ADMIN};
use crate::harness::lab::{LeasedFile, Scratch};
use crate::harness::rig::proxy::ProxyRig;

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

const STALE: &str = "the previous lists stay in force";

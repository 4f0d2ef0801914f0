//! A ban is in force in time although inotify(7) has no watches left: other programs of the user may have taken them.

use std::time::Instant;

use super::changes::IN_FORCE;
use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Scratch, wait_until};
use crate::harness::peername::Peername;

/// The limit is reached while the process runs, and later raised.
#[test]
fn ban_is_in_force_after_the_watches_were_lost() {
    let rig = LimitedRig::new("max_inotify_watches", 100);
    rig.assert_ban_in_force();
    rig.set_limit(0);
    // The event of this one comes; the watch is lost as the directory is watched anew.
    rig.assert_ban_in_force();
    rig.forward.wait_logged("can't watch files");
    rig.assert_ban_in_force();
    rig.set_limit(100);
    rig.forward.wait_logged(WATCHED_AGAIN);
    rig.assert_ban_in_force();
    assert_eq!(rig.forward.count_logged("can't watch files"), 1);
}

/// The process starts without an instance of inotify, and gets one later.
#[test]
fn ban_is_in_force_although_no_file_can_be_watched_at_the_start() {
    let rig = LimitedRig::new("max_inotify_instances", 0);
    rig.forward.wait_logged("can't watch files");
    rig.assert_ban_in_force();
    rig.set_limit(10);
    rig.forward.wait_logged(WATCHED_AGAIN);
    rig.assert_ban_in_force();
}

/// `forward` with a list of denied clients, in a user namespace with a limit of its own for inotify(7).
struct LimitedRig {
    forward: Peername,
    backend: Backend,
    list: Scratch,
    limit: String,
    lab: Lab,
}

impl LimitedRig {
    fn new(limit: &str, value: usize) -> Self {
        let (lab, list) = (Lab::new(), Scratch::new());
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let limit = format!("/proc/sys/user/{limit}");
        let set_and_run = format!("echo {value} > {limit} && exec \"$@\"");
        let own_namespace = ["unshare", "--user", "--map-root-user"];
        let through = [&own_namespace[..], &["sh", "-c", &set_and_run, "sh"]].concat();
        let deny = format!("--deny-client=@{}", list.write("denied", ""));
        let listen = format!("--listen={LISTEN_V4}");
        let to = format!("--to={TARGET_V4}");
        let args = ["forward", &listen, &to, &deny];
        let forward = Peername::start_through(&lab.server, &through, &args, &[LISTEN_V4]);
        Self {
            forward,
            backend,
            list,
            limit,
            lab,
        }
    }

    fn set_limit(&self, value: usize) {
        let pid = self.forward.pid().to_string();
        let set = format!("echo {value} > {}", self.limit);
        let namespace = ["--user", "--preserve-credentials", "--target", &pid];
        let args = [&namespace[..], &["sh", "-c", &set]].concat();
        self.lab.server.run("nsenter", &args);
    }

    /// Asserts that a ban ends an open connection in time, and lifts it.
    #[track_caller]
    fn assert_ban_in_force(&self) {
        let down = Conn::connect(&self.lab.balancer, LISTEN_V4);
        let _up = self.backend.accept();
        self.list.write("denied", "10.81.0.0/24\n");
        let start = Instant::now();
        down.wait_reset();
        assert!(start.elapsed() < IN_FORCE, "{:?}", start.elapsed());
        self.list.write("denied", "# none\n");
        wait_until("the ban is lifted", || {
            Conn::try_connect(&self.lab.balancer, LISTEN_V4)
                .and_then(|down| self.backend.accept_or_closed(&down))
                .is_some()
        });
    }
}

const WATCHED_AGAIN: &str = "watched again";

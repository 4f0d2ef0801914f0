//! docs/bans.md: fail2ban on a server behind HAProxy, with the action that peername ships and with firewall actions.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};
use std::time::Duration;

use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch, wait_until};
use crate::harness::peername::Peername;
use crate::harness::programs::sender::Haproxy;
use crate::harness::programs::server::{Fail2ban, Sshd};

/// sshd logs the client's address, fail2ban reads it and bans the client, and peername ends and refuses its connections.
/// Another client is left alone.
#[test]
fn shipped_action_bans_a_client_behind_haproxy() {
    let list = Scratch::new();
    let denied = list.write("denied", "# mine\n192.0.2.1\n");
    let rig = Fail2banRig::new(&[&format!("--deny-client=@{denied}")]);
    let action = format!("peername[denyfile=\"{denied}\"]");
    let fail2ban = Fail2ban::start(&rig.lab.server, &rig.sshd.log_file(), &action);
    let (mut session, mut other) = (rig.log_in(ATTACKER), rig.log_in(OTHER));
    rig.fail_to_log_in(ATTACKER);
    fail2ban.wait_banned(ATTACKER);
    assert!(session.wait_exit(Duration::from_secs(5)).is_some());
    Conn::assert_refused(&rig.lab.client, FRONT_V4);
    rig.proxy.wait_outcome("client_denied");
    rig.proxy.wait_outcome("access_revoked");
    assert!(!rig.ssh("root", ATTACKER).status.success());
    assert!(rig.ssh("root", OTHER).status.success());
    assert!(other.is_alive(), "{}", other.log());
    let expected = "# mine\n192.0.2.1\n203.0.113.9 # fail2ban sshd\n";
    assert_eq!(list.read("denied"), expected);

    fail2ban.command(&rig.lab.server, "set sshd unbanip 203.0.113.9");
    wait_until("the client logs in again", || {
        rig.ssh("root", ATTACKER).status.success()
    });
    fail2ban.command(&rig.lab.server, "set sshd banip 2001:db8:9::9");
    wait_until("the entry", || {
        let text = list.read("denied");
        text.contains("\n2001:db8:9::9 # fail2ban sshd\n")
    });
    // A change of the list replaces its file.
    let inode = || fs::metadata(list.path("denied")).expect("the list").ino();
    let before = inode();
    fail2ban.command(&rig.lab.server, "reload");
    assert_eq!(inode(), before, "{}", list.read("denied"));
    // fail2ban removes all bans when it stops.
    fail2ban.command(&rig.lab.server, "stop");
    assert_eq!(list.read("denied"), "# mine\n192.0.2.1\n");
}

/// The firewall actions of fail2ban match the client's address on loopback, where peername connects from it. They reject new
/// connections, which looks as if the server were down, and do not end open ones, which stall.
#[test]
fn firewall_actions_reject_new_connections_and_leave_open_ones() {
    for action in ["nftables-multiport", "iptables-multiport"] {
        let rig = Fail2banRig::new(&[]);
        let action = format!("{action}[name=sshd, port=9000, protocol=tcp]");
        let fail2ban = Fail2ban::start(&rig.lab.server, &rig.sshd.log_file(), &action);
        let mut session = rig.log_in(ATTACKER);
        rig.fail_to_log_in(ATTACKER);
        fail2ban.wait_banned(ATTACKER);
        // fail2ban logs the ban before it runs the action.
        wait_until("new connections are rejected", || {
            let conn = Conn::connect(&rig.lab.client, FRONT_V4);
            let is_answered = conn.is_answered_after(Duration::from_millis(200));
            let outcomes = rig.proxy.outcomes();
            let is_rejected = outcomes.iter().any(|outcome| outcome == "connect_refused");
            !is_answered && is_rejected
        });
        rig.proxy.wait_logged("accepts no clients");
        assert!(rig.ssh("root", OTHER).status.success());
        assert!(session.is_alive(), "{}", session.log());
    }
}

/// sshd behind HAProxy and peername, and a client with two addresses.
struct Fail2banRig {
    proxy: Peername,
    _haproxy: Haproxy,
    sshd: Sshd,
    lab: Lab,
}

impl Fail2banRig {
    fn new(args: &[&str]) -> Self {
        let lab = Lab::new();
        lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
        // The lab gives the client a single port. It has several connections at a time here.
        lab.client
            .sysctl("net.ipv4.ip_local_port_range", "40000 49999");
        let sshd = Sshd::start_with_syslog(&lab.server);
        Self {
            proxy: Peername::proxy(&lab, args),
            _haproxy: Haproxy::start(&lab, LISTEN_V4, "send-proxy-v2"),
            sshd,
            lab,
        }
    }

    /// Begins a session that lasts for a minute.
    fn log_in(&self, from: IpAddr) -> Process {
        let mut args = self.sshd.ssh_args("root", from, FRONT_V4);
        args.push("echo logged in; sleep 60".to_owned());
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let session = Process::start(&self.lab.client, "ssh", &args);
        session.wait_logged("logged in");
        session
    }

    fn fail_to_log_in(&self, from: IpAddr) {
        for _ in 0..2 {
            let output = self.ssh("mallory", from);
            assert!(!output.status.success(), "{output:?}");
        }
    }

    fn ssh(&self, user: &str, from: IpAddr) -> Output {
        let mut command = Command::new("ssh");
        command.args(self.sshd.ssh_args(user, from, FRONT_V4));
        self.lab.client.output(command.arg("true"), "")
    }
}

const ATTACKER: IpAddr = CLIENT_V4.ip();
const OTHER: IpAddr = v4([203, 0, 113, 10], 0).ip();

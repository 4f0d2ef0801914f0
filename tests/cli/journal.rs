//! The log in a journal of systemd: a real journald in a mount namespace, and what journalctl(1) reads from it.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, fresh_client_v6};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, assert_contains, wait_for, wait_until};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{connect_client, header_for};

/// One event is one entry, which can be selected by its fields, and read as text.
#[test]
fn journal_entries_have_a_field_for_each_of_the_logs() {
    let rig = JournalRig::start();
    let proxy = rig.start_proxy(&["-v"]);
    let client = fresh_client_v4();
    rig.serve(client);
    Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, b"nonsense").wait_closed();
    let entry = rig.wait_entry(&format!("PEERNAME_CLIENT={client}"));
    assert_eq!(entry["PEERNAME_OUTCOME"], "finished", "{entry}");
    assert_eq!(entry["PEERNAME_LISTENER"], LISTEN_V4.to_string());
    assert_eq!(entry["PEERNAME_BYTES_TO_UPSTREAM"], "8");
    assert_eq!(entry["PRIORITY"], "7");
    assert_eq!(entry["SYSLOG_IDENTIFIER"], "peername");
    assert_eq!(entry["_PID"], proxy.pid().to_string());
    let text = entry["MESSAGE"].as_str().expect("text");
    assert!(text.starts_with("connection ended listener="), "{text}");
    assert_contains(text, &[&format!("client={client}")]);
    let warning = rig.wait_entry("PRIORITY=4");
    let text = warning["MESSAGE"].as_str().expect("text");
    assert_contains(text, &["no_header"]);
    assert_eq!(warning["_TRANSPORT"], "journal");
}

/// The field is longer than journald allows for a line of standard error, which it would split.
#[test]
fn long_list_of_listeners_is_one_field() {
    let rig = JournalRig::start();
    let ports = (20_001..26_000).step_by(2);
    let options: Vec<_> = ports
        .clone()
        .map(|port| format!("--listen=127.100.100.100:{port}"))
        .collect();
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let _proxy = rig.start_proxy(&options);
    let entry = rig.wait_entry("PEERNAME_WORKERS=2");
    let addresses = entry["PEERNAME_TCP"].as_str().expect("addresses");
    assert_eq!(addresses.split(' ').count(), 1 + ports.count());
}

/// The warnings that are logged without -v can be selected by the fields of the lines that -v adds.
#[test]
fn warnings_of_refusals_and_outages_can_be_selected_by_outcome() {
    let rig = JournalRig::start();
    let _proxy = rig.start_proxy(&[]);
    Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, b"nonsense").wait_closed();
    let entry = rig.wait_entry("PEERNAME_OUTCOME=no_header");
    assert_eq!(entry["PRIORITY"], "4", "{entry}");
    let peer = entry["PEERNAME_PEER"].as_str().expect("a peer");
    assert!(peer.starts_with("10.81.0.2:"), "{peer}");
    Conn::connect_and_send(
        &rig.lab.balancer,
        LISTEN_V4,
        b"PROXY TCP4 127.0.0.1 198.51.100.10 56324 443\r\n",
    )
    .wait_closed();
    let entry = rig.wait_entry("PEERNAME_OUTCOME=source_loopback");
    assert_eq!(entry["PEERNAME_CLIENT"], "127.0.0.1:56324", "{entry}");
    // No server listens at the target of IPv6 clients.
    let header = header_for(fresh_client_v6());
    Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &header).wait_closed();
    let entry = rig.wait_entry("PEERNAME_OUTCOME=connect_refused");
    assert_eq!(entry["PEERNAME_UPSTREAM"], "[::1]:9000", "{entry}");
}

/// A format that the operator chooses is written to standard error as lines.
#[test]
fn chosen_format_goes_to_the_journal_as_lines() {
    let rig = JournalRig::start();
    let _proxy = rig.start_proxy(&["--log-format=json"]);
    let entry = rig.wait_entry("_TRANSPORT=stdout");
    let line: Value =
        serde_json::from_str(entry["MESSAGE"].as_str().expect("text")).expect("a JSON object");
    assert_eq!(line["level"], "INFO");
    assert_eq!(entry["PRIORITY"], "6");
}

/// A journal that does not read must not delay clients. Nothing is lost, as long as the queue has room.
#[test]
fn suspended_journal_delays_no_client_and_loses_no_entry() {
    let rig = JournalRig::start();
    let _proxy = rig.start_proxy(&["-v"]);
    rig.journald.suspend();
    let clients: Vec<_> = (0..MORE_THAN_JOURNALD_QUEUES)
        .map(|_| fresh_client_v4())
        .collect();
    for client in &clients {
        rig.serve(*client);
    }
    rig.journald.signal(Signal::CONT);
    rig.wait_clients(&clients);
}

/// journald is replaced, with its socket, as when its socket unit restarts. Entries from in between reach the new one.
#[test]
fn replaced_journal_gets_the_entries_of_its_absence() {
    let mut rig = JournalRig::start();
    let _proxy = rig.start_proxy(&["-v"]);
    let clients: Vec<_> = (0..50).map(|_| fresh_client_v4()).collect();
    let (before, after) = clients.split_at(25);
    before.iter().for_each(|client| rig.serve(*client));
    rig.wait_clients(before);
    rig.journald.signal(Signal::TERM);
    rig.journald.wait_exit(Duration::from_secs(5));
    after.iter().for_each(|client| rig.serve(*client));
    rig.journald = rig.start_journald();
    rig.wait_clients(after);
}

/// More entries than can wait in journald's socket: net.unix.max_dgram_qlen is 512 at most on today's systems.
const MORE_THAN_JOURNALD_QUEUES: usize = 600;

struct JournalRig {
    backend: Backend,
    journald: Process,
    /// A process that keeps the mount namespace alive.
    mounts: Process,
    lab: Lab,
}

impl JournalRig {
    fn start() -> Self {
        let lab = Lab::new();
        let mounts = Process::start_through(&lab.server, &["unshare", "--mount"], "sh", MOUNT);
        mounts.wait_printed("mounted");
        let rig = Self {
            backend: Backend::listen(&lab.server, TARGET_V4),
            journald: start_journald(&lab.server, &mounts),
            mounts,
            lab,
        };
        wait_until("journald listens", || {
            let stream = rig.path("/run/systemd/journal/stdout");
            fs::exists(stream).is_ok_and(|exists| exists)
        });
        rig
    }

    fn start_journald(&self) -> Process {
        start_journald(&self.lab.server, &self.mounts)
    }

    fn path(&self, inside: &str) -> String {
        format!("/proc/{}/root{inside}", self.mounts.pid())
    }

    /// Starts a proxy with its standard error connected to the journal, as a service has it.
    fn start_proxy(&self, args: &[&str]) -> Peername {
        let mounts = mounts_option(&self.mounts);
        let through = [
            "nsenter",
            &mounts,
            "systemd-cat",
            "sh",
            "-c",
            "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec \"$@\"",
            "sh",
        ];
        let usual = words(
            "proxy --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --target-v6=[::1]:9000 \
             --trust=10.81.0.2 --workers=2",
        );
        let args = [&usual, args].concat();
        Peername::start_through(&self.lab.server, &through, &args, &[LISTEN_V4])
    }

    /// Serves one connection within the time limits of the harness, so that the proxy must not wait for the journal.
    #[track_caller]
    fn serve(&self, client: SocketAddr) {
        let down = connect_client(&self.lab, LISTEN_V4, client);
        let up = self.backend.accept();
        down.send(b"question");
        down.shutdown_write();
        up.recv_to_end();
        drop(up);
        down.recv_to_end();
    }

    /// Waits for an entry of peername's that matches, and returns the first.
    fn wait_entry(&self, matches: &str) -> Value {
        wait_for(matches, || self.entries(&[matches]).into_iter().next())
    }

    fn wait_clients(&self, clients: &[SocketAddr]) {
        wait_until("an entry of each client", || {
            let entries = self.entries(&["PEERNAME_OUTCOME=finished"]);
            clients.iter().all(|client| {
                let client = client.to_string();
                entries
                    .iter()
                    .any(|entry| entry["PEERNAME_CLIENT"].as_str() == Some(&client))
            })
        });
    }

    /// What journalctl(1) prints for this match.
    fn entries(&self, matches: &[&str]) -> Vec<Value> {
        let mounts = mounts_option(&self.mounts);
        let line = format!("{mounts} journalctl --output=json --all --quiet _COMM=peername");
        let journalctl = words(&line);
        // Callers poll. Without a pause, journalctl would take a processor from the proxy.
        thread::sleep(Duration::from_millis(20));
        let text = self
            .lab
            .server
            .run("nsenter", &[&journalctl[..], matches].concat());
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

fn start_journald(server: &Host, mounts: &Process) -> Process {
    let mounts = mounts_option(mounts);
    Process::start_through(
        server,
        &["nsenter", &mounts],
        "/lib/systemd/systemd-journald",
        &[],
    )
}

fn mounts_option(mounts: &Process) -> String {
    format!("--mount=/proc/{}/ns/mnt", mounts.pid())
}

/// journald keeps its files in memory, takes no messages of the kernel, and drops none of a busy service.
const MOUNT: &[&str] = &[
    "-c",
    "set -e
    mount -t tmpfs journal /run
    mkdir -p /run/systemd/journald.conf.d /run/systemd/journal /run/log/journal
    printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nRateLimitBurst=0\\n' >/run/systemd/journald.conf.d/test.conf
    echo mounted
    exec sleep infinity",
];

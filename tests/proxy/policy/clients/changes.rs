//! A list that changes is in force within a second, for open connections, too.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::assert_refused;
use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{self, ADMIN};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Host, Lab, Process, Scratch, assert_contains, wait_for, wait_until};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{ProxyRig, connect_client, header_for};

/// The ban of one client does not affect another, and can be lifted: with each relay method, in a confined process.
#[test]
fn ban_ends_open_connections_and_can_be_lifted() {
    for relay in ["copy", "splice", "auto"] {
        let list = Scratch::new();
        let path = list.write("denied", "");
        let option = format!("--deny-client=@{path}");
        let mut rig = ProxyRig::new(&[&option, &format!("--relay={relay}"), ADMIN]);
        let (banned, other) = (fresh_client_v4(), v4([198, 51, 100, 8], 4001));
        let banned_pairs = [
            rig.connect_client(banned),
            rig.connect_client(fresh_client_v4()),
        ];
        let (down, up) = rig.connect_client(other);
        for _ in 0..60 {
            for (down, up) in &banned_pairs {
                down.assert_reaches(up, b"x");
            }
        }
        replace(&list, "198.51.100.7\n");
        let start = Instant::now();
        for (down, up) in banned_pairs {
            down.wait_reset();
            up.wait_reset();
        }
        assert!(start.elapsed() < IN_FORCE, "{:?}", start.elapsed());
        assert_refused(&rig, fresh_client_v4());
        down.assert_reaches(&up, b"still");
        let revoked = "peername_denied_total{reason=\"access_revoked\"} 2";
        admin::wait_metric(&rig.lab.server, &[], revoked);
        replace(&list, "# none\n");
        wait_served(&rig, fresh_client_v4());
        rig.assert_serves(fresh_client_v4());
    }
}

/// The file is written in place rather than replaced, as by a script that appends a line.
#[test]
fn entry_that_is_appended_is_in_force_within_a_second() {
    let list = Scratch::new();
    let path = list.write("denied", "192.0.2.1\n");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}")]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    list.write("denied", "192.0.2.1\n198.51.100.0/24\n");
    let (end, time) = down.wait_closed();
    assert_eq!(end, End::Reset);
    assert!(time < IN_FORCE, "{time:?}");
}

/// A new directory takes the name of the watched one. Its list is read, and it is watched from then on.
#[test]
fn list_in_a_directory_that_was_replaced_is_read() {
    let scratch = Scratch::new();
    let directory = scratch.path("lists");
    let list = directory.join("denied");
    fs::create_dir(&directory).expect("mkdir(2)");
    fs::write(&list, "192.0.2.1\n").expect("write(2)");
    let option = format!("--deny-client=@{}", list.display());
    let rig = ProxyRig::new(&[&option, "--no-sandbox"]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    let old = scratch.path("old");
    fs::rename(&directory, &old).expect("rename(2)");
    fs::create_dir(&directory).expect("mkdir(2)");
    fs::write(&list, "198.51.100.7\n").expect("write(2)");
    fs::write(old.join("denied"), "").expect("write(2)");
    down.wait_reset();
    // The removal of the old directory ends its watch, and no other.
    fs::remove_dir_all(&old).expect("rmdir(2)");
    let (other, _up) = rig.connect_client(v4([198, 51, 100, 8], 4001));
    thread::sleep(Duration::from_millis(500));
    fs::write(&list, "198.51.100.0/24\n").expect("write(2)");
    other.wait_reset();
}

/// A client that is no longer allowed is treated as one that is denied.
#[test]
fn client_that_is_taken_off_the_allow_list_is_ended() {
    let list = Scratch::new();
    let path = list.write("allowed", "198.51.100.7\n198.51.100.8\n");
    let rig = ProxyRig::new(&[&format!("--allow-client=@{path}")]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    let (stays, up) = rig.connect_client(v4([198, 51, 100, 8], 4001));
    list.write("allowed", "198.51.100.8\n");
    down.wait_reset();
    stays.assert_reaches(&up, b"still");
}

/// Half a list would admit banned clients, so a broken list is not applied. A list that is removed counts as broken.
#[test]
fn broken_list_leaves_the_old_one_in_force() {
    let list = Scratch::new();
    let path = list.write("denied", "198.51.100.7\n");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}"), ADMIN]);
    let host = &rig.lab.server;
    let count_reads = || rig.proxy.count_logged(LISTS_READ);
    let wait_stale_lists = |count| {
        admin::wait_metric(host, &[], &format!("peername_lists_stale {count}"));
        let status = admin::get(host, &[], "/status");
        let status: Value = serde_json::from_str(status.trim_end_matches("200")).expect("JSON");
        status["stale_lists"].clone()
    };
    assert_eq!(wait_stale_lists(0), Value::Null);
    list.write("denied", "192.0.2.1\nnonsense\n");
    let wait_warning = |text: &str| rig.proxy.wait_logged_parts(&["WARN", text]);
    let line = wait_warning("denied, line 2: neither a network nor an address");
    assert_contains(&line, &["the previous lists stay in force"]);
    let refused = wait_stale_lists(1);
    let why = refused["refused"].as_str().expect("a reason");
    assert!(why.contains("denied, line 2"), "{refused}");
    assert!(refused["at"].as_u64().is_some_and(|at| at > 0));
    assert_refused(&rig, fresh_client_v4());
    rig.connect_client(v4([192, 0, 2, 1], 4001));
    fs::remove_file(&path).expect("removed");
    wait_warning("no such file");
    assert_refused(&rig, fresh_client_v4());
    rig.proxy.signal(Signal::HUP);
    let line = wait_warning("reload refused");
    assert_contains(&line, &["no such file"]);
    assert_refused(&rig, fresh_client_v4());
    assert_eq!(count_reads(), 0, "{}", rig.proxy.log());
    list.write("denied", "192.0.2.1\n");
    wait_served(&rig, fresh_client_v4());
    assert_eq!(wait_stale_lists(0), Value::Null);
    assert_eq!(count_reads(), 1, "{}", rig.proxy.log());
}

/// A reload applies the lists of the new configuration file to open connections, too.
#[test]
fn reload_ends_connections_of_clients_that_it_denies() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let table = |deny: &str| {
        format!(
            "[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\ndeny-client = [{deny}]\n"
        )
    };
    let config = files.write("proxy.toml", &table(""));
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = ["proxy", "--log-format=json", "-v", "--config", &config];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let down = connect_client(&lab, LISTEN_V4, fresh_client_v4());
    let up = backend.accept();
    let header = header_for(fresh_client_v4());
    let waiting = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header[..20]);
    let list = files.write("denied", "198.51.100.7\n");
    files.write(
        "proxy.toml",
        &table(&format!("\"192.0.2.0/24\", \"@{list}\"")),
    );
    proxy.signal(Signal::HUP);
    down.wait_reset();
    up.wait_closed();
    proxy.wait_outcome("access_revoked");
    waiting.send(&header[20..]);
    waiting.wait_reset();
    proxy.wait_outcome("client_denied");
    // A list that the new configuration names is watched from then on.
    let client = v4([198, 51, 100, 8], 4001);
    let down = connect_client(&lab, LISTEN_V4, client);
    let _up = backend.accept();
    files.write("denied", "198.51.100.8\n");
    down.wait_reset();
}

/// Reloads remove the listener of a connection whose header is incomplete, and add a listener at the same address. Once the
/// header is complete, the connection is still judged by the current list.
#[test]
fn ban_applies_to_a_waiting_connection_of_a_listener_that_was_added_again() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let list = files.write("denied", "");
    let table = |port| listener_with_list(port, &list) + "header-timeout = \"60s\"\n";
    let (kept, both) = (table(8444), table(8443) + &table(8444));
    let config = files.write("proxy.toml", &both);
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = ["proxy", "--log-format=json", "-v", "--config", &config];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let header = header_for(fresh_client_v4());
    let waiting = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header[..20]);
    for tables in [&kept, &both] {
        files.write("proxy.toml", tables);
        proxy.reload("\"reloaded\"");
    }
    let other = v4([198, 51, 100, 8], 4001);
    let open = connect_client(&lab, LISTEN_V4, other);
    let _up = backend.accept();
    files.write("denied", "198.51.100.0/24\n");
    // Connections are ended once all lists have been read.
    open.wait_reset();
    waiting.send(&header[20..]);
    waiting.wait_reset();
    proxy.wait_outcome("client_denied");
    backend.assert_no_connection();
}

/// The list of a removed listener is no longer read, because a warning about it would hide one about a list in use.
#[test]
fn missing_list_of_a_removed_listener_is_not_reported() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let [kept, removed] = ["kept", "removed"].map(|name| files.write(name, "192.0.2.1\n"));
    let one_listener = listener_with_list(8443, &kept);
    let both = one_listener.clone() + &listener_with_list(8444, &removed);
    let config = files.write("proxy.toml", &both);
    let args = ["proxy", "--log-format=json", ADMIN, "--config", &config];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    files.write("proxy.toml", &one_listener);
    proxy.reload("\"reloaded\"");
    fs::remove_file(&removed).expect("unlink(2)");
    let mut networks = 2..;
    wait_until("the list is read", || {
        // A list that is written before the reload has read it does not count as changed.
        let network = networks.next().expect("a number");
        files.write("kept", &format!("192.0.2.{network}\n"));
        proxy.count_logged(LISTS_READ) > 0
    });
    admin::wait_metric(&lab.server, &[], "peername_lists_stale 0");
    fs::remove_file(&kept).expect("unlink(2)");
    admin::wait_metric(&lab.server, &[], "peername_lists_stale 1");
}

/// A list on a network file system whose server is gone does not delay the other lists, and is read once the server is back.
#[test]
fn hanging_list_does_not_delay_the_others() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let mounted = MountedList::new(&lab.server, &files);
    let fast = files.write("fast", "");
    let tables = listener_with_list(8443, &fast) + &listener_with_list(8444, &mounted.list());
    let config = files.write("proxy.toml", &tables);
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = ["proxy", "--log-format=json", ADMIN, "--config", &config];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let down = connect_client(&lab, LISTEN_V4, fresh_client_v4());
    let _up = backend.accept();
    admin::wait_metric(&lab.server, &[], "peername_lists_stale 0");
    let gate = Gate::shut(&files);
    files.write("fast", "198.51.100.0/24\n");
    // The server's hang costs two timeouts of five seconds: for the files' metadata, and for reading the list.
    let end = Instant::now() + Duration::from_secs(25);
    while down.is_open_after(Duration::from_millis(100)) {
        assert!(Instant::now() < end, "{}", proxy.log());
    }
    let named = format!("{}: not read within 5s", mounted.list());
    proxy.wait_logged(&named);
    admin::wait_metric(&lab.server, &[], "peername_lists_stale 1");
    drop(gate);
    let end = Instant::now() + Duration::from_secs(25);
    while !admin::get(&lab.server, &[], "/metrics").contains("peername_lists_stale 0\n") {
        assert!(Instant::now() < end, "{}", proxy.log());
        thread::sleep(Duration::from_millis(100));
    }
}

/// A mounted directory with a list that a [`Gate`] makes hang.
struct MountedList {
    _server: Process,
    directory: String,
}

impl MountedList {
    fn new(host: &Host, files: &Scratch) -> Self {
        let directory = files.path_text("mounted");
        fs::create_dir(&directory).expect("mkdir(2)");
        let script = files.write("hanging_file.py", HANGING_FILE);
        let content = files.write("content", "192.0.2.1\n");
        let gate = files.path_text("gate");
        let server = Process::start(host, "python3", &[&script, &directory, &content, &gate]);
        server.wait_printed("mounted");
        Self {
            _server: server,
            directory,
        }
    }

    fn list(&self) -> String {
        format!("{}/denied", self.directory)
    }
}

/// The file that makes the list hang while it exists. A process that reads the list then can't be killed.
struct Gate(PathBuf);

impl Gate {
    fn shut(files: &Scratch) -> Self {
        files.write("gate", "");
        Self(files.path("gate"))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for MountedList {
    fn drop(&mut self) {
        let unmounted = Command::new("umount")
            .args(["-l", &self.directory])
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

/// A draining process still reads its lists.
#[test]
fn ban_ends_connections_of_a_draining_process() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}"), "--drain=60s"]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    let (stays, up) = rig.connect_client(v4([198, 51, 100, 8], 4001));
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("waiting for open connections");
    list.write("denied", "198.51.100.7\n");
    down.wait_reset();
    stays.assert_reaches(&up, b"still");
}

#[test]
fn forward_ends_connections_of_denied_peers() {
    let (rig, list) = (ProxyRig::new(&[]), Scratch::new());
    let path = list.write("denied", "");
    let line = format!(
        "forward --listen=203.0.113.1:80 --to=10.81.0.1:8443 --log-format=json -v \
         --deny-client=@{path}"
    );
    let args = words(&line);
    let forward = Peername::start(&rig.lab.balancer, &args, &[FRONT_V4]);
    let client = Conn::connect_and_send(&rig.lab.client, FRONT_V4, b"x");
    let up = rig.backend_v4.accept();
    assert_eq!(up.recv(1), b"x");
    list.write("denied", "203.0.113.0/24\n");
    client.wait_reset();
    up.wait_closed();
    forward.wait_outcome("access_revoked");
}

/// Changes that come a hundred times a second do not postpone a ban.
#[test]
fn busy_list_is_in_force_within_a_second() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}")]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| down.wait_closed());
        let mut text = String::from("198.51.100.7\n");
        for number in 0..150 {
            text.push_str(&format!("192.0.2.{number}\n"));
            replace(&list, &text);
            thread::sleep(Duration::from_millis(10));
        }
        let (end, time) = waiting.join().expect("the end");
        assert_eq!(end, End::Reset);
        assert!(time < IN_FORCE, "{time:?}");
    });
}

fn listener_with_list(port: u16, list: &str) -> String {
    format!(
        "[[listen]]\naddress = [\"10.81.0.1:{port}\"]\ntarget-v4 = \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n\
         deny-client = [\"@{list}\"]\n"
    )
}

/// Replaces the list by rename(2), as editors and scripts do.
fn replace(list: &Scratch, text: &str) {
    let new = list.write("denied.new", text);
    fs::rename(new, list.path("denied")).expect("a rename");
}

#[track_caller]
fn wait_served(rig: &ProxyRig, client: SocketAddr) {
    wait_for("the client is served", || {
        let down = rig.connect_and_send(&header_for(client));
        down.is_open_after(Duration::from_millis(100))
            .then(|| drop(rig.accept_client(client)))
    });
}

/// The promise of docs/bans.md.
pub(super) const IN_FORCE: Duration = Duration::from_secs(1);

/// Logged whenever changed lists are in force.
const LISTS_READ: &str = "lists of clients read";

const HANGING_FILE: &str = include_str!("changes/hanging_file.py");

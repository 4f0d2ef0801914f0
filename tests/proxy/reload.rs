//! Reload (SIGHUP) applies the new configuration as a whole or not at all, and loses no connection.

mod addresses;
mod files;
mod forward;
mod in_force;
mod udp;
mod watch;

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, Process, Scratch, assert_within, wait_until, with_files};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::load::{SetOnDrop, under_load};
use crate::harness::rig::proxy::{connect_client, connect_fresh_client, header_for};

/// A hundred reloads, while four balancers connect as fast as they can and twenty connections stay open. Every tenth reload is
/// of an invalid file; the others add or remove a listener.
#[test]
fn hundred_reloads_under_load_lose_no_connection() {
    let rig = ReloadRig::new(&both_listeners());
    let long: Vec<_> = (0..20).map(|_| rig.connect(LISTEN_V4)).collect();
    let done = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        scope.spawn(|| echo(&rig.backend, &done));
        let round_trip = || assert_round_trip(&rig.lab, LISTEN_V4);
        under_load(4, round_trip, |load| {
            for round in 1..=100 {
                match round % 10 {
                    0 => rig.reload("[[listen]]\naddress = 7\n", "reload refused"),
                    _ if round % 2 == 0 => rig.reload(&both_listeners(), "\"reloaded\""),
                    _ => rig.reload(&table(LISTEN_V4, &["10.81.0.0/24"]), "\"reloaded\""),
                }
                load.wait_served(1);
            }
            rig.reload(&both_listeners(), "\"reloaded\"");
            assert_round_trip(&rig.lab, PRIVILEGED);
        })
    });
    for (down, up) in &long {
        down.assert_reaches(up, b"still");
        up.assert_reaches(down, b"here");
    }
    drop(long);
    let totals = rig.stop();
    assert_eq!(totals["reloads"], 91, "{totals}");
    assert_eq!(totals["reloads_refused"], 10, "{totals}");
    // The long connections, and the one to the privileged port.
    let finished = served + 20 + 1;
    assert_eq!(
        totals["outcomes"],
        format!("finished={finished}"),
        "{totals}"
    );
}

/// A peer that is no longer trusted is refused from then on; its open connections go on.
#[test]
fn reload_withdraws_trust_at_once() {
    let rig = ReloadRig::new(&table(LISTEN_V4, &["10.81.0.0/24"]));
    let (down, up) = rig.connect(LISTEN_V4);
    assert_within(3, Duration::from_secs(1), || {
        rig.reload(&table(LISTEN_V4, &["10.81.0.0/24"]), "\"reloaded\"");
        let start = Instant::now();
        rig.reload(&table(LISTEN_V4, &["192.0.2.0/24"]), "\"reloaded\"");
        Conn::assert_refused(&rig.lab.balancer, LISTEN_V4);
        start.elapsed()
    });
    down.assert_reaches(&up, b"still here");
    let changed = r#""opened":"","closed":"","changed":"listen.trust""#;
    rig.reload(&table(LISTEN_V4, &["10.81.0.2"]), changed);
    rig.connect(LISTEN_V4);
}

/// With no descriptor left a reload still works, and a draining listener serves its accept backlog, because closing it would
/// reset the connections there.
#[test]
fn draining_listener_serves_its_backlog() {
    let few_descriptors = ["prlimit", "--nofile=64:64"];
    let rig = ReloadRig::start_through(&few_descriptors, &both_listeners(), &["--workers=2"]);
    let crowd: Vec<Conn> = (0..50)
        .map(|_| connect_client(&rig.lab, LISTEN_V4, fresh_client_v4()))
        .collect();
    let mut served = rig.proxy.accept_until_full(&rig.backend);
    assert!((7..45).contains(&served.len()), "{} served", served.len());
    let mut clients = vec![fresh_client_v4(), fresh_client_v4()];
    let open = |client: &_| connect_client(&rig.lab, PRIVILEGED, *client);
    let _waiting: Vec<Conn> = clients.iter().map(open).collect();
    rig.reload(&table(LISTEN_V4, &["10.81.0.0/24"]), "\"reloaded\"");
    // A drain that served later connections, too, would not end while clients come. So most of these are not admitted to the
    // backlog, and clients try again until the listener is closed.
    let late = fresh_client_v4();
    let connect = |_| {
        let connect = || TcpStream::connect_timeout(&PRIVILEGED, Duration::from_millis(50));
        rig.lab.balancer.enter(connect).ok()
    };
    let queued: Vec<Conn> = (0..8).filter_map(connect).map(Conn::new).collect();
    assert!(queued.len() <= 2, "{} of 8 in the queue", queued.len());
    for conn in &queued {
        conn.send_if_open(&header_for(late));
    }
    // The backlog is served before those of other listeners, but after connections that already wait for a permit.
    for position in 1.. {
        assert!(position <= 6, "other connections come first");
        served.pop().expect("a connection").reset();
        let peer = rig.backend.accept().peer_addr();
        assert_ne!(peer, late, "a drain does not wait for later connections");
        clients.retain(|client| *client != peer);
        if clients.is_empty() {
            break;
        }
    }
    // The backlog is empty, though no permit is free.
    rig.lab.balancer.wait_connection_refused(PRIVILEGED);
    drop(crowd);
}

/// Without a configuration file, SIGHUP still reads the lists that the options name.
#[test]
fn reload_reads_the_lists_of_the_command_line() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let trust = format!("--trust=@{}", scratch.write("trusted", "10.81.0.0/24\n"));
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let line = format!(
        "proxy --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --log-format=json {trust}"
    );
    let args = words(&line);
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let _first = connect_client(&lab, LISTEN_V4, fresh_client_v4());
    backend.accept();
    scratch.write("trusted", "192.0.2.0/24\n");
    proxy.reload("\"reloaded\"");
    Conn::assert_refused(&lab.balancer, LISTEN_V4);
    scratch.write("trusted", "nonsense\n");
    proxy.reload("trusted, line 1");
    backend.assert_no_connection();
}

/// A change that needs a restart is refused with the reason, and the old configuration stays in force.
#[test]
fn reload_refuses_what_needs_a_restart() {
    let before = table(LISTEN_V4, &["10.81.0.0/24"]);
    let rig = ReloadRig::start_through(&[], &before, &["--setup-routes", "--workers=2"]);
    let other_target = before.replace("127.0.0.1:9000", "10.81.0.1:9000");
    for (file, why) in [
        (format!("log-format = \"text\"\n{before}"), None),
        (format!("verbose = 2\n{before}"), Some("verbose")),
        (
            other_target,
            Some("was given up at the start: run `peername routes add --target 10.81.0.1:9000`"),
        ),
        (
            before
                .replace("8443", "9000")
                .replace("10.81.0.1", "127.0.0.1"),
            Some("to itself"),
        ),
        (
            before.replace("10.81.0.1", "10.81.0.7"),
            Some("no interface"),
        ),
    ] {
        match why {
            Some(why) => rig.reload(&file, why),
            // The command line takes precedence over the file.
            None => rig.reload(&file, "\"reloaded\""),
        }
        rig.connect(LISTEN_V4);
    }
}

/// With `setup-routes` a reload adds no rules, but accepts a backend that has some already (`peername routes add`).
#[test]
fn reload_accepts_a_backend_that_has_rules_already() {
    let before = table(LISTEN_V4, &["10.81.0.0/24"]);
    let rig = ReloadRig::start_through(&[], &before, &["--setup-routes"]);
    let target = v4([10, 81, 0, 1], 9000);
    let backend = Backend::listen(&rig.lab.server, target);
    let after = before.replace("127.0.0.1:9000", "10.81.0.1:9000");
    rig.reload(&after, "reload refused");
    let add = ["routes", "add", "--target", "10.81.0.1:9000"];
    rig.lab.server.run(BINARY, &add);
    // The advice to add rules would not help here.
    let other = "pref 100 from 10.81.0.1 ipproto tcp sport 9000 iif lo blackhole";
    rig.lab.server.ip(&format!("rule add {other}"));
    let refused = rig.proxy.reload("a rule with a smaller priority");
    assert!(
        refused.contains("reload refused") && !refused.contains("routes add"),
        "{refused}"
    );
    rig.lab.server.ip(&format!("rule del {other}"));
    rig.reload(&after, "\"reloaded\"");
    let _open = connect_fresh_client(&rig.lab, LISTEN_V4, &backend);
}

/// Removed listeners release their descriptors: as many connections are served at once as before.
#[test]
fn many_reloads_leak_no_descriptor() {
    let few_descriptors = ["prlimit", "--nofile=128:128"];
    let one_listener = table(LISTEN_V4, &["10.81.0.0/24"]);
    for workers in ["--workers=1", "--workers=3"] {
        let rig = ReloadRig::start_through(&few_descriptors, &one_listener, &[workers]);
        let before = rig.measure_capacity();
        assert!(before > 5, "{before} with {workers}");
        for _ in 0..45 {
            rig.reload(&both_listeners(), "\"reloaded\"");
            rig.reload(&one_listener, "\"reloaded\"");
        }
        assert_eq!(rig.measure_capacity(), before, "with {workers}");
    }
}

/// A reload resolves names, which takes as long as the name server does. A stop does not wait for the reload.
#[test]
fn stop_does_not_wait_for_a_reload() {
    let config = table(LISTEN_V4, &["10.81.0.0/24"]);
    let etc = Scratch::new();
    let order = etc.write("nsswitch.conf", "hosts: files dns\n");
    let resolv = etc.write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:9\n");
    let through = with_files(&[
        (&order, "/etc/nsswitch.conf"),
        (&resolv, "/etc/resolv.conf"),
    ]);
    // The target is a name at the start, so that a reload may resolve names.
    let with_target = |name: &str| config.replace("127.0.0.1:9000", &format!("{name}:9000"));
    let mut rig = ReloadRig::start_through(&through, &with_target("localhost"), &[]);
    let silent = DatagramSocket::bind(&rig.lab.server, v4([127, 0, 0, 1], 53));
    rig.files.write("proxy.toml", &with_target("silent.test"));
    rig.proxy.signal(Signal::HUP);
    silent.recv();
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(3));
}

/// A start resolves names, too. The signals that don't ask to stop wait until the proxy serves.
#[test]
fn signals_to_a_process_that_starts_do_not_end_it() {
    let (lab, files) = (Lab::new(), Scratch::new());
    // The hosts file has the name, once the name server has not answered.
    let order = files.write("nsswitch.conf", "hosts: dns files\n");
    let resolv = "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n";
    let resolv = files.write("resolv.conf", resolv);
    let hosts = files.write("hosts", "127.0.0.1 backend.test\n");
    let through = with_files(&[
        (&order, "/etc/nsswitch.conf"),
        (&resolv, "/etc/resolv.conf"),
        (&hosts, "/etc/hosts"),
    ]);
    let silent = DatagramSocket::bind(&lab.server, v4([127, 0, 0, 1], 53));
    let listen = format!("--listen={LISTEN_V4}");
    let args = ["forward", &listen, "--to=backend.test:9000"];
    let process = Process::start_through(&lab.server, &through, BINARY, &args);
    silent.recv();
    process.signal(Signal::USR1);
    process.signal(Signal::HUP);
    process.wait_logged("listening");
    process.wait_logged("reloaded");
}

/// A proxy with a configuration file and one backend.
struct ReloadRig {
    proxy: Peername,
    backend: Backend,
    files: Scratch,
    lab: Lab,
}

impl ReloadRig {
    fn new(content: &str) -> Self {
        Self::start_through(&[], content, &["--workers=2"])
    }

    /// Starts the proxy through other programs, with this configuration file and further options.
    fn start_through(through: &[&str], content: &str, args: &[&str]) -> Self {
        let lab = Lab::new();
        let files = Scratch::new();
        let config = format!("--config={}", files.write("proxy.toml", content));
        let args = [&["proxy", "--log-format=json", &config], args].concat();
        Self {
            backend: Backend::listen(&lab.server, TARGET_V4),
            proxy: Peername::start_through(&lab.server, through, &args, &[LISTEN_V4]),
            files,
            lab,
        }
    }

    /// Writes another file, sends SIGHUP, and waits until the proxy has logged `says_then` once more.
    #[track_caller]
    fn reload(&self, content: &str, says_then: &str) {
        self.files.write("proxy.toml", content);
        self.proxy.reload(says_then);
    }

    #[track_caller]
    fn connect(&self, listen: SocketAddr) -> (Conn, Conn) {
        connect_fresh_client(&self.lab, listen, &self.backend)
    }

    /// Counts how many connections are served at once. Returns once most of them are closed again; those that were over the
    /// limit then get a permit, and wait for the backend.
    fn measure_capacity(&self) -> usize {
        let open = self.accept_until_full();
        let (served, fds) = (open.len(), self.proxy.count_fds());
        drop(open);
        wait_until("most connections are closed", || {
            self.proxy.count_fds() + served < fds
        });
        served
    }

    fn accept_until_full(&self) -> Vec<(Conn, Conn)> {
        let mut open = Vec::new();
        loop {
            let client = fresh_client_v4();
            let down = connect_client(&self.lab, LISTEN_V4, client);
            // The connection that exceeded the limit last time may have been accepted since.
            let served = self.proxy.accept_until_full(&self.backend);
            match served.into_iter().find(|up| up.peer_addr() == client) {
                Some(up) => open.push((down, up)),
                None => return open,
            }
        }
    }

    /// Stops the proxy and returns the last line of its log: the totals.
    fn stop(mut self) -> serde_json::Value {
        self.proxy.stop()
    }
}

fn both_listeners() -> String {
    let trust = ["10.81.0.0/24"];
    table(LISTEN_V4, &trust) + &table(PRIVILEGED, &trust)
}

fn table(listen: SocketAddr, trust: &[&str]) -> String {
    format!(
        "[[listen]]\naddress = [\"{listen}\"]\ntarget-v4 = \"{TARGET_V4}\"\ntrust = {trust:?}\n"
    )
}

#[track_caller]
fn assert_round_trip(lab: &Lab, listen: SocketAddr) {
    let down = connect_client(lab, listen, fresh_client_v4());
    down.send(b"ping");
    assert_eq!(down.recv(4), b"ping");
    down.shutdown_write();
    assert_eq!(down.recv_to_end(), (vec![], End::Fin));
}

/// Sends the first four bytes of every connection back.
fn echo(backend: &Backend, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Some(up) = backend.accept_within(Duration::from_millis(50)) {
            up.send(&up.recv(4));
            up.shutdown_write();
        }
    }
}

/// A privileged port, which a reload opens with the capability that the process has kept.
const PRIVILEGED: SocketAddr = v4([10, 81, 0, 1], 443);

//! Notifications: READY, RELOADING, STOPPING, MAINPID, the watchdog. The manager ends a service whose notifications are lost.

use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::End;
use crate::harness::lab::{
    Host, Lab, OWN_PID_NAMESPACE, Process, Scratch, WAIT_LIMIT, assert_contains, assert_within,
    lossy_text,
};
use crate::harness::peername::{BINARY, PROXY_ARGS};
use crate::harness::rig::proxy::{connect_client, connect_fresh_client};
use crate::harness::rig::upgrade::{Binary, UpgradeRig};

/// The states: READY once the proxy listens, watchdog messages, the beginning and end of a reload, STOPPING.
#[test]
fn service_manager_is_notified_of_each_state() {
    let (lab, manager) = (Lab::new(), Manager::new());
    let through = ["env", &manager.variable, "WATCHDOG_USEC=1000000"];
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let mut proxy = Process::start_through(&lab.server, &through, BINARY, PROXY_ARGS);
    let ready = manager.wait_message("READY=1");
    assert_contains(&ready, &["STATUS=tcp 10.81.0.1:8443"]);
    let client = fresh_client_v4();
    let down = connect_client(&lab, LISTEN_V4, client);
    let up = backend.accept();
    // At least twice within the watchdog's time, as sd_watchdog_enabled(3) says.
    assert_within(3, Duration::from_millis(500), || {
        manager.wait_message("WATCHDOG=1");
        let start = Instant::now();
        manager.wait_message("WATCHDOG=1");
        start.elapsed()
    });
    proxy.signal(Signal::HUP);
    let reloading = manager.wait_message("RELOADING=1");
    let since = reloading
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(since.is_some_and(|usec| usec != "0"), "{reloading}");
    assert!(
        manager
            .wait_message("READY=1")
            .contains("STATUS=reloaded; tcp")
    );
    proxy.signal(Signal::TERM);
    manager.wait_message("STOPPING=1");
    // For as long as the proxy drains, which may take longer than the watchdog allows.
    manager.wait_message("WATCHDOG=1");
    manager.wait_message("WATCHDOG=1");
    drop((down, up));
    proxy.wait_success(Duration::from_secs(2));
}

/// An upgrade is a reload with a new main process, which reports from then on and feeds the watchdog.
#[test]
fn upgrade_names_the_new_main_process() {
    let (lab, manager) = (Lab::new(), Manager::new());
    let environment = [
        "env",
        &manager.variable,
        "WATCHDOG_USEC=1000000",
        "sh",
        "-c",
        "WATCHDOG_PID=$$ exec \"$@\"",
        "sh",
    ];
    let mut rig = UpgradeRig::start_with(&lab.server, &environment, PROXY_ARGS);
    manager.wait_message("READY=1");
    for _ in 0..3 {
        rig.upgrade(&lab.server).expect("it upgrades");
        manager.wait_message("RELOADING=1");
        manager.wait_message(&format!("MAINPID={}", rig.serving_inside()));
        let ready = manager.wait_message("READY=1");
        assert_contains(&ready, &["STATUS=tcp 10.81.0.1:8443"]);
        manager.wait_message("WATCHDOG=1");
    }
    rig.install(&lab.server, Binary::Exits);
    rig.upgrade(&lab.server).expect_err("a refusal");
    manager.wait_message("RELOADING=1");
    let ready = manager.wait_message("READY=1");
    assert_contains(&ready, &["STATUS=last upgrade refused"]);
    manager.wait_message("WATCHDOG=1");
}

/// The proxy does not block on a manager that does not read.
#[test]
fn hanging_service_manager_does_not_block_the_proxy() {
    let (lab, manager) = (Lab::new(), Manager::new());
    let mut proxy =
        Process::start_through(&lab.server, &["env", &manager.variable], BINARY, PROXY_ARGS);
    manager.wait_message("READY=1");
    // The manager's socket holds ten messages; a reload sends two.
    for _ in 0..12 {
        proxy.signal(Signal::HUP);
        thread::sleep(Duration::from_millis(50));
    }
    proxy.signal(Signal::TERM);
    proxy.wait_success(Duration::from_secs(5));
}

/// systemd ignores a message of more than 4096 bytes, and READY with it.
#[test]
fn long_status_is_cut() {
    let (lab, manager) = (Lab::new(), Manager::new());
    let to = format!("--to={TARGET_V4}");
    let listen: Vec<_> = (0..300)
        .map(|number| format!("--listen=10.81.0.1:{}", 7000 + 2 * number))
        .collect();
    let mut args = vec!["forward", "--workers=1", &to];
    args.extend(listen.iter().map(String::as_str));
    let through = ["env", &manager.variable];
    let proxy = Process::start_through(&lab.server, &through, BINARY, &args);
    assert_cut(
        &manager.wait_message("READY=1"),
        "STATUS=tcp 10.81.0.1:7000",
    );
    drop(proxy);

    let config = |errors: usize| {
        let unknown: String = (0..errors)
            .map(|key| format!("unknown-key-{key} = 1\n"))
            .collect();
        format!("{unknown}[[forward]]\nlisten = [\"{LISTEN_V4}\"]\nto = \"{TARGET_V4}\"\n")
    };
    let scratch = Scratch::new();
    let file = format!("--config={}", scratch.write("forward.toml", &config(0)));
    let proxy = Process::start_through(&lab.server, &through, BINARY, &["forward", &file]);
    manager.wait_message("READY=1");
    scratch.write("forward.toml", &config(300));
    proxy.signal(Signal::HUP);
    manager.wait_message("RELOADING=1");
    assert_cut(
        &manager.wait_message("READY=1"),
        "STATUS=last reload refused",
    );
}

#[track_caller]
fn assert_cut(message: &str, status: &str) {
    assert_contains(message, &[status]);
    assert!((1024..1100).contains(&message.len()), "{message}");
    assert!(message.ends_with("…\n"), "{message}");
}

/// Each message waits for the manager, as long as that takes.
#[test]
fn full_queue_of_the_service_manager_loses_no_notification() {
    let (lab, manager) = (Lab::new(), Manager::new());
    manager.fill_queue();
    let through = ["env", &manager.variable];
    let proxy = Process::start_through(&lab.server, &through, BINARY, PROXY_ARGS);
    proxy.wait_logged_times(QUEUE_FULL, 1);
    manager.wait_message("READY=1");
    manager.fill_queue();
    proxy.signal(Signal::HUP);
    proxy.wait_logged("\"reloaded\"");
    manager.wait_message("RELOADING=1");
    manager.wait_message("READY=1");
    proxy.wait_logged_times(QUEUE_FULL, 2);
}

/// systemd ends all processes of a service whose main process exits before MAINPID.
#[test]
fn replaced_process_waits_until_the_service_manager_knows_the_new_one() {
    for drain in ["--upgrade-drain=1h", "--upgrade-drain=0s"] {
        let (lab, manager) = (Lab::new(), Manager::new());
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let args = [PROXY_ARGS, &[drain]].concat();
        let mut rig = UpgradeRig::start_with(&lab.server, &["env", &manager.variable], &args);
        manager.wait_message("READY=1");
        let (down, up) = connect_fresh_client(&lab, LISTEN_V4, &backend);
        manager.fill_queue();
        rig.upgrade(&lab.server).expect("it upgrades");
        if drain == "--upgrade-drain=1h" {
            drop((down, up));
        } else {
            assert_eq!(down.recv_to_end().1, End::Reset);
        }
        rig.processes.wait_logged("drain ended: ");
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(rig.servers().len(), 2, "{drain}");
        // The manager may have ignored READY of the new process before.
        let main = manager.wait_other_messages(&format!("MAINPID={}", rig.serving_inside()));
        assert_contains(&main, &["READY=1\n"]);
        rig.wait_drained();
    }
}

/// The agent has one thread, because it forks.
#[test]
fn agent_repeats_notifications() {
    let (host, manager, scratch) = (Host::new(), Manager::new(), Scratch::new());
    let through = [OWN_PID_NAMESPACE, &["env", &manager.variable]].concat();
    let start = |socket: &str| {
        manager.fill_queue();
        let listen = format!("--listen={}", scratch.path_text(socket));
        let args = ["agent", &listen, "--trust=10.81.0.0/24"];
        let agent = Process::start_through(&host, &through, BINARY, &args);
        agent.wait_logged("peername: the service manager's queue is full");
        agent
    };
    let _notified = start("notified.sock");
    manager.wait_message("READY=1");
    let in_vain = start("in-vain.sock");
    manager
        .socket
        .shutdown(Shutdown::Read)
        .expect("shutdown(2)");
    in_vain.wait_logged("peername: the service manager is not notified: ");
}

/// A service manager's socket, and the variable that names it.
struct Manager {
    socket: UnixDatagram,
    variable: String,
    _scratch: Scratch,
}

impl Manager {
    fn new() -> Self {
        let scratch = Scratch::new();
        let socket = UnixDatagram::bind(scratch.path("notify")).expect("a socket");
        socket
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("SO_RCVTIMEO");
        Self {
            socket,
            variable: format!("NOTIFY_SOCKET={}", scratch.path_text("notify")),
            _scratch: scratch,
        }
    }

    /// Waits for a message that has this line, after any others, and returns it.
    fn wait_other_messages(&self, wanted: &str) -> String {
        loop {
            let message = self.recv();
            if message.lines().any(|line| line == wanted) {
                return message;
            }
        }
    }

    fn recv(&self) -> String {
        let mut buffer = [0; 4096];
        let len = self.socket.recv(&mut buffer).expect("a message in time");
        lossy_text(&buffer[..len])
    }

    /// Waits for the next message that has this line; watchdog messages come in between.
    #[track_caller]
    fn wait_message(&self, wanted: &str) -> String {
        loop {
            let message = self.recv();
            if message.lines().any(|line| line == wanted) {
                return message;
            }
            assert_eq!(message.trim(), "WATCHDOG=1", "instead of {wanted}");
        }
    }

    /// Fills the queue, as a manager that does not read leaves it.
    fn fill_queue(&self) {
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("fcntl(F_SETFL)");
        let path = self.socket.local_addr().expect("getsockname(2)");
        while sender.send_to_addr(b"WATCHDOG=1\n", &path).is_ok() {}
    }
}

const QUEUE_FULL: &str = "the service manager's queue is full";

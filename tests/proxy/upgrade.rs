//! Upgrade without loss: SIGUSR2 and `peername upgrade`.

mod admin;
mod drain;
mod load;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use peername_sys::process::pidfd::descendants;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch, assert_contains, wait_until};
use crate::harness::peername::{BINARY, PROXY_ARGS, words};
use crate::harness::rig::proxy::{connect_client, connect_fresh_client};
use crate::harness::rig::upgrade::{Binary, UpgradeRig};
use load::under_tcp_load;

/// A hundred upgrades in a row, every third to a broken binary.
#[test]
fn hundred_upgrades_lose_no_connection() {
    let lab = Lab::new();
    let args = [quiet_args(), vec!["--drain=600s", "--upgrade-timeout=4s"]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let served = under_tcp_load(&lab, |load| {
        let between = || load.wait_served(20);
        rig.upgrade_repeatedly(&lab.server, UPGRADES, &Binary::BROKEN, between);
    });
    let refused = UPGRADES / 3;
    wait_until("the last refusal", || {
        let log = rig.processes.log();
        log.matches("upgrade refused").count() == refused
    });
    eprintln!("{UPGRADES} upgrades, {refused} of them refused; {served} connections");
    rig.wait_drained();
}

/// The usual arguments without `-v`, which logs a line for each connection.
fn quiet_args() -> Vec<&'static str> {
    let args = PROXY_ARGS.iter().copied();
    args.filter(|arg| *arg != "-v").collect()
}

/// The configuration is read again, and listeners that it no longer has drain.
#[test]
fn upgrade_applies_a_changed_configuration() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let table = |port| {
        format!(
            "[[listen]]\naddress = [\"10.81.0.1:{port}\"]\ntarget-v4 = \"{TARGET_V4}\"\n\
             trust = [\"10.81.0.0/24\"]\n"
        )
    };
    let scratch = Scratch::new();
    let file = scratch.write("proxy.toml", &(table(8443) + &table(8444)));
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &format!("--config={file}")]);
    let listen = |port| SocketAddr::new(LISTEN_V4.ip(), port);
    let assert_served = |port| {
        let _open = connect_fresh_client(&lab, listen(port), &backend);
    };
    assert_served(8443);
    assert_served(8444);
    scratch.write("proxy.toml", &(table(8443) + &table(8445)));
    rig.upgrade(&lab.server).expect("it upgrades");
    assert_served(8443);
    assert_served(8445);
    lab.balancer.wait_connection_refused(listen(8444));
    scratch.write("proxy.toml", "no configuration");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["proxy.toml"]);
    assert_served(8443);
}

/// The listening sockets of workers that are left out are served by the others; additional workers open sockets of their own.
#[test]
fn upgrade_applies_another_number_of_workers() {
    let lab = Lab::new();
    let config = |workers| {
        format!(
            "workers = {workers}\ndrain = \"600s\"\n[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \
             \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
        )
    };
    let scratch = Scratch::new();
    let file = scratch.write("proxy.toml", &config(4));
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &format!("--config={file}")]);
    let is_worker = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("worker-"))
    };
    under_tcp_load(&lab, |load| {
        for workers in [1, 3, 6, 2] {
            load.wait_served(20);
            scratch.write("proxy.toml", &config(workers));
            rig.upgrade(&lab.server).expect("it upgrades");
            wait_until("the number of workers", || {
                fs::read_dir(format!("/proc/{}/task", rig.serving))
                    .is_ok_and(|threads| threads.flatten().filter(is_worker).count() == workers)
            });
            load.wait_served(50);
        }
    });
}

/// The kernel prefers the more specific of two listeners, so neither takes the other's clients: no conflict, as at a start.
#[test]
fn upgrade_adds_an_address_that_overlaps_one_of_the_old_process() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let table = |ip: &str| {
        format!(
            "[[forward]]\nlisten = [\"{ip}:{}\"]\nprotocol = \"both\"\nto = \"{TARGET_V4}\"\n",
            LISTEN_V4.port()
        )
    };
    let (any, specific) = (table("0.0.0.0"), table(&LISTEN_V4.ip().to_string()));
    for before in [&any, &specific] {
        let scratch = Scratch::new();
        let file = scratch.write("forward.toml", before);
        let mut rig = UpgradeRig::start(&lab.server, &["forward", &format!("--config={file}")]);
        scratch.write("forward.toml", &(any.clone() + &specific));
        rig.upgrade(&lab.server).expect("it upgrades");
        let loopback = SocketAddr::from(([127, 0, 0, 1], LISTEN_V4.port()));
        for (client, listen) in [(&lab.balancer, LISTEN_V4), (&lab.server, loopback)] {
            let _down = Conn::connect_and_send(client, listen, b"hello");
            backend.accept();
        }
    }
}

/// As a start does: with SO_REUSEPORT, the two programs would share their clients.
#[test]
fn upgrade_does_not_join_another_program_beside_an_own_wildcard() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let config = |listen: &str| {
        let table = format!("[[forward]]\nlisten = [{listen}]\nto = \"{TARGET_V4}\"\n");
        scratch.write("forward.toml", &table)
    };
    let any = format!("\"0.0.0.0:{}\"", LISTEN_V4.port());
    let file = config(&any);
    let mut rig = UpgradeRig::start(&lab.server, &["forward", &format!("--config={file}")]);
    let shared = BindOptions {
        reuse_port: true,
        v6_only: false,
    };
    let listen = || listener::listen(LISTEN_V4, shared);
    let _other = lab.server.enter(listen).expect("another program");
    config(&format!("{any}, \"{LISTEN_V4}\""));
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["another program listens there"]);
}

/// Sockets of additional workers, and those of new addresses beside the old process's, get no client before the new process
/// serves: if it is refused, they would be reset.
#[test]
fn refused_upgrade_takes_no_client_from_the_old_process() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let config = |workers, listen: &str| {
        format!(
            "workers = {workers}\nupgrade-timeout = \"4s\"\n[[listen]]\naddress = [{listen}]\ntarget-v4 = \
             \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
        )
    };
    let scratch = Scratch::new();
    let any = format!("\"0.0.0.0:{}\"", LISTEN_V4.port());
    let file = scratch.write("proxy.toml", &config(1, &any));
    let rig = UpgradeRig::start(&lab.server, &["proxy", &format!("--config={file}")]);
    let both = format!("{any}, \"{LISTEN_V4}\"");
    for (workers, listen) in [(16, &any), (1, &both)] {
        scratch.write("proxy.toml", &config(workers, listen));
        rig.install(&lab.server, Binary::Waits);
        let refusals = || rig.processes.log().matches("upgrade refused").count();
        let before = refusals();
        rig.signal(Signal::USR2);
        rig.wait_waiting();
        for _ in 0..10 {
            let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
        }
        wait_until("the refusal", || refusals() > before);
        assert_contains(&rig.processes.log(), &["not ready after"]);
    }
}

/// The socket is that of the old process, which may go on.
#[test]
fn upgrade_that_makes_a_listener_transparent_is_refused() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let scratch = Scratch::new();
    let config = |more: &str| {
        let table = format!(
            "[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
        );
        scratch.write("proxy.toml", &(table + more))
    };
    let file = config("");
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &format!("--config={file}")]);
    config("listen-transparent = true\n");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(
        &error,
        &["TPROXY rules redirect can't change without a restart"],
    );
    let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
}

/// The system refuses the new process a thread (`TasksMax=`, RLIMIT_NPROC). The old one goes on.
#[test]
fn upgrade_without_threads_is_refused() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    // A user of its own, whose tasks are those of the old process, about 12, and of the new one.
    let limited = words("setpriv --reuid=61018 --regid=61018 --clear-groups prlimit --nproc=18");
    let (listen, to) = (format!("--listen={LISTEN_V4}"), format!("--to={TARGET_V4}"));
    let args = ["forward", &listen, &to, "--workers=8"];
    let mut rig = UpgradeRig::start_with(&lab.server, &limited, &args);
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["starting a worker thread"]);
    let _down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"hello");
    backend.accept();
}

/// Most descriptors are listening sockets: the old process has none left to duplicate them, and the new one receives them before
/// it checks that there are enough.
#[test]
fn upgrade_hands_over_sockets_that_take_most_descriptors() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let few_descriptors = ["prlimit", "--nofile=1024:1024"];
    let to = format!("--to={TARGET_V4}");
    let listen = "--listen=10.81.0.1:7000-7399";
    let args = ["forward", "--protocol=both", listen, &to, "--workers=1"];
    let mut rig = UpgradeRig::start_with(&lab.server, &few_descriptors, &args);
    rig.upgrade(&lab.server).expect("it upgrades");
    let last = SocketAddr::new(LISTEN_V4.ip(), 7399);
    let _down = Conn::connect_and_send(&lab.balancer, last, b"hello");
    backend.accept();
}

/// SIGUSR2 does the same as `peername upgrade`.
#[test]
fn sigusr2_upgrades() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let rig = UpgradeRig::start(&lab.server, PROXY_ARGS);
    rig.signal(Signal::USR2);
    rig.processes
        .wait_logged("upgraded: the new process serves");
    wait_until("the old process has ended", || {
        let pids = rig.servers();
        pids.len() == 1 && pids != [rig.serving]
    });
    let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
}

/// SIGHUP reaches the old process, and the new one has read the file before it was changed.
#[test]
fn configuration_that_changes_during_an_upgrade_is_read_again() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let config = |denied: &str| {
        format!(
            "[[forward]]\nlisten = [\"{LISTEN_V4}\"]\nto = \"{TARGET_V4}\"\ndeny-client = [\"{denied}\"]\n"
        )
    };
    let file = scratch.write("forward.toml", &config("198.51.100.1"));
    let rig = UpgradeRig::start(&lab.server, &["forward", &format!("--config={file}")]);
    rig.install(&lab.server, Binary::Waits);
    rig.signal(Signal::USR2);
    rig.wait_waiting();
    scratch.write("forward.toml", &config("198.51.100.2"));
    rig.signal(Signal::HUP);
    rig.processes
        .wait_logged("upgraded: the new process serves");
    rig.processes.wait_logged("\"reloaded\"");
    assert_contains(&rig.processes.log(), &["deny-client"]);
}

/// Each process has rules of its own until it ends, so there is no moment without rules, and none is left behind.
#[test]
fn upgrade_keeps_the_routing_rules() {
    let lab = Lab::without_routes();
    let before = lab.server.routing_rules();
    let args = [quiet_args(), vec!["--setup-routes"]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    under_tcp_load(&lab, |load| {
        for _ in 0..3 {
            load.wait_served(20);
            rig.upgrade(&lab.server).expect("it upgrades");
        }
        load.wait_served(20);
    });
    rig.wait_drained();
    rig.signal(Signal::TERM);
    wait_until("no rule is left", || lab.server.routing_rules() == before);
}

/// `pgrep` lists the launcher, too, so an operator may take it for the process to upgrade.
#[test]
fn upgrade_of_the_launcher_names_the_process_that_serves() {
    let lab = Lab::new();
    let mut rig = UpgradeRig::start(&lab.server, PROXY_ARGS);
    let serving = rig.serving;
    let is_launcher = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "launcher")
    };
    let children = descendants(serving);
    rig.serving = children.into_iter().find(is_launcher).expect("a launcher");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &[&format!("use --pid {serving}")]);
}

/// PID 1 can't be replaced, because its container ends with it. It refuses the upgrade, and goes on serving.
#[test]
fn process_1_is_not_upgraded() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let process = Process::start_in_pid_namespace(&lab.server, BINARY, PROXY_ARGS);
    process.wait_logged("listening");
    let pids = descendants(process.pid());
    let pid = i32::try_from(pids[0]).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), Signal::USR2).expect("kill");
    process.wait_logged("this process is PID 1");
    let client = fresh_client_v4();
    let _down = connect_client(&lab, LISTEN_V4, client);
    let limit = Duration::from_secs(5);
    assert_eq!(
        backend.accept_within(limit).expect("served").peer_addr(),
        client
    );
}

const UPGRADES: usize = 100;

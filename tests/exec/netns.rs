//! `peername exec --mode netns`: a server in a private network namespace, with the proxy in it, as root and
//! as an ordinary user; the host's configuration does not change.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::harness::addr::{
    BALANCER_V4, CLIENT_V4, FRONT_V4, LISTEN_V4, LISTEN_V6, fresh_client_v4, fresh_client_v6,
};
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, WAIT_LIMIT, python, stderr_text, wait_until,
};
use crate::harness::peername::{
    AS_NOBODY, BINARY, NO_CAPABILITIES, Peername, USERS, User, copy_executable, words,
};
use crate::harness::programs::sender::Haproxy;
use crate::harness::rig::exec_notify::{kill_pid, network_of, wait_helper_pid};
use crate::harness::rig::proxy::{connect_client, header_for};

/// A server on 127.0.0.1:8443 and [::1]:8443 of a private network.
struct Private {
    process: Process,
    lab: Lab,
    _scratch: Scratch,
}

impl Private {
    /// Starts the program as this user.
    fn start(user: User, protocol: &str, program: &[&str]) -> Self {
        Self::start_with(user, &[protocol], program)
    }

    /// Starts the program as this user with these options of `exec`.
    fn start_with(user: User, options: &[&str], program: &[&str]) -> Self {
        let (lab, scratch) = (Lab::without_routes(), Scratch::new());
        let copy = copy_executable(&lab.server, &scratch);
        let (through, binary) = match user {
            User::Nobody => ([AS_NOBODY, NO_CAPABILITIES].concat(), copy.as_str()),
            User::Root => (vec![], BINARY),
        };
        // A port that is named twice is listened on once.
        let exec = words("exec --mode=netns --ports=8443,8443 --trust=10.81.0.0/24");
        let usual = ["--trust=fd81::/64", "-v", "--"];
        let args = [&exec[..], options, &usual, program].concat();
        let process = Process::start_through(&lab.server, &through, binary, &args);
        // The first line is the proxy's, the second one the server's, which may start later.
        process.wait_logged("\"listening\"");
        process.wait_printed("serving");
        Self {
            process,
            lab,
            _scratch: scratch,
        }
    }

    /// A helper process beside the program.
    fn wait_helper(&self, name: &str) -> Pid {
        let network = network_of(&self.process.pid().to_string());
        wait_helper_pid(name, &network.expect("a network"))
    }

    /// The client that the server reports for a connection with this header.
    #[track_caller]
    fn reported_client(&self, to: SocketAddr, bytes: &[u8]) -> SocketAddr {
        address(
            &Conn::connect_and_send(&self.lab.balancer, to, bytes)
                .recv_to_end()
                .0,
        )
    }
}

#[test]
fn python_sees_the_client_as_root_and_as_ordinary_user() {
    for user in USERS {
        let server = Private::start(user, "--protocol=tcp", PYTHON);
        for to in [LISTEN_V4, LISTEN_V6] {
            for client in [fresh_client_v4(), fresh_client_v6()] {
                assert_eq!(
                    server.reported_client(to, &header_for(client)),
                    client,
                    "{user:?}"
                );
            }
        }
        let client = fresh_client_v4();
        assert_eq!(
            server.reported_client(LISTEN_V4, &header_bytes::v1(client, FRONT_V4)),
            client
        );
        let tlvs = header_bytes::tlv(0xe0, &[7; 300]);
        assert_eq!(
            server
                .reported_client(LISTEN_V4, &header_bytes::v2(client, FRONT_V4, &tlvs))
                .ip(),
            client.ip()
        );
        let uid = match user {
            User::Root => 0,
            User::Nobody => 65_534,
        };
        server.process.wait_printed(&format!("user {uid}"));
    }
}

#[test]
fn server_behind_haproxy_sees_the_client() {
    let server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let _haproxy = Haproxy::start(&server.lab, LISTEN_V4, "send-proxy-v2");
    let (answer, _) = Conn::connect(&server.lab.client, FRONT_V4).recv_to_end();
    assert_eq!(address(&answer), CLIENT_V4);
}

/// The proxy in the namespace gets the options that decide on headers.
#[test]
fn headers_are_judged_by_the_given_options() {
    let options = ["--without-client=refuse", "--strict-header"];
    let server = Private::start_with(User::Root, &options, PYTHON);
    for (_, no_client) in header_bytes::without_client() {
        Conn::assert_reset(&server.lab.balancer, LISTEN_V4, &no_client);
    }
    let port_zero = header_bytes::v1(SocketAddr::new(CLIENT_V4.ip(), 0), FRONT_V4);
    Conn::assert_reset(&server.lab.balancer, LISTEN_V4, &port_zero);
    let client = fresh_client_v4();
    connect_client(&server.lab, LISTEN_V4, client);
    server.process.wait_logged(&client.to_string());
}

#[test]
fn connection_without_a_header_is_reset() {
    let server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let conn = Conn::connect_and_send(&server.lab.balancer, LISTEN_V4, b"GET / HTTP/1.0\r\n\r\n");
    conn.wait_reset();
    let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    let itself = server.reported_client(LISTEN_V4, &local);
    assert!(itself.ip().is_loopback() && itself.ip() != BALANCER_V4);
}

#[test]
fn local_sources_are_allowed_on_request_only() {
    let client = SocketAddr::from(([127, 0, 0, 1], 40_010));
    let server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let conn = connect_client(&server.lab, LISTEN_V4, client);
    conn.wait_reset();
    let server = Private::start_with(User::Nobody, &["--source-policy=allow-local"], PYTHON);
    assert_eq!(
        server.reported_client(LISTEN_V4, &header_for(client)),
        client
    );
}

#[test]
fn slow_header_delays_no_other_client() {
    let server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let (slow, quick) = (fresh_client_v4(), fresh_client_v4());
    let header = header_for(slow);
    let (first, rest) = header.split_at(9);
    let waiting = Conn::connect_and_send(&server.lab.balancer, LISTEN_V4, first);
    assert_eq!(server.reported_client(LISTEN_V4, &header_for(quick)), quick);
    waiting.send(rest);
    assert_eq!(address(&waiting.recv_to_end().0), slow);
}

#[test]
fn two_hundred_silent_clients_delay_no_other_client() {
    let server = Private::start_with(
        User::Nobody,
        &["--protocol=tcp", "--header-timeout=60s"],
        PYTHON,
    );
    let open = |client: SocketAddr| {
        Conn::connect_and_send(&server.lab.balancer, LISTEN_V4, &header_for(client)[..15])
    };
    let clients: Vec<_> = (0..200).map(|_| fresh_client_v4()).collect();
    let silent: Vec<_> = clients.iter().map(|&client| open(client)).collect();
    for _ in 0..20 {
        let client = fresh_client_v4();
        assert_eq!(
            server.reported_client(LISTEN_V4, &header_for(client)),
            client
        );
    }
    for (conn, client) in silent.iter().zip(clients) {
        conn.send(&header_for(client)[15..]);
        assert_eq!(address(&conn.recv_to_end().0), client);
    }
}

/// In the private network no socket could have the header's destination as its own address.
#[test]
fn dst_option_is_refused() {
    let host = Host::new();
    let args = "exec --mode=netns --trust=any --dst --ports=8443 -- true";
    let ended = Peername::run(&host, &args.split(' ').collect::<Vec<_>>());
    let printed = stderr_text(&ended);
    assert!(
        !ended.status.success() && printed.contains("--dst"),
        "{printed}"
    );
}

/// In other modes the options would have no effect: the program would be reachable at other addresses than its user thinks.
#[test]
fn netns_options_are_refused_in_other_modes() {
    let host = Host::new();
    for (args, error) in [
        (
            &["--listen=127.0.0.1:9999"][..],
            "--listen is for --mode netns",
        ),
        (
            &["--mode=notify", "--protocol=udp"],
            "UDP goes by --mode netns only",
        ),
    ] {
        let args = [&["exec"], args, &["--", "true"]].concat();
        let printed = Peername::run_failing(&host, &args, 2);
        assert!(printed.contains(error), "{printed}");
    }
}

#[test]
fn datagrams_show_the_client() {
    for user in USERS {
        let server = Private::start(user, "--protocol=both", PYTHON);
        let balancer = DatagramSocket::bind(&server.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let client = fresh_client_v4();
        let header = header_bytes::v2_udp(client, FRONT_V4);
        balancer.send(LISTEN_V4, &[&header, b"hello"]);
        assert_eq!(address(&balancer.recv().0), client, "{user:?}");
    }
}

/// The program is the launcher's process, so that signals reach it and its exit code is the launcher's.
#[test]
fn program_keeps_its_process() {
    let mut server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    server.process.signal(Signal::INT);
    server.process.assert_exits(7);
    // The proxy ends with the program.
    server.lab.balancer.wait_connection_refused(LISTEN_V4);
}

/// The program may have exited before the helpers run, and the shell that started it may have reaped it. Nothing is reported
/// then.
#[test]
fn program_that_ends_at_once_is_no_error() {
    let lab = Lab::without_routes();
    let exec = format!("{BINARY} exec --mode=netns --ports=8443 --trust=10.81.0.0/24 -- true");
    for _ in 0..30 {
        let mut shell = Command::new("sh");
        let ended = lab
            .server
            .output(shell.args(["-c", &format!("{exec}; exit $?")]), "");
        assert!(ended.status.success(), "{ended:?}");
        let log = stderr_text(&ended);
        assert!(!log.contains("peername: "), "{log}");
    }
}

/// The helpers have a process group of their own, so that a signal of the terminal to the program's group does not reach them.
/// They share the program's session, because the scheduler groups processes by session (autogroup).
#[test]
fn helpers_share_the_programs_session_but_not_its_group() {
    let server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let [group, session] = group_and_session(server.process.pid());
    // The proxy is started as /proc/self/exe, so its process name is `exe`.
    for helper in ["peername-netns", "exe"].map(|name| server.wait_helper(name)) {
        let [its_group, its_session] = group_and_session(helper.as_raw_pid().cast_unsigned());
        assert_ne!(its_group, group);
        assert_eq!(its_session, session);
    }
}

/// Fields 5 and 6 of proc_pid_stat(5).
fn group_and_session(pid: u32) -> [String; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, after_name) = stat.rsplit_once(") ").expect("a name");
    let mut fields = after_name.split(' ').skip(2).map(str::to_owned);
    [(); 2].map(|()| fields.next().expect("a number"))
}

/// Without its proxy no client reaches the program. So it is terminated by SIGTERM, and ten seconds later by SIGKILL.
#[test]
fn killed_proxy_terminates_the_program() {
    let ignoring_sigterm = ignoring_sigterm();
    for program in [PYTHON[2], &ignoring_sigterm] {
        let mut server = Private::start(
            User::Nobody,
            "--protocol=tcp",
            &[PYTHON[0], PYTHON[1], program],
        );
        // The proxy is started as /proc/self/exe, so its process name is `exe`.
        kill_pid(server.wait_helper("exe"));
        let status = server.process.wait_exit(2 * WAIT_LIMIT).expect("its end");
        let signal = if program == ignoring_sigterm {
            Signal::KILL
        } else {
            Signal::TERM
        };
        assert_eq!(status.signal(), Some(signal.as_raw()));
    }
}

/// Standard error is a log on a full disk.
#[test]
fn killed_proxy_terminates_the_program_without_a_log() {
    let lab = Lab::without_routes();
    let unwritable = ["sh", "-c", "exec \"$@\" 2>/dev/full", "sh"];
    let exec = words("exec --mode=netns --ports=8443 --trust=any --");
    let args = [&exec[..], PYTHON].concat();
    let mut process = Process::start_through(&lab.server, &unwritable, BINARY, &args);
    process.wait_printed("serving");
    let network = network_of(&process.pid().to_string()).expect("a network");
    kill_pid(wait_helper_pid("exe", &network));
    process.assert_killed_by(Signal::TERM);
}

/// When the monitor of program and proxy is killed, the kernel kills the program, and the proxy ends with it.
#[test]
fn killed_monitor_ends_program_and_proxy() {
    let mut server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    kill_pid(server.wait_helper("peername-netns"));
    server.process.assert_killed_by(Signal::KILL);
    server.lab.balancer.wait_connection_refused(LISTEN_V4);
}

/// A debugger or a frozen container suspends the monitor, too. SIGSTOP interrupts its wait for the end of program or proxy,
/// and the monitor waits again.
#[test]
fn suspended_monitor_goes_on_after_sigcont() {
    let mut server = Private::start(User::Nobody, "--protocol=tcp", PYTHON);
    let monitor = server.wait_helper("peername-netns");
    for _ in 0..3 {
        suspend_and_resume(monitor);
    }
    assert_eq!(server.process.wait_exit(A_MOMENT), None);
    let client = fresh_client_v4();
    assert_eq!(
        server.reported_client(LISTEN_V4, &header_for(client)),
        client
    );
    kill_pid(server.wait_helper("exe"));
    server.process.assert_killed_by(Signal::TERM);
}

/// SIGSTOP and SIGCONT do not shorten the time that the program has to end by itself.
#[test]
fn suspended_monitor_keeps_its_deadline() {
    let mut server = Private::start(
        User::Nobody,
        "--protocol=tcp",
        &[PYTHON[0], PYTHON[1], &ignoring_sigterm()],
    );
    let monitor = server.wait_helper("peername-netns");
    kill_pid(server.wait_helper("exe"));
    server.process.wait_logged("the proxy has exited");
    suspend_and_resume(monitor);
    assert_eq!(server.process.wait_exit(A_MOMENT), None);
}

/// A Python program that ignores SIGTERM.
fn ignoring_sigterm() -> String {
    let ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)";
    format!("{ignore}\n{}", PYTHON[2])
}

/// Sends SIGSTOP, waits until the process has stopped, and sends SIGCONT.
fn suspend_and_resume(pid: Pid) {
    let wait_state = |state: &str| {
        wait_until(state, || {
            let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
            // An ended process has no state to wait for; the assertions after this wait fail then.
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.is_empty() || stat.contains(&format!(") {state} "))
        });
    };
    wait_state("S");
    rustix::process::kill_process(pid, Signal::STOP).expect("kill");
    wait_state("T");
    rustix::process::kill_process(pid, Signal::CONT).expect("kill");
    wait_state("S");
}

/// The server shuts its listener down, which ends the wait in accept(2). The proxy still listens, and resets clients, as it
/// does for any server that refuses connections.
#[test]
fn shut_down_listener_resets_clients() {
    let server = Private::start(User::Nobody, "--protocol=tcp", &python(WAITING));
    let client = fresh_client_v4();
    assert_eq!(
        server.reported_client(LISTEN_V4, &header_for(client)),
        client
    );
    server.process.signal(Signal::USR2);
    server.process.wait_printed("accept: EINVAL");
    let conn = connect_client(&server.lab, LISTEN_V4, client);
    conn.wait_reset();
}

#[track_caller]
fn address(answer: &[u8]) -> SocketAddr {
    let answer = String::from_utf8_lossy(answer);
    let (ip, port) = answer
        .trim()
        .split_once(' ')
        .unwrap_or_else(|| panic!("{answer:?}"));
    crate::harness::addr::from_parts(ip, port).unwrap_or_else(|| panic!("{answer:?}"))
}

/// Longer than a signal takes to end a program.
const A_MOMENT: Duration = Duration::from_millis(300);

const PYTHON: &[&str] = &python(include_str!("netns/serving.py"));

/// One thread waits in accept(2); SIGUSR2 shuts the listener down.
const WAITING: &str = include_str!("netns/waiting.py");

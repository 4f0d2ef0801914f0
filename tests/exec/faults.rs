//! Faults: what happens when something is missing or breaks.

mod disturbances;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::lab::failing::NO_UNIX;
use crate::harness::lab::{
    Host, Lab, OWN_PID_NAMESPACE, Process, Scratch, assert_fails, assert_prints, failing_calls,
    python, stdout_text, wait_until,
};
use crate::harness::peername::{BINARY, Peername, copy_executable, words};
use crate::harness::rig::exec::{
    Libc, MODES, ProgramRig, ServerRig, built_library, compiled_server, exec_args,
    header_waiter_pid, v2,
};
use crate::harness::rig::exec_notify::NotifyRig;

/// With SIGXFSZ ignored a write fails with EFBIG (setrlimit(2)), with SIGPIPE, as systemd starts services, with EPIPE. A shell
/// ignores none.
#[test]
fn program_ignores_the_signals_that_its_parent_ignores() {
    let program = ["grep", "SigIgn:", "/proc/self/status"];
    let parent = "import os, signal, sys
for name in 'SIGXFSZ', 'SIGPIPE', 'SIGCHLD': signal.signal(getattr(signal, name), getattr(signal, sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])";
    let ignored = |command: &str, disposition: &str| {
        let parent = ["/usr/bin/python3", "-c", parent, disposition, BINARY];
        let args = [&words(command)[..], &["--"], &program].concat();
        let printed = stdout_text(&Peername::run_with_input(&Host::new(), &parent, &args, ""));
        let mask = printed.split_whitespace().last().expect("a mask");
        let mask = u64::from_str_radix(mask, 16).expect("hexadecimal");
        [Signal::XFSZ, Signal::PIPE, Signal::CHILD].map(|signal| mask >> (signal.as_raw() - 1) & 1)
    };
    built_library();
    for command in [
        "exec --mode=preload --trust=any",
        "exec --mode=notify --trust=any",
        "exec --mode=netns --trust=any --ports=8443",
        "exec --connect --source=192.0.2.1:1",
        "jail -q",
        "jail -q --fail-on-deny",
    ] {
        assert_eq!(ignored(command, "SIG_IGN"), [1; 3], "{command}");
        assert_eq!(ignored(command, "SIG_DFL"), [0; 3], "{command}");
    }
}

/// The exit code and the fatal signal are the program's own, and the header waiter is not a child of the program.
#[test]
fn program_keeps_its_process() {
    let host = Host::new();
    let run = |program: &[&str]| Peername::run(&host, &exec_args(&["--trust=any"], program));
    let ended = run(&["sh", "-c", "exit 7"]);
    assert_eq!(ended.status.code(), Some(7));
    let killed = run(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
    assert_eq!(run(&["/nonexistent"]).status.code(), Some(127));
    assert_eq!(run(&["/dev/null"]).status.code(), Some(126));
    let output = run(&["sh", "-c", "ps -o pid= --ppid $$ | wc -l; echo $PPID"]);
    let printed = stdout_text(&output);
    // The shell has no other children than ps and wc.
    let children = printed
        .split_ascii_whitespace()
        .next()
        .map(str::parse::<u32>);
    assert!(matches!(children, Some(Ok(..=2))), "{printed}");
}

/// Complete headers need no header waiter, and accepted connections keep their client; a connection with an
/// incomplete header is refused rather than shown with the wrong client, and delays no other.
#[test]
fn complete_headers_need_no_header_waiter() {
    for server_args in ["--accept=block", "--accept=edge"] {
        let served = ServerRig::new(server_args, &[]);
        let waiting = served.connect_and_send(&v2(fresh_client_v4())[..20]);
        let earlier = fresh_client_v4();
        let accepted = served.connect_and_send(&v2(earlier));
        accepted.assert_stays_open(Duration::from_millis(100));
        kill_header_waiter(&served);
        waiting.wait_reset();
        accepted.send(b"hi");
        served.assert_sees(&accepted, earlier);
        let conn = served.connect_and_send(&v2(fresh_client_v4())[..20]);
        conn.wait_reset();
        served.assert_serves();
    }
}

/// pthread_cancel(3) reaches a thread that waits in accept(2), as without the library.
#[test]
fn thread_in_accept_can_be_cancelled() {
    let host = Host::new();
    for libc in [Libc::Glibc, Libc::Musl] {
        let program = [&compiled_server(libc), "--accept=cancel"];
        let ended = Peername::run(&host, &exec_args(&["--trust=any"], &program));
        let printed = stdout_text(&ended);
        assert_eq!(
            (printed.trim(), ended.status.code()),
            ("cancelled", Some(0))
        );
    }
}

/// While the program has no free descriptor, connections wait in the accept backlog, and so does one whose header came in two
/// pieces.
#[test]
fn exhausted_descriptors_lose_no_connection() {
    for mode in MODES {
        for accept in ["level", "block"] {
            assert_exhausted_descriptors_lose_nothing(mode, accept);
        }
    }
}

fn assert_exhausted_descriptors_lose_nothing(mode: &str, accept: &str) {
    // prlimit(1) limits only the program, so its supervisor has descriptors left.
    let server = compiled_server(Libc::Glibc);
    let limited = format!("--nofile=24 {server} --accept={accept} --hold");
    let served = ServerRig::start(mode, &[], "prlimit", &limited, &[]);
    let open = || {
        let client = fresh_client_v4();
        (
            served.connect_and_send(&[&v2(client)[..], b"hi"].concat()),
            client,
        )
    };
    let mut held: Vec<_> = (0..30).map(|_| open()).collect();
    let late = fresh_client_v4();
    let slow = served.connect_and_send(&v2(late)[..20]);
    slow.send(&v2(late)[20..]);
    slow.send(b"hi");
    held.push((slow, late));
    for (conn, client) in held {
        let report = String::from_utf8(conn.recv_some()).expect("text");
        served.assert_report(&report, client);
    }
}

/// Connections beyond the table's capacity are refused, and every served connection is shown with its client.
#[test]
fn full_table_refuses_connections() {
    for mode in MODES {
        assert_full_table_refuses(mode);
    }
}

fn assert_full_table_refuses(mode: &str) {
    let options = ["--max-connections=64"];
    let served = ServerRig::with_mode(mode, "--accept=level --hold", &options);
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let client = fresh_client_v4();
        let conn = served.connect_and_send(&[&v2(client)[..], b"hi"].concat());
        if conn.is_answered_after(Duration::from_secs(5)) {
            let report = String::from_utf8(conn.recv_some()).expect("text");
            served.assert_report(&report, client);
            held.push(conn);
        } else {
            refused += 1;
        }
    }
    assert_eq!((held.len(), refused), (64, 36));
    drop(held);
    // Once they are closed, a sweep frees their slots.
    wait_until("a free slot", || {
        let client = fresh_client_v4();
        let conn = served.connect_and_send(&[&v2(client)[..], b"hi"].concat());
        conn.is_answered_after(Duration::from_secs(1))
    });
}

/// A failure of the launcher has an exit code of its own (cf. env(1)).
#[test]
fn failed_launcher_has_its_own_exit_code() {
    let (host, scratch) = (Host::new(), Scratch::new());
    // A copy without the library beside it.
    let copy = copy_executable(&host, &scratch);
    let mut command = Command::new(copy);
    command.args(["exec", "--mode=preload", "--trust=private", "--", "true"]);
    assert_fails(
        &host.output(&mut command, ""),
        125,
        &["libpeername.so is neither"],
    );
}

/// The table of clients is allocated at the start: without room for it the program is not started, and no file is left.
#[test]
fn table_without_room_fails_the_start() {
    built_library();
    let host = Host::new();
    let causes = [
        ("size=1m", "true", "/dev/shm has no room for its "),
        (
            "size=64m",
            "ulimit -f 1000",
            "LimitFSIZE= of a unit, ulimit -f",
        ),
    ];
    for mode in MODES {
        for (size, prepare, text) in causes {
            let script = format!(
                "mount -t tmpfs -o {size} tmpfs /dev/shm; (ulimit -c 0; {prepare}; \"$@\"); code=$?; ls -A /dev/shm; exit $code"
            );
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &script, "sh", BINARY, "exec"]);
            command.args([mode, "--trust=any", "--", "echo", "started"]);
            let ended = host.output(&mut command, "");
            assert_fails(&ended, 125, &[text, "lower --max-connections"]);
            assert_prints(&ended, "");
        }
    }
}

/// Any user may fill /dev/shm while the server runs.
#[test]
fn full_shared_memory_harms_no_client() {
    let small = "mount -t tmpfs -o size=8m tmpfs /dev/shm && exec \"$@\"";
    for mode in MODES {
        let through = ["sh", "-c", small, "sh"];
        let served = ServerRig::with_mode_through(mode, &through, "--accept=block", &[]);
        let pid = header_waiter_pid(&served.process).as_raw_pid();
        let filler = format!("/proc/{pid}/root/dev/shm/filler");
        let filled = fs::write(filler, vec![0; 16 << 20]).expect_err("a full file system");
        assert_eq!(filled.kind(), ErrorKind::StorageFull);
        for _ in 0..20 {
            served.assert_serves();
        }
    }
}

/// Standard error is a log on a full disk, or one that has reached the limit of file sizes: the program is started
/// nevertheless, and a start that fails has its own exit code.
#[test]
fn unwritable_standard_error_changes_no_start() {
    built_library();
    let (host, scratch) = (Host::new(), Scratch::new());
    let log = File::create(scratch.path("log")).expect("a file");
    log.set_len(LIMITED_BLOCKS * BLOCK_LEN)
        .expect("ftruncate(2)");
    let at_the_limit = format!(
        "ulimit -f {LIMITED_BLOCKS}; exec 2>>{}",
        scratch.path_text("log")
    );
    for redirected in ["exec 2>/dev/full", &at_the_limit] {
        let script = format!("ulimit -c 0; {redirected}; exec \"$@\"");
        let run = |args: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh", BINARY, "exec"]);
            host.output(command.args(args), "")
        };
        for mode in MODES {
            let ended = run(&[mode, "-v", "--trust=any", "--", "echo", "started"]);
            assert_eq!(ended.status.code(), Some(0), "{mode}: {ended:?}");
            assert_prints(&ended, "started\n");
            let ended = run(&[mode, "--trust=any", "--", "/nonexistent"]);
            assert_eq!(ended.status.code(), Some(127), "{mode}: {ended:?}");
        }
        let ended = run(&["--mode=netns", "--trust=any", "--", "true"]);
        assert_eq!(ended.status.code(), Some(2), "no --ports: {ended:?}");
    }
}

/// The unit of `ulimit -f` in dash.
const BLOCK_LEN: u64 = 512;
/// The table of clients is a file, too.
const LIMITED_BLOCKS: u64 = 1 << 18;

/// The program changes to a user that can't read the table before it loads the library. The supervisor then answers its calls.
#[test]
fn unreadable_table_leaves_the_program_to_the_supervisor() {
    let script =
        "chmod 0 $PEERNAME_TABLE; exec setpriv --reuid=65534 --clear-groups $0 --accept=block";
    let program = ProgramRig::start(&["sh", "-c", script, &compiled_server(Libc::Glibc)]);
    let served = ServerRig::from_process(program.process, program.lab);
    for _ in 0..3 {
        served.assert_serves();
    }
}

/// As pg_ctlcluster does: the first process starts a daemon of another user, which can't read the table, and exits.
#[test]
fn daemon_that_can_not_read_the_table_outlives_the_first_process() {
    let lab = Lab::without_routes();
    // The shell, process 1 of the PID namespace, stays: the namespace would end with it.
    let through = [OWN_PID_NAMESPACE, &["sh", "-c", "\"$@\"; sleep 300", "sh"]].concat();
    let daemon = "chmod 0 $PEERNAME_TABLE; setpriv --reuid=65534 --clear-groups $0 --accept=block & sleep 0.2";
    let server = compiled_server(Libc::Glibc);
    let args = exec_args(&["--trust=any"], &["sh", "-c", daemon, &server]);
    let process = Process::start_through(&lab.server, &through, BINARY, &args);
    let served = ServerRig::from_process(process.wait_listening(&[LISTEN_V4]), lab);
    thread::sleep(Duration::from_millis(500));
    for _ in 0..3 {
        served.assert_serves();
    }
}

/// The library is loaded by LD_PRELOAD alone, without the launcher, so there is neither a table nor a supervisor. A program
/// that listened would report its balancer as its client.
#[test]
fn program_without_table_and_supervisor_may_not_listen() {
    let host = Host::new();
    let preload = format!("LD_PRELOAD={}", built_library().display());
    let mut command = Command::new("env");
    command.args([
        &preload,
        "PEERNAME_TABLE=/nonexistent",
        &compiled_server(Libc::Glibc),
        "--accept=block",
    ]);
    assert_fails(&host.output(&mut command, ""), 1, &["may not listen"]);
}

pub(super) fn kill_header_waiter(served: &ServerRig) {
    kill_process(header_waiter_pid(&served.process), Signal::KILL).expect("kill");
}

/// A process without the library can't accept while the supervisor has no descriptors to start a monitor. Once it has some, the
/// process sees its clients.
#[test]
fn process_without_the_library_accepts_once_there_is_a_monitor() {
    let files = Scratch::new();
    let (go, server) = (files.path_text("go"), compiled_server(Libc::Static));
    let script = format!(
        "echo waiting; until [ -e {go} ]; do sleep 0.02; done; until {server} --accept=block; do sleep 0.05; done"
    );
    let lab = Lab::new();
    let args = exec_args(&["--trust=any"], &["sh", "-c", &script]);
    let process = Process::start(&lab.server, BINARY, &args);
    process.wait_printed("waiting");
    let supervisor = header_waiter_pid(&process);
    let open = open_descriptors(supervisor);
    let previous_limit = limit_free_descriptors(supervisor, &open, 2);
    fs::write(&go, "").expect("write(2)");
    process.wait_logged("a process without the library can't accept yet: ");
    // Each step of a monitor's start fails once.
    for free in 3..10 {
        limit_free_descriptors(supervisor, &open, free);
        thread::sleep(Duration::from_millis(200));
    }
    prlimit(Some(supervisor), Resource::Nofile, previous_limit).expect("prlimit(2)");
    let served = ServerRig::from_process(process.wait_listening(&[LISTEN_V4]), lab);
    let client = fresh_client_v4();
    let conn = served.connect_and_send(&[&v2(client)[..], b"hello"].concat());
    served.assert_sees(&conn, client);
}

/// The supervisor is out of descriptors: it has one for the listener, and none to wait at the listener. accept(2) fails with
/// EMFILE.
#[test]
fn accept_fails_with_the_error_of_the_supervisor() {
    let exec = NotifyRig::start(&[], REPEATING);
    let supervisor = exec.supervisor_pid();
    let limit = || limit_free_descriptors(supervisor, &open_descriptors(supervisor), 0);
    let previous_limit = limit();
    wait_until("an error of accept(2)", || {
        // The signal ends the accept(2) that waits, and the supervisor frees the descriptor with which it waited for that call.
        limit();
        exec.process.signal(Signal::USR1);
        thread::sleep(Duration::from_millis(20));
        exec.process.log().contains("accept: ")
    });
    prlimit(Some(supervisor), Resource::Nofile, previous_limit).expect("prlimit(2)");
    let client = fresh_client_v4();
    assert_eq!(
        exec.connect_and_send(&v2(client)).recv_text_to_end(),
        client.to_string()
    );
    let log = exec.process.log();
    let errors: BTreeSet<_> = log
        .lines()
        .filter(|line| line.contains("accept: "))
        .collect();
    assert_eq!(errors, BTreeSet::from(["accept: EMFILE"]), "{log}");
}

/// The supervisor has a descriptor for the listener and one for the connection, and none for the list. A client that is denied
/// meanwhile is refused nevertheless, also in a unit with `RestrictAddressFamilies=AF_INET AF_INET6`.
#[test]
fn list_is_read_by_a_supervisor_without_a_descriptor() {
    let list = Scratch::new();
    let path = list.write("denied", "");
    let options = [&*format!("--deny-client=@{path}")];
    let exec = NotifyRig::start_through(&failing_calls(NO_UNIX), &options, REPEATING);
    let greet = |client: SocketAddr| exec.connect_and_send(&v2(client));
    let [denied, other] = [v4([198, 51, 100, 7], 4001), v4([198, 51, 100, 8], 4001)];
    let supervisor = exec.supervisor_pid();
    wait_until("the next accept(2)", || {
        let before = open_descriptors(supervisor);
        thread::sleep(Duration::from_millis(100));
        before == open_descriptors(supervisor)
    });
    // The other one becomes free when the wait at the listener ends.
    limit_free_descriptors(supervisor, &open_descriptors(supervisor), 1);
    list.write("denied", "198.51.100.7\n");
    // The files are compared twice a second.
    thread::sleep(Duration::from_secs(1));
    for _ in 0..3 {
        greet(denied).wait_reset();
        assert_eq!(greet(other).recv_text_to_end(), other.to_string());
    }
    let log = exec.process.log();
    assert!(!log.contains("stay in force"), "{log}");
}

fn open_descriptors(process: Pid) -> BTreeSet<u64> {
    fs::read_dir(format!("/proc/{}/fd", process.as_raw_pid()))
        .expect("a process")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().parse().expect("a number"))
        .collect()
}

/// Limits a process that has these descriptors open to `free` further ones. Returns the previous limit.
fn limit_free_descriptors(process: Pid, open: &BTreeSet<u64>, free: usize) -> Rlimit {
    let mut unused = (0..).filter(|number| !open.contains(number));
    let limit = Rlimit {
        current: unused.nth(free),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Some(process), Resource::Nofile, limit).expect("prlimit(2)")
}

/// Repeats accept(2) after each signal and each error.
const REPEATING: &[&str] = &python(include_str!("faults/repeating.py"));

//! A program that runs beside the test and ends with it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use peername_sys::process::pidfd::{self, PidFd, descendants};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Host, WAIT_LIMIT, json_lines, lossy_text, poll_until, wait_until};

/// A running program. Its output is kept, for assertions and for the failure message.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts one process on a host. The kernel kills it when the test's thread ends, panicking or not
    /// (setpriv(1), --pdeathsig); setpriv becomes the program, so the process id is the program's.
    pub(crate) fn start(host: &Host, program: &str, args: &[&str]) -> Self {
        Self::start_through(host, &[], program, args)
    }

    /// Starts a server of several processes in a PID namespace, so that all of them end at once.
    pub(crate) fn start_in_pid_namespace(host: &Host, program: &str, args: &[&str]) -> Self {
        Self::start_through(host, OWN_PID_NAMESPACE, program, args)
    }

    /// Starts a program through others that run it, such as `prlimit --nofile=64`.
    pub(crate) fn start_through(
        host: &Host,
        through: &[&str],
        program: &str,
        args: &[&str],
    ) -> Self {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .args(through)
            .arg(program)
            .args(args);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = host
            .enter(|| command.spawn())
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = Arc::default();
        collect(child.stdout.take().expect("a pipe"), &lines);
        collect(child.stderr.take().expect("a pipe"), &lines);
        Self {
            name: program.to_owned(),
            child,
            lines,
        }
    }

    /// Waits until the process listens on all these addresses; a wildcard listener counts for all.
    pub(crate) fn wait_listening(mut self, addrs: &[SocketAddr]) -> Self {
        let listening = poll_until(Instant::now() + STARTUP_LIMIT, || {
            if let Some(status) = self.child.try_wait().expect("wait") {
                panic!("{} ended at start, {status}:\n{}", self.name, self.log());
            }
            let open = listeners(self.pid());
            addrs
                .iter()
                .all(|addr| open.iter().any(|listener| covers(*listener, *addr)))
                .then_some(())
        });
        assert!(
            listening.is_some(),
            "{} does not listen on {addrs:?}:\n{}",
            self.name,
            self.log()
        );
        self
    }

    /// Waits until a descendant listens on this port in another network namespace than the process's own.
    pub(crate) fn wait_listening_in_netns(self, port: u16) -> Self {
        let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let outside = network(self.pid());
        let inside = |pid: &u32| network(*pid).is_some_and(|own| Some(own) != outside);
        let listening = poll_until(Instant::now() + STARTUP_LIMIT, || {
            descendants(self.pid())
                .into_iter()
                .filter(inside)
                .find(|&pid| listeners(pid).iter().any(|addr| addr.port() == port))
        });
        assert!(
            listening.is_some(),
            "no port {port} inside:\n{}",
            self.log()
        );
        self
    }

    /// Waits until a UDP socket in the process's network namespace is bound to this address.
    pub(crate) fn wait_bound(self, addr: SocketAddr) -> Self {
        let bound = poll_until(Instant::now() + WAIT_LIMIT, || {
            let open = endpoints(self.pid(), ["udp", "udp6"], UNCONNECTED);
            open.contains(&addr).then_some(())
        });
        assert!(bound.is_some(), "{addr} is not bound:\n{}", self.log());
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything the process has printed so far, on both streams.
    pub(crate) fn log(&self) -> String {
        self.lines.lock().expect("no reader panicked").join("\n")
    }

    /// Waits for a line of the output that `pick` accepts.
    pub(crate) fn wait_line<T>(&self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        let find = || {
            self.lines
                .lock()
                .expect("no reader panicked")
                .iter()
                .find_map(|l| pick(l))
        };
        poll_until(Instant::now() + WAIT_LIMIT, find)
            .unwrap_or_else(|| panic!("{}: no line {what} in:\n{}", self.name, self.log()))
    }

    /// Waits for a line of the output that contains this text, and returns the line.
    pub(crate) fn wait_logged(&self, text: &str) -> String {
        self.wait_logged_parts(&[text])
    }

    /// Waits for a line of the output that contains all these texts, and returns the line.
    pub(crate) fn wait_logged_parts(&self, parts: &[&str]) -> String {
        self.wait_line(&format!("with {parts:?}"), |line| {
            let has_all = parts.iter().all(|part| line.contains(part));
            has_all.then(|| line.to_owned())
        })
    }

    /// Waits for a line of JSON that `is_wanted` accepts, and returns it.
    pub(crate) fn wait_json(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_line(what, |line| {
            let line = serde_json::from_str(line).ok()?;
            is_wanted(&line).then_some(line)
        })
    }

    /// The lines of JSON that the process has printed so far.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        json_lines(&self.log())
    }

    /// Waits until `times` lines of the output contain this text.
    pub(crate) fn wait_logged_times(&self, text: &str, times: usize) {
        wait_until(text, || self.count_logged(text) >= times);
    }

    /// Counts the lines of the output so far that contain this text.
    pub(crate) fn count_logged(&self, text: &str) -> usize {
        let log = self.log();
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// Waits for this very line of the output.
    pub(crate) fn wait_printed(&self, line: &str) {
        self.wait_line(line, |found| (found == line).then_some(()));
    }

    /// Counts the open descriptors.
    pub(crate) fn count_fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Reads a field of /proc/PID/status, such as `VmRSS`.
    pub(crate) fn status_field(&self, field: &str) -> String {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        field_value(field, &status)
    }

    /// The process's memory in KiB, without what the kernel keeps for its sockets.
    pub(crate) fn resident_kib(&self) -> usize {
        self.kib("VmRSS")
    }

    /// The process's memory in KiB without pages of files, whose number depends on the page cache.
    pub(crate) fn anonymous_kib(&self) -> usize {
        self.kib("RssAnon")
    }

    fn kib(&self, field: &str) -> usize {
        let text = self.status_field(field);
        text.trim_end_matches(" kB")
            .parse()
            .unwrap_or_else(|_| panic!("{field}: {text}"))
    }

    /// Reads a field of /proc/PID/status for each thread, with the thread's name. Threads that end meanwhile
    /// are left out.
    pub(crate) fn thread_status_fields(&self, field: &str) -> Vec<(String, String)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        tasks
            .flatten()
            .filter_map(status)
            .map(|status| (field_value("Name", &status), field_value(field, &status)))
            .collect()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    /// Sends SIGSTOP and waits until every thread has stopped, which may be after kill(2) has returned.
    pub(crate) fn suspend(&self) {
        self.signal(Signal::STOP);
        let is_stopped = || {
            let states = self.thread_status_fields("State");
            states
                .iter()
                .all(|(_, state)| state.starts_with('T'))
                .then_some(())
        };
        let stopped = poll_until(Instant::now() + WAIT_LIMIT, is_stopped);
        assert!(stopped.is_some(), "{} runs on", self.name);
    }

    /// Waits until all threads sleep, and none has run since the last poll.
    pub(crate) fn wait_idle(&self) {
        let mut before = Vec::new();
        let is_idle = || {
            let now = CONTEXT_SWITCHES.map(|field| self.thread_status_fields(field));
            let states = self.thread_status_fields("State");
            let sleep = states.iter().all(|(_, state)| state.starts_with('S'));
            let same = std::mem::replace(&mut before, now.to_vec()) == now;
            (sleep && same).then_some(())
        };
        let idle = poll_until(Instant::now() + WAIT_LIMIT, is_idle);
        assert!(idle.is_some(), "{} does not become idle", self.name);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        kill_process(pid, signal).expect("kill");
    }

    /// Waits until the process ends, `limit` at most, and asserts success.
    #[track_caller]
    pub(crate) fn wait_success(&mut self, limit: Duration) {
        let status = self.wait_exit(limit);
        let is_success = status.is_some_and(|status| status.success());
        assert!(is_success, "{}: {status:?}", self.name);
    }

    /// Waits until the process ends, and asserts that it exits with this code.
    #[track_caller]
    pub(crate) fn assert_exits(&mut self, code: i32) {
        let status = self.wait_exit(WAIT_LIMIT).expect("its end");
        assert_eq!(status.code(), Some(code), "{}: {status}", self.name);
    }

    /// Waits until the process ends, and asserts that this signal has killed it.
    #[track_caller]
    pub(crate) fn assert_killed_by(&mut self, signal: Signal) {
        let status = self.wait_exit(WAIT_LIMIT).expect("its end");
        assert_eq!(
            status.signal(),
            Some(signal.as_raw()),
            "{}: {status}",
            self.name
        );
    }

    /// Waits for the exit status; `None` if the process still runs after `limit`.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        poll_until(Instant::now() + limit, || {
            self.child.try_wait().expect("wait")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- {} printed:\n{}", self.name, self.log());
        }
        // Descendants that have changed their user do not end with their parent: they have lost the signal of
        // PR_SET_PDEATHSIG (prctl(2)). They can be found only while their parent exists.
        let descendants: Vec<PidFd> = descendants(self.pid())
            .into_iter()
            .flat_map(PidFd::open)
            .collect();
        // These fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in descendants {
            let _ = process.signal(pidfd::Signal::KILL);
        }
    }
}

/// Appends the lines of a stream to `lines`, on a thread.
fn collect(stream: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = lossy_text(&line);
            lines.lock().expect("no reader panicked").push(line);
        }
    });
}

/// The value of a field in the text of /proc/PID/status.
fn field_value(field: &str, status: &str) -> String {
    status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {field} in {status}"))
        .trim()
        .to_owned()
}

/// Whether a listener accepts connections to this address.
fn covers(listener: SocketAddr, wanted: SocketAddr) -> bool {
    // An IPv6 socket may be bound to an IPv4-mapped address.
    let ip = listener.ip().to_canonical();
    // A listener on `::` accepts IPv4, too.
    let is_family_served = ip.is_ipv6() || wanted.is_ipv4();
    let wildcard = ip.is_unspecified() && is_family_served;
    listener.port() == wanted.port() && (wildcard || ip == wanted.ip())
}

/// The listening TCP sockets of a process's network namespace.
fn listeners(pid: u32) -> Vec<SocketAddr> {
    endpoints(pid, ["tcp", "tcp6"], LISTENING)
}

/// The local endpoints of the sockets in one state, in a process's network namespace (proc_net_tcp.txt of the
/// kernel).
fn endpoints(pid: u32, tables: [&str; 2], wanted: &str) -> Vec<SocketAddr> {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let in_state = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, _remote, state) = (words.next()?, words.next()?, words.next()?);
        (state == wanted).then(|| endpoint(local)).flatten()
    };
    let tables = tables.map(table).concat();
    tables.lines().filter_map(in_state).collect()
}

/// Parses `0100007F:0050`, which is 127.0.0.1:80: the address as 32-bit words in native byte order.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        Some(
            u32::from_str_radix(ip.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    let ip = if ip.len() == 8 {
        IpAddr::from(Ipv4Addr::from(word(0)?))
    } else {
        let words = [word(0)?, word(8)?, word(16)?, word(24)?];
        IpAddr::from(Ipv6Addr::from(
            <[u8; 16]>::try_from(words.as_flattened()).ok()?,
        ))
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Erlang, Node and Java take longer to start than any other step does on a busy machine.
const STARTUP_LIMIT: Duration = Duration::from_secs(30);

/// The counts of context switches, voluntary ones and others.
const CONTEXT_SWITCHES: [&str; 2] = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];

/// TCP_LISTEN.
const LISTENING: &str = "0A";
/// TCP_CLOSE, which /proc/net/udp shows for sockets that are not connected.
const UNCONNECTED: &str = "07";

/// The prefix of a command that runs it in a mount namespace, where each of these files is in the place of another:
/// `(file, place)`.
pub(crate) fn with_files<'a>(files: &[(&'a str, &'a str)]) -> Vec<&'a str> {
    let mut prefix = vec!["unshare", "--mount", "sh", "-ec", MOUNT_AND_EXECUTE, "sh"];
    prefix.extend(files.iter().flat_map(|&(file, place)| [file, place]));
    prefix.push("--");
    prefix
}

/// Mounts its first argument on the second one, and so on; executes what follows `--`.
const MOUNT_AND_EXECUTE: &str = r#"
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
shift
exec "$@"
"#;

/// The command that runs a Python script, this text.
pub(crate) const fn python(script: &str) -> [&str; 3] {
    ["/usr/bin/python3", "-uc", script]
}

/// The prefix of a command that runs it in a PID namespace with its own /proc, so that all its processes end with the
/// first one.
pub(crate) const OWN_PID_NAMESPACE: &[&str] = &[
    "unshare",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child=KILL",
];

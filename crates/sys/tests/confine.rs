//! Confinement, each case in a process of its own: this program starts itself with the name of the case, because a process
//! can't get back what it has given up.
#![allow(
    clippy::print_stdout,
    reason = "a test whose output can't be written may end"
)]

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::thread;

use peername_sys::fs::text_file;
use peername_sys::process::confine::files::{self, AllowedFiles};
use peername_sys::process::confine::require_single_thread;
use peername_sys::process::confine::system_calls::{AllowedCalls, SocketFamilies, Sysno};
use peername_sys::process::fork::spawn_detached;
use peername_sys::resolve;

/// A case: its name, what the process does, and how it must end. One that must be killed has confined its calls before.
type Case = (&'static str, fn(), Expected);

/// The environment variable with the name of the case.
const CONFINE_CASE: &str = "CONFINE_CASE";

enum Expected {
    Success,
    /// Killed by SIGSYS, with a line that names this call.
    Killed(Sysno),
}

const CASES: &[Case] = &[
    ("files", only_allowed_files, Expected::Success),
    ("names", names_are_refused, Expected::Success),
    ("threads", a_second_thread_is_refused, Expected::Success),
    ("server", a_server_runs, Expected::Success),
    ("detach", a_daemon_needs_dev_null, Expected::Success),
    ("uring", denied_calls_are_absent, Expected::Success),
    ("newer", newer_calls_are_absent, Expected::Success),
    ("execve", execve, Expected::Killed(Sysno::execve)),
    ("fork", fork, Expected::Killed(Sysno::clone)),
    ("ptrace", ptrace, Expected::Killed(Sysno::ptrace)),
    (
        "thread",
        ptrace_in_a_later_thread,
        Expected::Killed(Sysno::ptrace),
    ),
    ("raw", raw_socket, Expected::Killed(Sysno::socket)),
    ("packet", packet_socket, Expected::Killed(Sysno::socket)),
    ("unix", unix_socket, Expected::Killed(Sysno::socket)),
    ("code", executable_mapping, Expected::Killed(Sysno::mmap)),
    ("signal", signal_to_init, Expected::Killed(Sysno::tgkill)),
    (
        "terminal",
        typing_into_a_terminal,
        Expected::Killed(Sysno::ioctl),
    ),
];

fn main() -> ExitCode {
    // Not an argument: that would be a filter of `cargo test`.
    if let Ok(chosen) = std::env::var(CONFINE_CASE) {
        let mut cases = CASES.iter();
        let (_, case, expected) = cases.find(|(name, ..)| *name == chosen).expect("a case");
        if matches!(expected, Expected::Killed(_)) {
            confine_calls();
        }
        case();
        return ExitCode::SUCCESS;
    }
    let mut failed = false;
    for (name, _, expected) in CASES {
        let output = Command::new("/proc/self/exe")
            .env(CONFINE_CASE, name)
            .output()
            .expect("this program starts itself");
        if expected.is_met_by(&output) {
            println!("confine {name} ... ok");
        } else {
            println!("confine {name} ... FAILED\n{output:?}");
            failed = true;
        }
    }
    ExitCode::from(u8::from(failed))
}

impl Expected {
    fn is_met_by(&self, output: &Output) -> bool {
        let log = String::from_utf8_lossy(&output.stderr);
        match self {
            Self::Success => output.status.success(),
            Self::Killed(call) => {
                let named = format!("the system call {call} ({}),", call.id());
                output.status.signal() == Some(libc::SIGSYS) && log.contains(&named)
            }
        }
    }
}

/// The calls that any Rust program makes, and those of the cases that must succeed.
fn confine_calls() {
    let mut calls = AllowedCalls::default();
    calls.allow(&[
        Sysno::read,
        Sysno::write,
        Sysno::writev,
        Sysno::close,
        Sysno::brk,
        Sysno::fcntl,
        Sysno::munmap,
        Sysno::mremap,
        Sysno::madvise,
        Sysno::futex,
        Sysno::set_robust_list,
        Sysno::rseq,
        Sysno::sched_getaffinity,
        Sysno::gettid,
        Sysno::getpid,
        Sysno::rt_sigprocmask,
        Sysno::rt_sigaction,
        Sysno::sigaltstack,
        Sysno::exit,
        Sysno::exit_group,
        Sysno::bind,
        Sysno::listen,
        Sysno::setsockopt,
        Sysno::membarrier,
    ]);
    calls.allow_threads();
    calls.allow_sockets(SocketFamilies::Network);
    calls.allow_data_mappings();
    calls.allow_descriptor_ioctls();
    calls.allow_harmless_prctls();
    calls.allow_signals_to_itself();
    calls.deny_as_absent(&[Sysno::io_uring_setup]);
    calls.deny_newer_as_absent();
    assert!(
        calls.compile().unwrap().enforce().unwrap(),
        "this kernel has no seccomp(2)"
    );
}

fn only_allowed_files() {
    // The confined process can't remove the directory, so the next run does.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("confine");
    let _ = fs::remove_dir_all(&dir);
    let (inside, outside) = (dir.join("inside"), dir.join("outside"));
    for dir in [&inside, &outside] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("list"), "192.0.2.1").unwrap();
    }
    fs::write(inside.join("old"), "").unwrap();
    let link = inside.join("link");
    std::os::unix::fs::symlink(outside.join("list"), &link).unwrap();
    let version = files::confine(&AllowedFiles {
        read: vec![inside.clone(), PathBuf::from("/nonexistent")],
        remove_in: vec![inside.clone()],
        ..AllowedFiles::default()
    });
    assert!(version.unwrap().is_some(), "this kernel has no Landlock");

    assert_eq!(text_file::read(&inside.join("list")).unwrap(), "192.0.2.1");
    for path in [outside.join("list"), link, PathBuf::from("/etc/passwd")] {
        let error = text_file::read(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(
            error.to_string().contains("restart it"),
            "{path:?}: {error}"
        );
    }
    let missing = text_file::read(&outside.join("missing")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert_denied(File::open("/proc/1/environ"));
    assert_denied(File::create(inside.join("new")));
    assert_denied(File::options().append(true).open(inside.join("list")));
    assert_denied(fs::create_dir(inside.join("directory")));
    assert_denied(fs::remove_file(outside.join("list")));
    assert_denied(Command::new("/bin/true").status());
    fs::remove_file(inside.join("old")).unwrap();
}

fn assert_denied<T>(result: io::Result<T>) {
    let kind = result.map(drop).map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::PermissionDenied));
}

fn names_are_refused() {
    assert!(resolve::lookup("localhost").is_ok());
    files::confine(&AllowedFiles::default()).unwrap();
    let error = resolve::lookup("localhost").unwrap_err();
    assert!(error.to_string().contains("restart it"), "{error}");
}

fn a_second_thread_is_refused() {
    require_single_thread().unwrap();
    let _other = thread::spawn(thread::park);
    let refused = require_single_thread().unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EBUSY));
}

/// A failure before the daemon's work begins is an error of [`spawn_detached`].
fn a_daemon_needs_dev_null() {
    let allowed = AllowedFiles {
        read: vec![PathBuf::from("/proc")],
        ..AllowedFiles::default()
    };
    files::confine(&allowed).unwrap();
    let refused = spawn_detached([], |_: [OwnedFd; 0]| 0).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EACCES));
}

fn a_server_runs() {
    confine_calls();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap();
    let on_thread = thread::spawn(|| vec![1_u8; 1 << 20].len());
    assert_eq!(on_thread.join().unwrap(), 1 << 20);
}

fn denied_calls_are_absent() {
    confine_calls();
    assert_absent(Sysno::io_uring_setup.id());
}

fn newer_calls_are_absent() {
    confine_calls();
    assert_absent(Sysno::last().id() + 1);
}

fn assert_absent(number: i32) {
    // SAFETY: the call fails before it reads its arguments.
    let rc = unsafe { libc::syscall(number.into(), 0, 0) };
    let errno = io::Error::last_os_error().raw_os_error();
    assert_eq!((rc, errno), (-1, Some(libc::ENOSYS)));
}

fn execve() {
    // SAFETY: null pointers are no memory; the call is denied.
    let _ = unsafe { libc::syscall(libc::SYS_execve, 0, 0, 0) };
}

fn fork() {
    // SAFETY: the call is denied.
    let _ = unsafe { libc::fork() };
}

fn ptrace_in_a_later_thread() {
    let _ = thread::spawn(ptrace).join();
}

fn ptrace() {
    // SAFETY: the call takes integers, and is denied.
    let _ = unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) };
}

fn raw_socket() {
    open_socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC);
}

fn packet_socket() {
    open_socket(libc::AF_PACKET, libc::SOCK_DGRAM);
}

fn open_socket(family: i32, kind: i32) {
    // SAFETY: the call takes integers, and is denied.
    let _ = unsafe { libc::socket(family, kind, 0) };
}

fn unix_socket() {
    drop(UnixStream::connect("/run/docker.sock"));
}

fn executable_mapping() {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice; the call is denied.
    let _ = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
}

fn signal_to_init() {
    // SAFETY: the call takes integers, and is denied.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, 1, 1, 0) };
}

fn typing_into_a_terminal() {
    // SAFETY: the pointer is to a byte; the call is denied.
    let _ = unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) };
}

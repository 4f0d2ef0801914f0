//! A network of one's own for each measurement.
//!
//! It holds a loopback device and nothing else, so nothing sent in it can leave; and it goes when
//! the measurement ends, with every TIME_WAIT socket, so that no contestant runs in the litter of
//! the one before. A namespace of process numbers comes with it: its first process is the
//! measurement, and when that ends, however it ends, the kernel kills all that it started.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A command that runs `program` in new namespaces and dies with its caller. Without root it takes
/// a user namespace too, where the kernel lets ordinary users have one.
///
/// It goes through util-linux's `setpriv` and `unshare`: what they do between fork and exec can't
/// be said in safe Rust.
pub(crate) fn enter(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--net",
        "--pid",
        "--mount-proc",
    ]);
    command.args(["--fork", "--kill-child"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg("--").arg(program);
    command
}

/// Furnishes the namespace that this process is in: loopback up, the backend's answers to clients
/// that are not there sent back to this machine, and as many descriptors as are allowed.
///
/// # Errors
/// There are devices besides loopback, so this is not a namespace of [`enter`], or `ip` failed.
pub(crate) fn furnish() -> Result<()> {
    let devices = fs::read_to_string("/proc/net/dev").context("read /proc/net/dev")?;
    let devices = devices.lines().filter_map(|line| line.split_once(':'));
    for (device, _) in devices {
        let is_loopback = device.trim() == "lo";
        ensure!(
            is_loopback,
            "found the device {}: not in a namespace of its own",
            device.trim()
        );
    }
    ip(ROUTES)?;
    fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", TIME_WAITS).context("tcp_max_tw_buckets")?;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("setrlimit(RLIMIT_NOFILE)")
}

/// The descriptors that a process may have open at most; [`furnish`] sets this limit.
pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Has ip(8) do these lines.
///
/// # Errors
/// There is no ip(8), or it refused.
pub(crate) fn ip(batch: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("run ip, of iproute2")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes()).context("write to ip")?;
    }
    let status = child.wait().context("wait for ip")?;
    ensure!(status.success(), "ip -batch: {status}");
    Ok(())
}

/// More than any run leaves behind. The default is reached within seconds of `churn`; beyond it
/// the kernel drops the state, and the fast contestants would run by other rules than the slow.
const TIME_WAITS: &str = "1000000";

/// The rules that every transparent proxy asks for: what the backend sends to a client's address
/// is for this machine.
const ROUTES: &str = "\
link set lo up
rule add from 127.0.0.1/8 iif lo table 123
route add local 0.0.0.0/0 dev lo table 123
";

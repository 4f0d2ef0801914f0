//! A network namespace and a PID namespace for each sandbox.
//!
//! The network namespace holds only a loopback device, and perhaps the kernel's fallback tunnels, which are down. So no
//! packet can leave it. It is destroyed when the sandbox exits, with every TIME_WAIT socket, so that no contestant is
//! affected by its predecessor's sockets. The first process of the PID namespace is the sandbox: when it exits,
//! however it exits, the kernel kills everything that it started.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns a command that runs `program` in new namespaces and is killed when its parent exits. Without root it uses a
/// user namespace too, which the kernel may refuse to ordinary users.
///
/// It uses `setpriv` and `unshare` of util-linux: what they do between fork and exec is not possible in safe Rust.
pub(crate) fn isolated_command(program: &Path) -> Command {
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

/// Configures the namespace that this process is in: loopback up, rules that route the backend's replies to spoofed
/// clients back to this machine, and as many descriptors as are allowed.
///
/// # Errors
/// There are devices besides loopback and [`FALLBACK_TUNNELS`], so this is not a namespace of [`isolated_command`], or `ip` failed.
pub(crate) fn configure() -> Result<()> {
    let devices = fs::read_to_string("/proc/net/dev").context("read /proc/net/dev")?;
    let devices = devices.lines().filter_map(|line| line.split_once(':'));
    for (device, _) in devices {
        let device = device.trim();
        ensure!(
            device == "lo" || FALLBACK_TUNNELS.contains(&device),
            "found the device {device}: not in a namespace of its own"
        );
    }
    run_ip_batch(ROUTES)?;
    fs::write(
        "/proc/sys/net/ipv4/tcp_max_tw_buckets",
        MAX_TIME_WAIT_SOCKETS,
    )
    .context("tcp_max_tw_buckets")?;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("setrlimit(RLIMIT_NOFILE)")
}

/// Devices that the modules of tunnels, once they are loaded, add to each new namespace (net.core.fb_tunnels_only_for_init_net).
const FALLBACK_TUNNELS: [&str; 10] = [
    "tunl0",
    "sit0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6tnl0",
    "ip6gre0",
    "ip6_vti0",
    "ip6gretap0",
];

/// The maximum number of open descriptors of a process; [`configure`] sets this limit.
pub(crate) fn max_descriptors() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Runs ip(8) with a batch of commands.
pub(crate) fn run_ip_batch(batch: &str) -> Result<()> {
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

/// More TIME_WAIT sockets than any run leaves. The default is reached within seconds of `churn`; beyond it the kernel
/// drops the state, and conditions would differ between fast contestants and slow ones.
const MAX_TIME_WAIT_SOCKETS: &str = "1000000";

/// The rules that every transparent proxy needs: packets from the backend to a client's address are delivered to this
/// machine.
const ROUTES: &str = "\
link set lo up
rule add from 127.0.0.1/8 iif lo table 123
route add local 0.0.0.0/0 dev lo table 123
";

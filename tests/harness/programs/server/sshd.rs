//! OpenSSH: a login with a key, and the server's log of it.

use std::net::{IpAddr, SocketAddr};

use super::Server;
use crate::harness::addr::{TARGET_V4, TARGET_V6};
use crate::harness::lab::{Host, Process, Scratch};

#[derive(Debug)]
pub(crate) struct Sshd {
    process: Process,
    scratch: Scratch,
}

impl Server for Sshd {
    fn start(host: &Host) -> Self {
        let scratch = Scratch::new();
        let config = write_config(host, &scratch, &[TARGET_V4, TARGET_V6]);
        let args = ["-D", "-e", "-f", &config];
        let process = Process::start_through(host, THROUGH, "/usr/sbin/sshd", &args);
        Self {
            process: process.wait_listening(&[TARGET_V4, TARGET_V6]),
            scratch,
        }
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        reported_client(&self.process, &self.scratch, client, front)
    }
}

impl Sshd {
    /// Starts sshd with a syslogd of its own, which writes its log to [`Sshd::log_file`], as on a host with a classic syslog.
    pub(crate) fn start_with_syslog(host: &Host) -> Self {
        let scratch = Scratch::new();
        let config = write_config(host, &scratch, &[TARGET_V4, TARGET_V6]);
        let log = scratch.write("auth.log", "");
        let script = RUN_WITH_SYSLOG.replace("LOG", &log);
        let mut through = THROUGH.to_vec();
        for word in through.iter_mut().filter(|word| **word == RUN) {
            *word = &script;
        }
        let args = ["-D", "-f", &config];
        let process = Process::start_through(host, &through, "/usr/sbin/sshd", &args);
        Self {
            process: process.wait_listening(&[TARGET_V4, TARGET_V6]),
            scratch,
        }
    }

    /// The file that syslogd writes.
    pub(crate) fn log_file(&self) -> String {
        self.scratch.path_text("auth.log")
    }

    /// The arguments of ssh(1) for this user, from this address of the client. sshd accepts the key for root only.
    pub(crate) fn ssh_args(&self, user: &str, from: IpAddr, front: SocketAddr) -> Vec<String> {
        let from = ["-b".to_owned(), from.to_string()];
        [&from[..], &ssh_args(&self.scratch, user, front)[..]].concat()
    }
}

/// The arguments of ssh(1) for this user, with the key that [`write_config`] has written.
fn ssh_args(scratch: &Scratch, user: &str, front: SocketAddr) -> Vec<String> {
    let key = scratch.path_text("user_key");
    let options = format!(
        "-F/dev/null -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes \
         -oConnectTimeout=20 -i {key} -p {} {user}@{}",
        front.port(),
        front.ip()
    );
    options
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Writes the configuration of an sshd that listens on these addresses, its host key and a key to log in
/// with, all in `scratch`. Returns the path of the configuration.
pub(crate) fn write_config(host: &Host, scratch: &Scratch, listen: &[SocketAddr]) -> String {
    for key in ["host_key", "user_key"] {
        let path = scratch.path_text(key);
        let args = ["-q", "-t", "ed25519", "-N", "", "-f", &path];
        host.run("ssh-keygen", &args);
    }
    let listen: String = listen
        .iter()
        .map(|addr| format!("ListenAddress {addr}\n"))
        .collect();
    let config = listen + &CONFIG.replace("DIR", &scratch.path_text("."));
    scratch.write("sshd_config", &config)
}

/// Logs in to an sshd that [`write_config`] has configured, and returns the client's address as the shell's
/// environment and the log have it.
pub(crate) fn reported_client(
    process: &Process,
    scratch: &Scratch,
    client: &Host,
    front: SocketAddr,
) -> SocketAddr {
    let mut args = ssh_args(scratch, "root", front);
    args.push("echo $SSH_CONNECTION".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let printed = client.run("ssh", &args);
    let in_shell = address(printed.split_ascii_whitespace());
    let logged = process.wait_line("of an accepted login", |line| {
        let from = line.split_once("Accepted publickey for root from ")?.1;
        address(from.split(' ').filter(|word| *word != "port"))
            .filter(|addr| Some(*addr) == in_shell)
    });
    assert_eq!(
        in_shell,
        Some(logged),
        "what sshd told the shell and what it logged"
    );
    logged
}

/// The address and the port that these words begin with.
fn address<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<SocketAddr> {
    Some(SocketAddr::new(
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

/// The prefix of a command that starts sshd: with a mount and a PID namespace, and the script [`RUN`].
pub(crate) const THROUGH: &[&str] = &[
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child=KILL",
    "sh",
    "-c",
    RUN,
    "sh",
];

/// Runs sshd with a /run of its own, because sshd requires /run/sshd, which only the package's unit creates.
pub(crate) const RUN: &str = r#"mount -t tmpfs none /run && mkdir /run/sshd && exec "$@""#;

/// Like [`RUN`], also with a /dev of its own, in which syslogd makes its socket.
const RUN_WITH_SYSLOG: &str = r#"
mount -t tmpfs none /run && mkdir -p /run/sshd /run/dev/pts
for node in null zero random urandom tty; do
    : >/run/dev/$node && mount --bind /dev/$node /run/dev/$node
done
mount --bind /dev/pts /run/dev/pts && ln -s pts/ptmx /run/dev/ptmx && mount --rbind /run/dev /dev
busybox syslogd -S -O LOG
exec "$@""#;

const CONFIG: &str = "
HostKey DIR/host_key
AuthorizedKeysFile DIR/user_key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM yes
PidFile none
";

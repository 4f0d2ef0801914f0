//! fail2ban, as Debian ships it, with its own jail for sshd.

use std::net::IpAddr;

use crate::harness::lab::{Host, Process, Scratch};

#[derive(Debug)]
pub(crate) struct Fail2ban {
    process: Process,
    scratch: Scratch,
}

impl Fail2ban {
    /// Starts fail2ban for this log of sshd. `action` is `peername`, which is shipped with peername, or one of
    /// fail2ban's own.
    pub(crate) fn start(host: &Host, log: &str, action: &str) -> Self {
        let scratch = Scratch::new();
        let config = scratch.path_text("fail2ban");
        host.run("cp", &["-r", "/etc/fail2ban", &config]);
        // Debian's package enables jails of its own.
        host.run("sh", &["-c", "rm -f \"$0\"/jail.d/*", &config]);
        host.run("cp", &[ACTION, &scratch.path_text("fail2ban/action.d")]);
        scratch.write("fail2ban/fail2ban.local", SERVER);
        let jail = JAIL.replace("LOG", log).replace("ACTION", action);
        scratch.write("fail2ban/jail.local", &jail);
        let socket = scratch.path_text("socket");
        let pid = scratch.path_text("pid");
        let args = [
            "-c", &config, "-s", &socket, "-p", &pid, "-x", "-f", "start",
        ];
        let process = Process::start(host, "fail2ban-server", &args);
        process.wait_logged("Server ready");
        Self { process, scratch }
    }

    /// Waits until fail2ban has banned this client.
    pub(crate) fn wait_banned(&self, client: IpAddr) {
        self.process.wait_logged(&format!("[sshd] Ban {client}"));
    }

    /// Runs fail2ban-client(1) with the words of a command, and returns what it prints.
    pub(crate) fn command(&self, host: &Host, words: &str) -> String {
        let (config, socket) = (
            self.scratch.path_text("fail2ban"),
            self.scratch.path_text("socket"),
        );
        let args: Vec<_> = ["-c", &config, "-s", &socket]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        host.run("fail2ban-client", &args)
    }
}

/// The action that peername ships.
const ACTION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/fail2ban/action.d/peername.conf"
);

const SERVER: &str = "
[DEFAULT]
dbfile = :memory:
logtarget = STDOUT
";

const JAIL: &str = "
[DEFAULT]
backend = polling

[sshd]
enabled = true
port = 9000
logpath = LOG
maxretry = 2
action = ACTION
";

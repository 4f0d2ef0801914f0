//! What cloudflare/mmproxy prints before it starts: the rules it takes to bring replies back, each with
//! whether it is there, and whether each target can be reached, plainly and as somebody else.
//!
//! The rules are those for any interface. A backend on loopback needs no marks
//! (`peername routes add`), so a rule that is not there need not be missed: the connection that is
//! tried is what counts.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use crate::cmd::doctor::{Probe, Reached};
use crate::compat::say;

/// What is printed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::compat) struct Suggestions {
    pub(in crate::compat) mark: u32,
    pub(in crate::compat) table: u32,
    /// IPv4 and IPv6; `None` for a name without an address.
    pub(in crate::compat) targets: [Option<SocketAddr>; 2],
    /// Without the rules.
    pub(in crate::compat) quiet: bool,
}

impl Suggestions {
    /// Prints all of it on standard error. To be called with all privileges: iptables needs them.
    pub(in crate::compat) async fn print(&self) {
        if !self.quiet {
            self.rules();
        }
        for target in self.targets.into_iter().flatten() {
            for line in self.tried(target).await {
                say(&format!("{line}\n"));
            }
        }
    }

    fn rules(&self) {
        say("[ ] Remember to set the reverse routing rules correctly:\n");
        let Self { mark, table, .. } = self;
        for program in ["iptables", "ip6tables"] {
            let save = format!(
                "PREROUTING -m mark --mark {mark} -m comment --comment mmproxy -j CONNMARK --save-mark"
            );
            let restore = format!(
                "OUTPUT -m connmark --mark {mark} -m comment --comment mmproxy -j CONNMARK --restore-mark"
            );
            for rule in [save, restore] {
                let there = succeeds(program, &format!("-t mangle -C {rule}"));
                verdict(&format!("{program} -t mangle -I {rule}"), there);
            }
        }
        for (family, everything) in [("", "0.0.0.0/0"), ("-6 ", "::/0")] {
            let rules = said("ip", &format!("{family}rule list"));
            verdict(
                &format!("ip {family}rule add fwmark {mark} lookup {table}"),
                is_among(&rules, *mark, *table),
            );
            let routes = said("ip", &format!("{family}route show table {table}"));
            let route = format!("ip {family}route add local {everything} dev lo table {table}");
            verdict(&route, routes.contains("default"));
        }
    }

    async fn tried(&self, target: SocketAddr) -> Vec<String> {
        let probe = Probe::of(target, NonZeroU32::new(self.mark)).await;
        let ip = target.ip();
        let mut lines = vec![match probe.is_here {
            true => format!("[+] OK. Routing to {ip} points to a local machine."),
            false => format!("[!] FAILED: Target {ip} isn't on a local machine. {UNLIKELY}"),
        }];
        for (how, reached) in [
            ("conventional", probe.plainly),
            ("spoofed", probe.as_a_stranger),
        ] {
            lines.push(match reached {
                Reached::Yes => format!(
                    "[+] OK. Target server {target} is up and reachable using {how} connection."
                ),
                Reached::Refused => {
                    format!("[!] FAILED: Target server {target} seems to be down. {UNLIKELY}")
                }
                Reached::No(why) => format!(
                    "[!] FAILED: Unable to do {how} connect() to target server {target}: {why}. \
                     {UNLIKELY}"
                ),
            });
        }
        lines
    }
}

/// Whether `ip rule list` has the rule; something may follow, such as `proto static`.
fn is_among(rules: &str, mark: u32, table: u32) -> bool {
    let rule = format!("fwmark {mark:#x} lookup {table} ");
    rules.lines().any(|line| format!("{line} ").contains(&rule))
}

fn verdict(rule: &str, there: bool) {
    let verdict = if there {
        "[+] VERIFIED"
    } else {
        "[!] CHECK FAILED"
    };
    say(&format!("{rule}\t# {verdict}\n"));
}

fn succeeds(program: &str, args: &str) -> bool {
    let status = Command::new(program)
        .args(args.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// What a program prints; nothing without the program.
fn said(program: &str, args: &str) -> String {
    let output = Command::new(program)
        .args(args.split(' '))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

const UNLIKELY: &str = "This program will likely NOT WORK.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_not_one_that_begins_with_its_number() {
        for (listed, there) in [
            ("32765:\tfrom all fwmark 0x7b lookup 100 \n", true),
            ("32765:\tfrom all fwmark 0x7b lookup 100", true),
            (
                "32765:\tfrom all fwmark 0x7b lookup 100 proto static\n",
                true,
            ),
            ("32765:\tfrom all fwmark 0x7b lookup 1000 \n", false),
            ("32765:\tfrom all fwmark 0x7b2 lookup 100 \n", false),
        ] {
            assert_eq!(is_among(listed, 0x7b, 100), there, "{listed}");
        }
    }
}

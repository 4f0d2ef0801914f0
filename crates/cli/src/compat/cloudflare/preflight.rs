//! Prints what cloudflare/mmproxy prints before it starts: the rules that deliver replies to this host, and whether each is
//! installed; and whether each target can be reached from an address of this host and from a spoofed one.
//!
//! cloudflare/mmproxy prints the rules for replies that leave by any interface. A backend on loopback needs none of their marks
//! (`peername routes add`), so `CHECK FAILED` of a rule may be harmless. Only `FAILED` of a connection counts.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use peername_proxy::reply_path::probe::foreign_addr;
use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::SyscallError;
use peername_sys::netlink::Netlink;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::compat::translation::{Preflight, print_to_stderr};
use crate::connect_probe::{CONNECT_TIMEOUT, ConnectOutcome, connect_as};

/// Prints the rules and checks on standard error. Call it before privileges are dropped: iptables needs them.
pub(in crate::compat) async fn print(preflight: &Preflight) {
    if !preflight.quiet {
        print_rules(preflight);
    }
    for target in preflight.targets.into_iter().flatten() {
        for line in try_target(target, preflight.mark).await {
            print_to_stderr(&format!("{line}\n"));
        }
    }
}

fn print_rules(preflight: &Preflight) {
    print_to_stderr("[ ] Remember to set the reverse routing rules correctly:\n");
    let Preflight { mark, table, .. } = preflight;
    for program in ["iptables", "ip6tables"] {
        let save = format!(
            "PREROUTING -m mark --mark {mark} -m comment --comment mmproxy -j CONNMARK --save-mark"
        );
        let restore = format!(
            "OUTPUT -m connmark --mark {mark} -m comment --comment mmproxy -j CONNMARK --restore-mark"
        );
        for rule in [save, restore] {
            let is_installed = succeeds(program, &format!("-t mangle -C {rule}"));
            print_verdict(&format!("{program} -t mangle -I {rule}"), is_installed);
        }
    }
    for (family, everything) in [("", "0.0.0.0/0"), ("-6 ", "::/0")] {
        let rules = read_stdout("ip", &format!("{family}rule list"));
        print_verdict(
            &format!("ip {family}rule add fwmark {mark} lookup {table}"),
            has_fwmark_rule(&rules, *mark, *table),
        );
        let routes = read_stdout("ip", &format!("{family}route show table {table}"));
        let route = format!("ip {family}route add local {everything} dev lo table {table}");
        print_verdict(&route, has_local_default(&routes));
    }
}

/// The results for a target: its location, a connection from an own address, and one from a spoofed address.
async fn try_target(target: SocketAddr, mark: u32) -> [String; 3] {
    let ip = target.ip();
    let location = match locate(target).await {
        Ok(BackendLocation::Loopback(_) | BackendLocation::ThisHost(_)) => {
            format!("[+] OK. Routing to {ip} points to a local machine.")
        }
        Ok(BackendLocation::OtherHost) => {
            format!("[!] FAILED: Target {ip} isn't on a local machine. {LIKELY_BROKEN}")
        }
        Err(error) => format!("[!] FAILED: The location of {ip} is unknown: {error}."),
    };
    let conventional = connect_from_own_address(target).await;
    let spoofed = connect_as(foreign_addr(ip), target, NonZeroU32::new(mark)).await;
    [
        location,
        verdict("conventional", target, conventional.map_err(Into::into)),
        verdict("spoofed", target, spoofed.map_err(Into::into)),
    ]
}

async fn locate(target: SocketAddr) -> Result<BackendLocation, SyscallError> {
    locate_backend(&Netlink::open()?, target).await
}

async fn connect_from_own_address(target: SocketAddr) -> io::Result<ConnectOutcome> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => Ok(ConnectOutcome::Connected),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            Ok(ConnectOutcome::Refused)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(ConnectOutcome::Silence),
    }
}

fn verdict(kind: &str, target: SocketAddr, outcome: anyhow::Result<ConnectOutcome>) -> String {
    let why = match outcome {
        Ok(ConnectOutcome::Connected) => {
            return format!(
                "[+] OK. Target server {target} is up and reachable using {kind} connection."
            );
        }
        Ok(ConnectOutcome::Refused) => {
            return format!("[!] FAILED: Target server {target} seems to be down. {LIKELY_BROKEN}");
        }
        Ok(ConnectOutcome::Silence) => format!("no answer within {CONNECT_TIMEOUT:?}"),
        Err(error) => error.to_string(),
    };
    format!(
        "[!] FAILED: Unable to do {kind} connect() to target server {target}: {why}. {LIKELY_BROKEN}"
    )
}

/// Whether `ip rule list` has the rule; something may follow, such as `proto static`.
fn has_fwmark_rule(rules: &str, mark: u32, table: u32) -> bool {
    let rule = format!("fwmark {mark:#x} lookup {table} ");
    rules.lines().any(|line| format!("{line} ").contains(&rule))
}

/// Whether `ip route show` lists a route that delivers everything to this host, not one to a gateway.
fn has_local_default(routes: &str) -> bool {
    routes
        .lines()
        .any(|line| line.starts_with("local default "))
}

fn print_verdict(rule: &str, is_installed: bool) {
    let verdict = if is_installed {
        "[+] VERIFIED"
    } else {
        "[!] CHECK FAILED"
    };
    print_to_stderr(&format!("{rule}\t# {verdict}\n"));
}

fn succeeds(program: &str, args: &str) -> bool {
    Command::new(program)
        .args(args.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The standard output of a program; empty if it can't be run.
fn read_stdout(program: &str, args: &str) -> String {
    Command::new(program)
        .args(args.split(' '))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
}

const LIKELY_BROKEN: &str = "This program will likely NOT WORK.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_for_another_table_or_mark_is_not_found() {
        for (listed, expected) in [
            ("32765:\tfrom all fwmark 0x7b lookup 100 \n", true),
            ("32765:\tfrom all fwmark 0x7b lookup 100", true),
            (
                "32765:\tfrom all fwmark 0x7b lookup 100 proto static\n",
                true,
            ),
            ("32765:\tfrom all fwmark 0x7b lookup 1000 \n", false),
            ("32765:\tfrom all fwmark 0x7b2 lookup 100 \n", false),
        ] {
            assert_eq!(has_fwmark_rule(listed, 0x7b, 100), expected, "{listed}");
        }
    }

    #[test]
    fn default_route_to_a_gateway_is_not_local() {
        for (listed, expected) in [
            ("local default dev lo scope host \n", true),
            ("local default dev lo metric 1024 pref medium\n", true),
            ("default via 192.0.2.1 dev eth0 \n", false),
            ("local 192.0.2.7 dev lo scope host \n", false),
            ("", false),
        ] {
            assert_eq!(has_local_default(listed), expected, "{listed}");
        }
    }
}

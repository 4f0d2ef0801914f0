//! One host: a network namespace without a name.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use peername_sys::process::namespace::NetworkNamespace;

use super::{assert_succeeds, wait_until};

/// A network namespace with loopback up. It ends when this value and the last process inside it do.
#[derive(Debug)]
pub(crate) struct Host {
    namespace: NetworkNamespace,
    /// The same namespace as a path that `ip` understands.
    file: File,
}

impl Host {
    pub(crate) fn new() -> Self {
        let home = NetworkNamespace::current().expect("our own namespace");
        let namespace =
            NetworkNamespace::unshare().expect("a network namespace (the tests need root)");
        let file = File::open("/proc/thread-self/ns/net").expect("the namespace's file");
        home.enter().expect("back to our own namespace");
        let host = Self { namespace, file };
        host.ip("link set lo up");
        // No other host is on these links, so duplicate address detection is of no use.
        host.sysctl("net.ipv6.conf.default.accept_dad", "0");
        // No link-local addresses: the kernel adds them on its own, a moment after the link.
        host.sysctl("net.ipv6.conf.default.addr_gen_mode", "1");
        host
    }

    /// Runs `work` in this network namespace: its sockets, its threads and its children belong to this host.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let home = NetworkNamespace::current().expect("our own namespace");
        self.namespace.enter().expect("setns");
        let _home = ReturnGuard(home);
        work()
    }

    /// The network namespace, as the links /proc/PID/ns/net of its processes name it.
    pub(crate) fn network(&self) -> PathBuf {
        let network = self.enter(|| fs::read_link("/proc/thread-self/ns/net"));
        network.expect("a network")
    }

    /// Waits until connections to this address are refused.
    #[track_caller]
    pub(crate) fn wait_connection_refused(&self, to: SocketAddr) {
        // A listener with a full backlog does not answer.
        let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(200));
        wait_until("connections are refused", || {
            self.enter(connect)
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
    }

    /// Joins this host and `other` with a veth pair, both ends up.
    pub(crate) fn add_veth(&self, device: &str, other: &Self, other_device: &str) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.file.as_raw_fd());
        self.ip(&format!(
            "link add {device} type veth peer name {other_device} netns {path}"
        ));
        self.ip(&format!("link set {device} up"));
        other.ip(&format!("link set {other_device} up"));
    }

    /// Adds addresses to an interface, usable at once.
    pub(crate) fn add_addresses(&self, device: &str, addresses: &[&str]) {
        for address in addresses {
            let v6 = address.contains(':');
            let options = if v6 { "nodad" } else { "broadcast +" };
            self.ip(&format!("address add {address} {options} dev {device}"));
            if v6 {
                self.wait_for_local_route(address);
            }
        }
    }

    /// Waits for the local route of an IPv6 address: the kernel adds it a moment later, from a work queue.
    fn wait_for_local_route(&self, address: &str) {
        let ip = address
            .split('/')
            .next()
            .and_then(|ip| ip.parse::<Ipv6Addr>().ok());
        // Destination and prefix length (128), in hexadecimal digits.
        let entry = format!("{:032x} 80 ", u128::from(ip.expect("an IPv6 address")));
        wait_until("the address has its route", || {
            let routes = self.enter(|| fs::read_to_string("/proc/thread-self/net/ipv6_route"));
            routes.expect("the routing table").contains(&entry)
        });
    }

    /// Runs ip(8) commands, one a line, without the leading `ip`.
    pub(crate) fn ip(&self, commands: &str) {
        self.run_with_input("ip", &["-batch", "-"], commands);
    }

    /// Runs `ip -6` commands, like [`Self::ip`].
    pub(crate) fn ip6(&self, commands: &str) {
        self.run_with_input("ip", &["-6", "-batch", "-"], commands);
    }

    /// Loads nftables rules.
    pub(crate) fn nft(&self, rules: &str) {
        self.run_with_input("nft", &["-f", "-"], rules);
    }

    /// Adds a filter rule of nftables to the hook `input` or `output`.
    pub(crate) fn add_filter(&self, hook: &str, rule: &str) {
        let hook = format!("type filter hook {hook} priority 0;");
        self.nft(&format!(
            "table inet test {{\nchain c {{\n{hook}\n{rule}\n}}\n}}"
        ));
    }

    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.enter(|| fs::write(&path, value))
            .unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
    }

    /// Runs a program to its end and returns what it printed; panics if it failed.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        assert_succeeds(&self.output(Command::new(program).args(args), ""))
    }

    /// Runs a command with this standard input to its end, and returns its output and exit status.
    pub(crate) fn output(&self, command: &mut Command, input: &str) -> Output {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .enter(|| command.spawn())
            .unwrap_or_else(|error| panic!("{command:?}: {error} (make setup)"));
        // The command may end without reading its input.
        let _ = child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(input.as_bytes());
        child.wait_with_output().expect("its end")
    }

    /// All rules and all tables of both families, a line each, sorted.
    pub(crate) fn routing_rules(&self) -> BTreeSet<String> {
        let show = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";
        self.run("sh", &["-c", show])
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Runs a program to its end with this standard input; panics if it failed.
    fn run_with_input(&self, program: &str, args: &[&str], input: &str) {
        let output = self.output(Command::new(program).args(args), input);
        assert!(
            output.status.success(),
            "{program} {args:?} {input}: {output:?}"
        );
    }
}

/// Returns the thread to its own namespace, also when the work panics.
struct ReturnGuard(NetworkNamespace);

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        self.0.enter().expect("setns back");
    }
}

//! A network for one test: hosts that are network namespaces, joined by veth pairs.
//!
//! ```text
//!   client ───────────── balancer ───────────── server
//!   203.0.113.9          203.0.113.1            10.81.0.1
//!   2001:db8:9::9        2001:db8:9::1          fd81::1
//!                        10.81.0.2, fd81::2
//! ```
//!
//! The server has no route to the client: traffic between them passes the balancer, and the server's replies
//! stay on the machine only because of peername's routing rules. Namespaces have no names and processes die
//! with the thread that started them, so nothing is left behind however a test ends.

pub(crate) mod asserts;
pub(crate) mod failing;
pub(crate) mod host;
pub(crate) mod leased_file;
pub(crate) mod process;
pub(crate) mod scratch;
pub(crate) mod waits;

use std::time::Instant;

pub(crate) use asserts::{
    assert_contains, assert_count, assert_fails, assert_fields, assert_prints, assert_succeeds,
    json_lines, lossy_text, stderr_text, stdout_text,
};
pub(crate) use failing::failing_calls;
pub(crate) use host::Host;
pub(crate) use leased_file::LeasedFile;
pub(crate) use process::{OWN_PID_NAMESPACE, Process, python, with_files};
pub(crate) use scratch::Scratch;
pub(crate) use waits::{WAIT_LIMIT, assert_within, poll_until, wait_for, wait_until};

/// The three hosts. Fields are dropped top to bottom; a host lives as long as its processes.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) client: Host,
    pub(crate) balancer: Host,
    pub(crate) server: Host,
    created: Instant,
}

impl Lab {
    /// Creates the network above, with the routing rules that keep a backend's replies to spoofed clients on
    /// the server (backends on loopback addresses).
    pub(crate) fn new() -> Self {
        let lab = Self::without_routes();
        lab.server.ip(RULES_V4);
        lab.server.ip6(RULES_V6);
        lab
    }

    /// Creates the same network without peername's routing rules.
    pub(crate) fn without_routes() -> Self {
        let lab = Self {
            client: Host::new(),
            balancer: Host::new(),
            server: Host::new(),
            created: Instant::now(),
        };
        lab.balancer.add_veth("wan", &lab.client, "eth0");
        lab.balancer.add_veth("lan", &lab.server, "eth0");
        lab.client
            .add_addresses("eth0", &["203.0.113.9/24", "2001:db8:9::9/64"]);
        lab.balancer
            .add_addresses("wan", &["203.0.113.1/24", "2001:db8:9::1/64"]);
        lab.balancer
            .add_addresses("lan", &["10.81.0.2/24", "fd81::2/64"]);
        lab.server
            .add_addresses("eth0", &["10.81.0.1/24", "fd81::1/64"]);
        // Every connection of the client comes from one port, so that a test knows what to expect; the next
        // connection may follow at once.
        lab.client
            .sysctl("net.ipv4.ip_local_port_range", "40054 40054");
        lab.client.sysctl("net.ipv4.tcp_tw_reuse", "1");
        lab
    }
}

impl Drop for Lab {
    /// Appends the test's duration to the file that PEERNAME_TEST_TIMES names, for `make test`.
    fn drop(&mut self) {
        let Ok(path) = std::env::var("PEERNAME_TEST_TIMES") else {
            return;
        };
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let line = format!("{:7.2} s  {name}\n", self.created.elapsed().as_secs_f64());
        scratch::append_line(path.as_ref(), &line);
    }
}

/// The recipe of go-mmproxy's README, which sends every reply of a loopback address back to this host. The rules of `peername
/// routes` are narrower, and are tested by `proxy/routes.rs`.
const RULES_V4: &str = "
    rule add from 127.0.0.0/8 iif lo table 123
    route add local 0.0.0.0/0 dev lo table 123";
const RULES_V6: &str = "
    rule add from ::1 iif lo table 123
    route add local ::/0 dev lo table 123";

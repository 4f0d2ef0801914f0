//! DNS rebinding: the name server's first answer for a name is harmless, and the next is not. The proxy connects to the address
//! that it has checked.

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Process, stdout_text};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig};

/// The name server takes its answers from the name, one label per query: `here` is the origin,
/// `self` this host, `meta` the metadata service; `here-self` is one answer with two addresses.
#[test]
fn checked_address_is_the_one_connected_to() {
    let rig = RebindingRig::new();
    for (name, statuses) in [
        // The answer changes between two requests.
        ("here.self", &[200, 403][..]),
        ("here.meta", &[200, 403]),
        ("self.here", &[403, 200]),
        ("meta.here", &[403, 200]),
        // One answer has several addresses.
        ("here-self", &[200, 200]),
        ("self-here", &[200, 200]),
        ("meta-here-self", &[200, 200]),
        ("meta-self", &[403, 403]),
    ] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{scheme}.{name}.rebind.test/");
            let got = [(); 2].map(|()| rig.intercept.curl_status(&[&url]));
            assert_eq!(got, statuses, "{url}: {}", rig.names.log());
        }
    }
    rig.assert_no_forbidden_connection();
}

/// A tunnel whose name has no allowed address is closed.
#[test]
fn tunnel_goes_to_the_checked_address() {
    let rig = RebindingRig::with(&["--passthrough=*.rebind.test"]);
    for (name, codes) in [
        ("here.self", ["200", "000"]),
        ("here-meta", ["200", "200"]),
        ("meta-self", ["000", "000"]),
    ] {
        let url = format!("https://tunnel.{name}.rebind.test/");
        let got = [(); 2].map(|()| {
            let args = ["-k", "-o", "/dev/null", "-w", "%{http_code}", &url];
            stdout_text(&rig.intercept.try_curl(&args))
        });
        assert_eq!(got, codes, "{url}: {}", rig.names.log());
    }
    rig.assert_no_forbidden_connection();
}

struct RebindingRig {
    intercept: InterceptRig,
    names: Process,
    /// Listeners that must get no connection.
    forbidden: Vec<Backend>,
}

impl RebindingRig {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(args: &[&str]) -> Self {
        let stage = InterceptLab::new();
        let server = &stage.lab.server;
        // A metadata service that could be reached.
        server.add_addresses("eth0", &["169.254.169.254/32"]);
        stage
            .lab
            .balancer
            .ip("route add 169.254.169.254 via 10.81.0.1");
        let hosts = [&stage.lab.balancer, server];
        let forbidden: Vec<_> = hosts
            .iter()
            .zip(FORBIDDEN)
            .flat_map(|(host, ip)| [80, 443].map(|port| Backend::listen(host, v4(ip, port))))
            .collect();
        let script = stage.scratch.write("origin.py", ORIGIN);
        let pem = [
            stage.scratch.path_text("wild.pem"),
            stage.scratch.path_text("wild.key"),
        ];
        stage.lab.client.run(
            "sh",
            &[
                "-ec",
                &CERTIFICATE.replace("DIR", &stage.scratch.path_text(".")),
            ],
        );
        let origin_args = ["-u", &script, &pem[0], &pem[1]];
        let origin = Process::start(server, "/usr/bin/python3", &origin_args)
            .wait_listening(&[v4(HERE, 80), v4(HERE, 443)]);
        let args = [args, &["--allow-destination=10.81.0.0/24"]].concat();
        let (names, proxy) = stage.start_proxy_with_name_server(NAMES, &args);
        Self {
            intercept: stage.into_rig(proxy, origin),
            names,
            forbidden,
        }
    }

    /// Asserts that no forbidden listener has got a connection, although each is reachable.
    fn assert_no_forbidden_connection(&self) {
        for backend in &self.forbidden {
            backend.assert_no_connection();
            let conn = Conn::connect(&self.intercept.lab.balancer, backend.local_addr());
            backend.accept();
            drop(conn);
        }
    }
}

const HERE: [u8; 4] = [10, 81, 0, 1];
const FORBIDDEN: [[u8; 4]; 2] = [[127, 0, 0, 1], [169, 254, 169, 254]];

/// Each query for A is answered by the next label of the name, after the last by the first; there is no AAAA record.
const NAMES: &str = include_str!("rebinding/names.py");

/// Closes each connection, so that the next request resolves the name again.
const ORIGIN: &str = include_str!("rebinding/origin.py");

const CERTIFICATE: &str = include_str!("rebinding/certificate.sh");

//! `peername intercept` on the lab's balancer, its client on one side and origins on the other.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Lab, Process, Scratch, assert_succeeds, json_lines, wait_for, with_files,
};
use crate::harness::peername::{BINARY, Peername, words};

/// A check service answers within this time on a busy machine, too.
pub(crate) const LONG_CHECK_TIMEOUT: &str = "--check-timeout=15s";
/// Where clients reach the proxy.
pub(crate) const PROXY_ADDR: SocketAddr = v4([203, 0, 113, 1], 8080);
pub(crate) const CLIENT_IP: &str = "203.0.113.9";
const ORIGIN: SocketAddr = v4([10, 81, 0, 1], 443);
const HTTP1_ORIGIN: SocketAddr = v4([10, 81, 0, 3], 443);

/// Proxy, origin, hosts and files, dropped in this order.
pub(crate) struct InterceptRig {
    pub(crate) proxy: Peername,
    pub(crate) _origin: Process,
    pub(crate) lab: Lab,
    pub(crate) scratch: Scratch,
}

/// The network and files before the proxy starts: a certificate authority for the proxy, a root for the
/// origin and a certificate issued by it.
pub(crate) struct InterceptLab {
    pub(crate) lab: Lab,
    pub(crate) scratch: Scratch,
}

/// Receives a response until its head is complete.
pub(crate) fn recv_head(conn: &Conn) -> String {
    conn.recv_text_until(|text| text.contains("\r\n\r\n"))
}

/// Waits until the file has so many lines of requests, and returns them.
pub(crate) fn wait_request_lines(path: &str, count: usize) -> Vec<Value> {
    wait_for("audit lines in the file", || {
        let mut lines = json_lines(&fs::read_to_string(path).ok()?);
        lines.retain(|line| line["message"] == "request");
        (lines.len() == count).then_some(lines)
    })
}

impl InterceptRig {
    /// Starts the proxy with no check, and with the origin's network allowed.
    pub(crate) fn new(args: &[&str]) -> Self {
        InterceptLab::new().start(args)
    }

    /// Opens a connection of the client to the proxy that begins with these bytes.
    pub(crate) fn connect_and_send(&self, bytes: &[u8]) -> Conn {
        Conn::connect_and_send(&self.lab.client, PROXY_ADDR, bytes)
    }

    /// Runs curl through the proxy; returns what it printed.
    #[track_caller]
    pub(crate) fn curl(&self, args: &[&str]) -> String {
        assert_succeeds(&self.try_curl(args))
    }

    /// Runs curl through the proxy; returns its output and exit status.
    pub(crate) fn try_curl(&self, args: &[&str]) -> Output {
        let proxy = format!("http://{PROXY_ADDR}");
        let ca = self.scratch.path_text("ca.pem");
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "20", "--noproxy", ""])
            .args(["--proxy", &proxy])
            .args(["--cacert", &ca, "--suppress-connect-headers"])
            .args(args);
        self.lab.client.output(&mut command, "")
    }

    /// Runs curl without a proxy; the origins' names are in its hosts file.
    #[track_caller]
    pub(crate) fn curl_without_proxy(&self, args: &[&str]) -> String {
        let ca = self.scratch.path_text("ca.pem");
        let hosts = self.scratch.path_text("hosts");
        let command = [
            &with_files(&[(&hosts, "/etc/hosts")])[..],
            &["curl", "-sS", "--max-time", "20", "--noproxy", "*"],
            &["--cacert", &ca, "--suppress-connect-headers"],
            args,
        ];
        self.lab.client.run("env", &command.concat())
    }

    /// Runs curl through the proxy, and returns the status of the response.
    #[track_caller]
    pub(crate) fn curl_status(&self, args: &[&str]) -> u16 {
        let output = self.try_curl(&[&["-o", "/dev/null", "-w", "%{http_code}"], args].concat());
        let text = String::from_utf8(output.stdout.clone()).expect("text");
        match text.parse() {
            Ok(status @ 1..) => status,
            _ => panic!("no status: {output:?}"),
        }
    }

    /// Runs curl through the proxy, and returns the problem document (RFC 9457) of the response.
    #[track_caller]
    pub(crate) fn curl_problem(&self, args: &[&str]) -> Value {
        let text = self.curl(args);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("a problem: {text}"))
    }

    /// The lines that the origin has logged so far.
    pub(crate) fn origin_log(&self) -> Vec<String> {
        let log = self.scratch.read("access.log");
        log.lines().map(str::to_owned).collect()
    }

    /// The metrics of `--admin=127.0.0.1:9300`.
    pub(crate) fn read_metrics(&self) -> String {
        let url = "http://127.0.0.1:9300/metrics";
        self.lab
            .balancer
            .run("curl", &["-sS", "--noproxy", "*", url])
    }

    /// Waits for `count` lines in the origin's log.
    pub(crate) fn wait_origin_log(&self, count: usize) -> Vec<String> {
        wait_for("the origin's access log", || {
            Some(self.origin_log()).filter(|seen| seen.len() >= count)
        })
    }

    /// Waits for `count` audit lines about this path.
    pub(crate) fn wait_audit_lines(&self, path: &str, count: usize) -> Vec<Value> {
        wait_for("audit lines", || {
            let mut lines = self.proxy.json_lines();
            lines.retain(|line| line["path"] == path);
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Starts this server script on the origin's host, at port 9001, with the origin's certificate.
    pub(crate) fn start_python_origin(&self, script: &str) -> Process {
        let script = self.scratch.write("server.py", script);
        let args = [
            "-u",
            &script,
            &self.scratch.path_text("origin.pem"),
            &self.scratch.path_text("origin.key"),
        ];
        Process::start(&self.lab.server, "/usr/bin/python3", &args)
            .wait_listening(&[v4([10, 81, 0, 1], 9001)])
    }

    /// Runs a Python program on the client's host; returns what it printed. Its first arguments are the proxy and the
    /// authority.
    #[track_caller]
    pub(crate) fn run_python_client(&self, source: &str, args: &[&str]) -> String {
        let script = self.scratch.write("client.py", source);
        let (ca, proxy) = (self.scratch.path_text("ca.pem"), PROXY_ADDR.to_string());
        let python = ["--signal=KILL", "60", "/usr/bin/python3"];
        let args = [&python[..], &[&*script, &*proxy, &*ca], args].concat();
        let printed = self.lab.client.run("timeout", &args);
        printed.trim().to_owned()
    }

    /// Opens a WebSocket over HTTP/2 to the origin on port 9001; returns what it sends back, or the status of a refusal.
    #[track_caller]
    pub(crate) fn websocket_over_http2(&self, path: &str) -> String {
        self.run_python_client(HTTP2_WEBSOCKET_CLIENT, &[path])
    }
}

impl InterceptLab {
    pub(crate) fn new() -> Self {
        let lab = Lab::without_routes();
        // Not the one port of [`Lab::new`]: the client makes many connections at once, and no test here relies on its port.
        let ports = "net.ipv4.ip_local_port_range";
        lab.client.sysctl(ports, "32768 60999");
        lab.server.add_addresses("eth0", &["10.81.0.3/24"]);
        let stage = Self {
            lab,
            scratch: Scratch::new(),
        };
        stage.make_certificates();
        stage.scratch.write("hosts", HOSTS);
        stage
    }

    /// Starts nginx, and `peername intercept` with these arguments.
    pub(crate) fn start(self, args: &[&str]) -> InterceptRig {
        self.start_through(&[], args)
    }

    /// Like [`Self::start`], with the proxy started through other programs.
    pub(crate) fn start_through(self, through: &[&str], args: &[&str]) -> InterceptRig {
        let origin = self.start_nginx();
        let args = [args, &["--allow-destination=10.81.0.0/24"]].concat();
        let proxy = self.start_proxy_through(through, &args);
        self.into_rig(proxy, origin)
    }

    /// Starts nginx, and the proxy with a configuration file and one option.
    pub(crate) fn start_with_file(self, file: &str, option: &str) -> InterceptRig {
        let origin = self.start_nginx();
        let config = ["intercept", "--config", file, "--log-format=json", option];
        let proxy = self.start_with_own_names(&[], &config);
        self.into_rig(proxy, origin)
    }

    /// Starts the proxy alone. Names resolve by the test's own hosts file only, which a mount namespace puts
    /// over the real one.
    pub(crate) fn start_proxy(&self, args: &[&str]) -> Peername {
        self.start_proxy_through(&[], args)
    }

    /// Like [`Self::start_proxy`], through other programs.
    pub(crate) fn start_proxy_through(&self, through: &[&str], args: &[&str]) -> Peername {
        let [ca, root] = ["ca", "root.pem"].map(|name| self.scratch.path_text(name));
        let line = format!(
            "intercept --listen={PROXY_ADDR} --ca {ca} --extra-ca {root} --log-format=json"
        );
        let usual = words(&line);
        // A listener on this address needs an access rule.
        let is_access =
            |arg: &&str| arg.starts_with("--allow-client") || arg.starts_with("--proxy-auth");
        let any_client: &[&str] = if args.iter().any(is_access) {
            &[]
        } else {
            &["--allow-client=any"]
        };
        let args = [&usual[..], any_client, args].concat();
        self.start_with_own_names(through, &args)
    }

    fn start_with_own_names(&self, through: &[&str], args: &[&str]) -> Peername {
        let hosts = self.scratch.path_text("hosts");
        let order = self.scratch.write("nsswitch.conf", "hosts: files\n");
        let mounts = with_files(&[(&hosts, "/etc/hosts"), (&order, "/etc/nsswitch.conf")]);
        let through = [&mounts, through].concat();
        Peername::start_through(&self.lab.balancer, &through, args, &[PROXY_ADDR])
    }

    /// Starts nginx and the proxy, beside a name server that answers NXDOMAIN: a C library may query a name server whatever
    /// nsswitch.conf says.
    pub(crate) fn start_with_unknown_names(self, args: &[&str]) -> (Process, InterceptRig) {
        self.start_with_name_server(NO_SUCH_NAME, args)
    }

    /// Starts nginx and the proxy, beside this name server.
    pub(crate) fn start_with_name_server(
        self,
        script: &str,
        args: &[&str],
    ) -> (Process, InterceptRig) {
        let origin = self.start_nginx();
        let args = [args, &["--allow-destination=10.81.0.0/24"]].concat();
        let (name_server, proxy) = self.start_proxy_with_name_server(script, &args);
        (name_server, self.into_rig(proxy, origin))
    }

    /// Starts the proxy alone, and on its host a name server, which the proxy queries once for each name that the hosts file
    /// lacks.
    pub(crate) fn start_proxy_with_name_server(
        &self,
        script: &str,
        args: &[&str],
    ) -> (Process, Peername) {
        let script = self.scratch.write("names.py", script);
        let name_server = Process::start(&self.lab.balancer, "/usr/bin/python3", &["-u", &script]);
        name_server.wait_logged("ready");
        let order = self.scratch.write("with-dns", "hosts: files dns\n");
        let resolv = "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n";
        let resolv = self.scratch.write("resolv.conf", resolv);
        let through = with_files(&[
            (&order, "/etc/nsswitch.conf"),
            (&resolv, "/etc/resolv.conf"),
        ]);
        (name_server, self.start_proxy_through(&through, args))
    }

    /// The rig of this network with a proxy and its origin.
    pub(crate) fn into_rig(self, proxy: Peername, origin: Process) -> InterceptRig {
        InterceptRig {
            proxy,
            _origin: origin,
            lab: self.lab,
            scratch: self.scratch,
        }
    }

    pub(crate) fn start_nginx(&self) -> Process {
        let config = NGINX.replace("DIR", &self.scratch.path_text("."));
        let config = self.scratch.write("nginx.conf", &config);
        self.scratch.write("index.html", "hello\n");
        self.scratch
            .write("large", &"0123456789abcdef".repeat(1 << 16));
        let args = ["-c", &config, "-e", "stderr"];
        let process = Process::start_in_pid_namespace(&self.lab.server, "nginx", &args);
        process.wait_listening(&[ORIGIN, HTTP1_ORIGIN])
    }

    fn make_certificates(&self) {
        let ca = self.scratch.path_text("ca");
        self.lab.client.run(BINARY, &["ca", "init", "--ca", &ca]);
        let pem = self.lab.client.run(BINARY, &["ca", "export", "--ca", &ca]);
        self.scratch.write("ca.pem", &pem);
        let script = OPENSSL.replace("DIR", &self.scratch.path_text("."));
        self.lab.client.run("sh", &["-ec", &script]);
        fs::metadata(self.scratch.path("origin.pem")).expect("a certificate");
    }
}

const HOSTS: &str = include_str!("intercept/hosts");

const OPENSSL: &str = include_str!("intercept/openssl.sh");

const NGINX: &str = include_str!("intercept/nginx.conf");

/// An origin on port 9001 that echoes the messages of WebSockets; at `/cut` it resets the connection.
pub(crate) const WEBSOCKET_SERVER: &str = include_str!("intercept/websocket_server.py");

const HTTP2_WEBSOCKET_CLIENT: &str = include_str!("intercept/http2_websocket_client.py");

/// Answers each query with NXDOMAIN.
const NO_SUCH_NAME: &str = include_str!("intercept/no_such_name.py");

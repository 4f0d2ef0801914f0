//! `peername intercept` on the lab's balancer, its client on one side and origins on the other.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch, wait_for};
use crate::harness::peername::{BINARY, Peername};

/// For a check that answers, on a machine that is busy.
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

impl InterceptRig {
    /// Starts the proxy with no check, and with the origin's network allowed.
    pub(crate) fn new(args: &[&str]) -> Self {
        InterceptLab::new().start(args)
    }

    /// Runs curl through the proxy; returns what it printed.
    #[track_caller]
    pub(crate) fn curl(&self, args: &[&str]) -> String {
        let output = self.try_curl(args);
        assert!(output.status.success(), "curl {args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The same; returns its output and exit status.
    pub(crate) fn try_curl(&self, args: &[&str]) -> Output {
        let proxy = format!("http://{PROXY_ADDR}");
        let ca = self.scratch.path_text("ca.pem");
        let mut command = Command::new("curl");
        command
            .args([
                "-sS",
                "--max-time",
                "20",
                "--noproxy",
                "",
                "--proxy",
                &proxy,
            ])
            .args(["--cacert", &ca, "--suppress-connect-headers"])
            .args(args);
        self.lab.client.output(&mut command, "")
    }

    /// Runs curl without a proxy; it resolves the origins by the hosts file.
    #[track_caller]
    pub(crate) fn curl_without_proxy(&self, args: &[&str]) -> String {
        let ca = self.scratch.path_text("ca.pem");
        let hosts = self.scratch.path_text("hosts");
        let mount = format!("mount --bind {hosts} /etc/hosts && exec \"$@\"");
        let curl = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            &mount,
            "sh",
            "curl",
            "-sS",
            "--max-time",
            "20",
        ];
        let all = [
            &curl,
            &[
                "--noproxy",
                "*",
                "--cacert",
                &ca,
                "--suppress-connect-headers",
            ][..],
            args,
        ]
        .concat();
        let output = self.lab.client.output(Command::new("env").args(&all), "");
        assert!(output.status.success(), "curl {args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs curl, and returns the status of the response.
    #[track_caller]
    pub(crate) fn curl_status(&self, args: &[&str]) -> u16 {
        let output = self.try_curl(&[&["-o", "/dev/null", "-w", "%{http_code}"], args].concat());
        let text = String::from_utf8(output.stdout.clone()).expect("text");
        match text.parse() {
            Ok(status @ 1..) => status,
            _ => panic!("no status: {output:?}"),
        }
    }

    /// Runs curl, and returns the problem document of the response.
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
            let log = self.proxy.log();
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let lines: Vec<Value> = lines.filter(|line: &Value| line["path"] == path).collect();
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

    /// Runs a client script on the client's host; its first arguments are the proxy and the authority.
    #[track_caller]
    pub(crate) fn run_python_client(&self, script: &str, args: &[&str]) -> String {
        let (ca, proxy) = (self.scratch.path_text("ca.pem"), PROXY_ADDR.to_string());
        let all = [
            "--signal=KILL",
            "20",
            "/usr/bin/python3",
            script,
            &proxy,
            &ca,
        ];
        self.lab.client.run("timeout", &[&all, args].concat())
    }
}

impl InterceptLab {
    pub(crate) fn new() -> Self {
        let lab = Lab::without_routes();
        // Ephemeral ports for many connections at once: in this lab a test does not rely on the client's
        // port.
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

    /// The same, with the proxy started through other programs.
    pub(crate) fn start_through(self, through: &[&str], args: &[&str]) -> InterceptRig {
        let _origin = self.start_nginx();
        let args = [args, &["--allow-destination=10.81.0.0/24"]].concat();
        let proxy = self.start_proxy_through(through, &args);
        InterceptRig {
            proxy,
            _origin,
            lab: self.lab,
            scratch: self.scratch,
        }
    }

    /// Starts nginx, and the proxy with a configuration file and one option.
    pub(crate) fn start_with_file(self, file: &str, option: &str) -> InterceptRig {
        let _origin = self.start_nginx();
        let config = ["intercept", "--config", file, "--log-format=json", option];
        let proxy = self.start_with_own_names(&[], &config);
        InterceptRig {
            proxy,
            _origin,
            lab: self.lab,
            scratch: self.scratch,
        }
    }

    /// Starts the proxy alone. Names resolve by the test's own hosts file only, which a mount namespace puts
    /// over the real one.
    pub(crate) fn start_proxy(&self, args: &[&str]) -> Peername {
        self.start_proxy_through(&[], args)
    }

    /// The same through other programs.
    pub(crate) fn start_proxy_through(&self, through: &[&str], args: &[&str]) -> Peername {
        let [ca, root] = ["ca", "root.pem"].map(|name| self.scratch.path_text(name));
        let listen = format!("--listen={PROXY_ADDR}");
        let usual = [
            "intercept",
            &listen,
            "--ca",
            &ca,
            "--extra-ca",
            &root,
            "--log-format=json",
        ];
        // A listener on this address needs an access rule.
        let is_access =
            |arg: &&str| arg.starts_with("--allow-client") || arg.starts_with("--proxy-auth");
        let any_client: &[&str] = match args.iter().any(is_access) {
            true => &[],
            false => &["--allow-client=any"],
        };
        let args = [&usual, any_client, args].concat();
        self.start_with_own_names(through, &args)
    }

    fn start_with_own_names(&self, through: &[&str], args: &[&str]) -> Peername {
        let mount = format!(
            "mount --bind {} /etc/hosts && mount --bind {} /etc/nsswitch.conf && exec \"$@\"",
            self.scratch.path_text("hosts"),
            self.scratch.write("nsswitch.conf", "hosts: files\n"),
        );
        let mount = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
        let through = [&mount, through].concat();
        Peername::start_through(&self.lab.balancer, &through, args, &[PROXY_ADDR])
    }

    /// Starts nginx and the proxy, beside a name server that knows no name: a C library may ask one, whatever nsswitch.conf says.
    pub(crate) fn start_with_unknown_names(self, args: &[&str]) -> (Process, InterceptRig) {
        let (names, through) = self.start_name_server(NO_SUCH_NAME);
        let rig = self.start_through(&through.each_ref().map(String::as_str), args);
        (names, rig)
    }

    /// Starts a name server on the proxy's host. Returns also the command to start the proxy through, so that
    /// it asks this server, once, for names that the hosts file lacks.
    pub(crate) fn start_name_server(&self, script: &str) -> (Process, [String; 6]) {
        let script = self.scratch.write("names.py", script);
        let names = Process::start(&self.lab.balancer, "/usr/bin/python3", &["-u", &script]);
        wait_for("the name server", || {
            names.log().contains("ready").then_some(())
        });
        let mounts = [
            ("nsswitch.conf", "hosts: files dns\n"),
            (
                "resolv.conf",
                "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n",
            ),
        ];
        let mounts = mounts.map(|(name, text)| {
            let path = self.scratch.write(&format!("with-dns-{name}"), text);
            format!("mount --bind {path} /etc/{name} && ")
        });
        let mount = format!("{}exec \"$@\"", mounts.concat());
        let through = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
        (names, through.map(str::to_owned))
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

const HOSTS: &str = "\
127.0.0.1 localhost local.test
10.81.0.1 a.test b.test expired.test self-signed.test openssl.test other.test
10.81.0.3 h1.test
10.81.0.77 nobody.test
10.9.9.9 private.test
100.64.0.1 shared.test
169.254.169.254 metadata.test
203.0.113.1 proxy.test
64:ff9b::a00:1 nat64.test
::ffff:10.0.0.1 mapped.test
2002:a00:1:: sixtofour.test
";

const OPENSSL: &str = r#"
cd DIR
key() { openssl ecparam -name prime256v1 -genkey -noout -out $1.key; }
key root
openssl req -x509 -new -key root.key -days 30 -subj "/CN=Test Root" -out root.pem \
    -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
sign() { openssl x509 -req -in $1.csr -extfile $1.ext -out $1.pem -CA root.pem -CAkey root.key \
    -CAcreateserial -days ${2:-20} 2>/dev/null; }
request() { key $1; openssl req -new -key $1.key -subj "/CN=$1" -out $1.csr; \
    printf "subjectAltName=$2\nextendedKeyUsage=serverAuth\n" > $1.ext; }
request expired DNS:expired.test
sign expired 0
signed=$(date +%s)
request origin DNS:a.test,DNS:b.test,DNS:h1.test,IP:10.81.0.1
sign origin
request self-signed DNS:self-signed.test
openssl x509 -req -in self-signed.csr -extfile self-signed.ext -signkey self-signed.key \
    -out self-signed.pem -days 20 2>/dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=openssl.test \
    -addext subjectAltName=DNS:openssl.test -keyout openssl.key -out openssl.pem 2>/dev/null
# Until the second in which it was signed is over, it is good.
while [ $(date +%s) -le $signed ]; do sleep 0.05; done
"#;

const NGINX: &str = "
daemon off;
user root;
worker_processes 1;
pid DIR/nginx.pid;
events {}
http {
    log_format seen '$remote_addr $scheme $host $request $connection';
    access_log DIR/access.log seen;
    client_body_temp_path DIR/body;
    proxy_temp_path DIR/proxy;
    fastcgi_temp_path DIR/fastcgi;
    uwsgi_temp_path DIR/uwsgi;
    scgi_temp_path DIR/scgi;
    client_max_body_size 0;
    root DIR;
    map $ssl_server_name $which { default origin; expired.test expired; self-signed.test self-signed; openssl.test openssl; }
    server {
        listen 10.81.0.1:443 ssl http2;
        listen 10.81.0.3:443 ssl;
        listen 10.81.0.1:80;
        listen 10.81.0.1:8081;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate DIR/$which.pem;
        ssl_certificate_key DIR/$which.key;
        location /echo {
            return 200 '$request_method $http_host $server_protocol te=$http_te x=$http_x_mine \
via=$http_via proxy=$http_proxy_connection\\n';
        }
        location /put { return 200 '$content_length $http_transfer_encoding\\n'; }
        location /dav { dav_methods PUT; create_full_put_path on; }
        location /slow { alias DIR/large; limit_rate 1k; }
        location /none { return 204; }
        location /simple/ { default_type text/html; }
        location /alt { add_header Alt-Svc 'h3=\":443\"'; return 200 'alt\\n'; }
    }
    server {
        listen 10.81.0.1:8443 ssl http2;
        http2_max_concurrent_streams 2;
        ssl_certificate DIR/origin.pem;
        ssl_certificate_key DIR/origin.key;
        location /echo { return 200 '$request_method $http_host $server_protocol\\n'; }
        location /slow { alias DIR/large; limit_rate 1k; }
    }
}
";

/// Answers each query at once: NXDOMAIN.
const NO_SUCH_NAME: &str = r#"
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
while True:
    question, client = server.recvfrom(512)
    end = question.index(b"\0", 12) + 5
    server.sendto(question[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + question[12:end], client)
"#;

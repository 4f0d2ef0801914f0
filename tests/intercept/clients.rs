//! Unmodified clients, each configured as a user would: with the proxy and the certificate authority. OPA
//! decides. Each client shows a refusal in its own way, which is listed here.

use std::process::Command;

use crate::harness::addr::v4;
use crate::harness::check::service::Opa;
use crate::harness::lab::lossy_text;
use crate::harness::peername::BINARY;
use crate::harness::rig::intercept::{
    InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, WEBSOCKET_SERVER,
};

/// A client, and parts of the output that is expected of it.
struct Client {
    /// Files written to its directory.
    sources: &'static [(&'static str, &'static str)],
    /// A server of its own, in Python; otherwise nginx.
    server: Option<&'static str>,
    /// Run once by a shell; `$DIR` has the sources.
    prepare: &'static str,
    /// Run by a shell that has evaluated `peername ca env`. The URL follows.
    command: &'static str,
    /// Printed for a page that is allowed.
    passes: &'static str,
    /// Printed for a denied request inside an allowed tunnel.
    refused: &'static [&'static str],
    /// Printed for a denied tunnel.
    no_tunnel: &'static [&'static str],
    /// Printed for a check service that can't be reached.
    check_down: &'static [&'static str],
}

impl Client {
    #[track_caller]
    fn assert_gets_what_the_check_decides(&self, origin: &str) {
        let (rig, opa) = self.start();
        let _server = self.server.map(|script| rig.start_python_origin(script));
        let passed = self.run_client(&rig, &format!("{origin}/echo"));
        assert!(passed.contains(self.passes), "{passed}");
        self.assert_output(&rig, &format!("{origin}/no"), self.refused);
        let elsewhere = origin.replace("a.test", "b.test");
        self.assert_output(&rig, &format!("{elsewhere}/echo"), self.no_tunnel);
        drop(opa);
        self.assert_output(&rig, &format!("{origin}/echo"), self.check_down);
        assert_eq!(rig.wait_audit_lines("/echo", 1)[0]["decision"], "allowed");
        assert_eq!(rig.wait_audit_lines("/no", 1)[0]["decision"], "denied");
        // The origin has seen the allowed request alone. A WebSocket goes to the client's own server, so nginx has seen none.
        assert!(rig.origin_log().len() <= 1, "{:?}", rig.origin_log());
        assert!(rig.origin_log().iter().all(|line| line.contains(" /echo ")));
    }

    fn start(&self) -> (InterceptRig, Opa) {
        let check = v4([127, 0, 0, 1], 8181);
        let rig = InterceptRig::new(&[
            &format!("--check=opa+http://{check}/v1/data/egress/verdict"),
            "--allow-destination=10.81.0.1:9001",
            LONG_CHECK_TIMEOUT,
        ]);
        let opa = rig.lab.balancer.enter(|| Opa::start_at(check, POLICY));
        for (name, text) in self.sources {
            rig.scratch.write(name, text);
        }
        let (is_prepared, printed) = shell(&rig, self.prepare);
        assert!(is_prepared, "{printed}");
        (rig, opa)
    }

    #[track_caller]
    fn assert_output(&self, rig: &InterceptRig, url: &str, expected: &[&str]) {
        let printed = self.run_client(rig, url);
        for part in expected {
            assert!(printed.contains(part), "{url}, {part:?}: {printed}");
        }
    }

    fn run_client(&self, rig: &InterceptRig, url: &str) -> String {
        let (_, printed) = shell(rig, &format!("{} {url}", self.command));
        printed
    }
}

/// Runs a script on the client's host; returns whether it succeeded, and what it printed. The environment of
/// the test run is cleared, and processes that the script leaves behind end with it.
fn shell(rig: &InterceptRig, script: &str) -> (bool, String) {
    let script = format!(
        "unset SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE JAVA_TOOL_OPTIONS no_proxy NO_PROXY
         eval \"$($PEERNAME ca env --ca $CA --into $DIR)\"
         {script}"
    );
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", "120", "unshare", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc", "sh", "-c", &script])
        .env("PEERNAME", BINARY)
        .env("CA", rig.scratch.path("ca"))
        .env("DIR", rig.scratch.path(""))
        .env("https_proxy", format!("http://{PROXY_ADDR}"));
    let output = rig.lab.client.output(&mut command, "");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), lossy_text(&text))
}

#[test]
fn curl_over_http1_shows_refusals() {
    Client {
        command: "curl -sS --http1.1",
        passes: "GET a.test HTTP/1.1 ",
        ..CURL
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

#[test]
fn curl_over_http2_shows_refusals() {
    CURL.assert_gets_what_the_check_decides("https://a.test");
}

#[test]
fn python_requests_in_strict_mode_shows_refusals() {
    Client {
        sources: &[("client.py", include_str!("clients/client.py"))],
        server: None,
        prepare: "",
        command: "/usr/bin/python3 $DIR/client.py",
        passes: "200 GET a.test HTTP/1.1 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &[
            "ProxyError",
            "Tunnel connection failed: 403 Forbidden (denied)",
        ],
        check_down: &["ProxyError", "Tunnel connection failed: 503"],
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

#[test]
fn python_websockets_shows_refusals() {
    Client {
        sources: &[("websocket.py", include_str!("clients/websocket.py"))],
        server: Some(WEBSOCKET_SERVER),
        prepare: "",
        command: "/usr/bin/python3 $DIR/websocket.py",
        passes: "there and back",
        refused: &["rejected WebSocket connection: HTTP 403"],
        no_tunnel: &["CONNECT 403"],
        check_down: &["CONNECT 503"],
    }
    .assert_gets_what_the_check_decides("wss://a.test:9001");
}

#[test]
fn node_shows_refusals() {
    Client {
        sources: &[("client.js", include_str!("clients/client.js"))],
        server: None,
        prepare: "",
        command: "node $DIR/client.js",
        passes: "200 GET a.test HTTP/1.1 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &["CONNECT 403"],
        check_down: &["CONNECT 503"],
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

#[test]
fn go_shows_refusals() {
    Client {
        sources: &[("client.go", include_str!("../cli/ca/client.go"))],
        server: None,
        prepare: "go build -o $DIR/client $DIR/client.go",
        command: "$DIR/client",
        passes: "GET a.test HTTP/2.0 ",
        refused: &[PROBLEM, REASON],
        no_tunnel: &["Forbidden (denied)"],
        check_down: &["Service Unavailable"],
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

#[test]
fn java_shows_refusals() {
    Client {
        sources: &[("Client.java", include_str!("clients/Client.java"))],
        server: None,
        prepare: "javac -d $DIR $DIR/Client.java",
        command: "java -cp $DIR Client",
        passes: "200 GET a.test HTTP/2.0 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &["IOException: Tunnel failed, got: 403"],
        check_down: &["IOException: Tunnel failed, got: 503"],
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

/// Chromium has a certificate store of its own, and shows the page with the reason, even where a tunnel is refused.
#[test]
fn chromium_shows_refusals() {
    Client {
        sources: &[],
        server: None,
        prepare: "mkdir -p $DIR/home/.pki/nssdb
            certutil -N -d sql:$DIR/home/.pki/nssdb --empty-password
            certutil -A -d sql:$DIR/home/.pki/nssdb -n peername -t C,, -i $DIR/ca.pem",
        command: "HOME=$DIR/home chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --no-first-run --disable-background-networking --disable-component-update --disable-sync \
            --user-data-dir=$DIR/chromium --proxy-server=$https_proxy --dump-dom",
        passes: "GET a.test HTTP/2.0 ",
        refused: &["<h1>Forbidden</h1>", "<code>denied</code>", "<p>Not on this list.</p>"],
        no_tunnel: &["<h1>Forbidden</h1>", "<code>denied</code>", "<p>Not on this list.</p>"],
        check_down: &["<h1>Service Unavailable</h1>", "<code>check_failed</code>"],
    }
    .assert_gets_what_the_check_decides("https://a.test");
}

const CURL: Client = Client {
    sources: &[],
    server: None,
    prepare: "",
    command: "curl -sS --http2",
    passes: "GET a.test HTTP/2.0 ",
    refused: &[PROBLEM, REASON],
    no_tunnel: &["CONNECT tunnel failed, response 403"],
    check_down: &["CONNECT tunnel failed, response 503"],
};

const PROBLEM: &str = r#""code":"denied""#;
const REASON: &str = "not on this list";

/// Denies tunnels to one host, and one path inside of them.
const POLICY: &str = r#"package egress
http := input.attributes.request.http
is_listed if { input.attributes.contextExtensions.mode == "connect"; startswith(http.host, "a.test:") }
is_listed if { input.attributes.contextExtensions.mode == "request"; http.path == "/echo" }
verdict := {"allow": true} if is_listed
else := {"allow": false, "reason": "not on this list"}
"#;

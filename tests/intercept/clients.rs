//! Unmodified clients, each with what a user would tell it: the proxy, and the authority. OPA decides; what a
//! client makes of a refusal is its own affair, and stands here.

use std::process::Command;

use super::authz::decisions::PATIENT;
use super::http::streams;
use crate::harness::addr::v4;
use crate::harness::check::service::Opa;
use crate::harness::peername::BINARY;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR};

/// One client. Expected is what it says, and that it says it.
struct Client {
    /// Written where it runs.
    sources: &'static [(&'static str, &'static str)],
    /// A server of its own for it, in Python; else nginx.
    server: Option<&'static str>,
    /// Once, by a shell; `$DIR` has the sources.
    prepare: &'static str,
    /// By a shell that has taken what `peername ca env` prints. The URL is to follow.
    command: &'static str,
    /// The page.
    passes: &'static str,
    /// Of a request inside a tunnel that was agreed to.
    refused: &'static [&'static str],
    /// Of a tunnel.
    no_tunnel: &'static [&'static str],
    /// When nobody can be asked.
    nobody_asked: &'static [&'static str],
}

impl Client {
    #[track_caller]
    fn gets_what_the_check_says(&self, origin: &str) {
        let (rig, opa) = self.start();
        let _server = self.server.map(|script| streams::serve(&rig, script));
        let passed = self.get(&rig, &format!("{origin}/echo"));
        assert!(passed.contains(self.passes), "{passed}");
        self.says(&rig, &format!("{origin}/no"), self.refused);
        let elsewhere = origin.replace("a.test", "b.test");
        self.says(&rig, &format!("{elsewhere}/echo"), self.no_tunnel);
        drop(opa);
        self.says(&rig, &format!("{origin}/echo"), self.nobody_asked);
        assert_eq!(rig.wait_audit_lines("/echo", 1)[0]["decision"], "allowed");
        assert_eq!(rig.wait_audit_lines("/no", 1)[0]["decision"], "denied");
        // The origin has seen one request at most: of a WebSocket, nginx has not seen any.
        assert!(rig.origin_log().len() <= 1, "{:?}", rig.origin_log());
        assert!(rig.origin_log().iter().all(|line| line.contains(" /echo ")));
    }

    fn start(&self) -> (InterceptRig, Opa) {
        let check = v4([127, 0, 0, 1], 8181);
        let rig = InterceptRig::new(&[
            &format!("--check=opa+http://{check}/v1/data/egress/verdict"),
            "--allow-destination=10.81.0.1:9001",
            PATIENT,
        ]);
        let opa = rig.lab.balancer.enter(|| Opa::start_at(check, POLICY));
        for (name, text) in self.sources {
            rig.scratch.write(name, text);
        }
        let prepared = shell(&rig, self.prepare);
        assert!(prepared.0, "{}", prepared.1);
        (rig, opa)
    }

    #[track_caller]
    fn says(&self, rig: &InterceptRig, url: &str, expected: &[&str]) {
        let said = self.get(rig, url);
        for part in expected {
            assert!(said.contains(part), "{url}, {part:?}: {said}");
        }
    }

    fn get(&self, rig: &InterceptRig, url: &str) -> String {
        shell(rig, &format!("{} {url}", self.command)).1
    }
}

/// On the client's host; whether it succeeded, and what it printed. The variables of whoever runs the tests
/// are not to help, and what it leaves behind ends with it.
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
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn curl_by_http1() {
    Client {
        command: "curl -sS --http1.1",
        passes: "GET a.test HTTP/1.1 ",
        ..CURL
    }
    .gets_what_the_check_says("https://a.test");
}

#[test]
fn curl_by_http2() {
    CURL.gets_what_the_check_says("https://a.test");
}

#[test]
fn python_requests_in_strict_mode() {
    Client {
        sources: &[("client.py", include_str!("clients/client.py"))],
        server: None,
        prepare: "",
        command: "/usr/bin/python3 $DIR/client.py",
        passes: "200 GET a.test HTTP/1.1 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &["ProxyError", "Tunnel connection failed: 403"],
        nobody_asked: &["ProxyError", "Tunnel connection failed: 503"],
    }
    .gets_what_the_check_says("https://a.test");
}

#[test]
fn python_websockets() {
    Client {
        sources: &[("websocket.py", include_str!("clients/websocket.py"))],
        server: Some(streams::WEBSOCKET_SERVER),
        prepare: "",
        command: "/usr/bin/python3 $DIR/websocket.py",
        passes: "there and back",
        refused: &["rejected WebSocket connection: HTTP 403"],
        no_tunnel: &["CONNECT 403"],
        nobody_asked: &["CONNECT 503"],
    }
    .gets_what_the_check_says("wss://a.test:9001");
}

#[test]
fn node() {
    Client {
        sources: &[("client.js", include_str!("clients/client.js"))],
        server: None,
        prepare: "",
        command: "node $DIR/client.js",
        passes: "200 GET a.test HTTP/1.1 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &["CONNECT 403"],
        nobody_asked: &["CONNECT 503"],
    }
    .gets_what_the_check_says("https://a.test");
}

#[test]
fn go() {
    Client {
        sources: &[("client.go", include_str!("../cli/ca/client.go"))],
        server: None,
        prepare: "go build -o $DIR/client $DIR/client.go",
        command: "$DIR/client",
        passes: "GET a.test HTTP/2.0 ",
        refused: &[PROBLEM, REASON],
        no_tunnel: &["Forbidden"],
        nobody_asked: &["Service Unavailable"],
    }
    .gets_what_the_check_says("https://a.test");
}

#[test]
fn java() {
    Client {
        sources: &[("Client.java", include_str!("clients/Client.java"))],
        server: None,
        prepare: "javac -d $DIR $DIR/Client.java",
        command: "java -cp $DIR Client",
        passes: "200 GET a.test HTTP/2.0 ",
        refused: &["403 {", PROBLEM, REASON],
        no_tunnel: &["IOException: Tunnel failed, got: 403"],
        nobody_asked: &["IOException: Tunnel failed, got: 503"],
    }
    .gets_what_the_check_says("https://a.test");
}

/// It has a store of its own, and shows the page that says why, also where a tunnel is refused.
#[test]
fn chromium() {
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
        refused: &["<h1>Forbidden</h1>", "<code>denied</code>", REASON],
        no_tunnel: &["<h1>Forbidden</h1>", "<code>denied</code>", REASON],
        nobody_asked: &["<h1>Service Unavailable</h1>", "<code>check_failed</code>"],
    }
    .gets_what_the_check_says("https://a.test");
}

const CURL: Client = Client {
    sources: &[],
    server: None,
    prepare: "",
    command: "curl -sS --http2",
    passes: "GET a.test HTTP/2.0 ",
    refused: &[PROBLEM, REASON],
    no_tunnel: &["CONNECT tunnel failed, response 403"],
    nobody_asked: &["CONNECT tunnel failed, response 503"],
};

const PROBLEM: &str = r#""code":"denied""#;
const REASON: &str = "not on this list";

/// Tunnels to one host, and inside of them one path.
const POLICY: &str = r#"package egress
http := input.attributes.request.http
is_listed if { input.attributes.contextExtensions.mode == "connect"; startswith(http.host, "a.test:") }
is_listed if { input.attributes.contextExtensions.mode == "request"; http.path == "/echo" }
verdict := {"allow": true} if is_listed
else := {"allow": false, "reason": "not on this list"}
"#;

//! Connections to check services: TLS with certificates on both sides, Unix sockets, and several services.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::admin::ADMIN;
use crate::harness::check::service::{Opa, Service};
use crate::harness::lab::{Host, Process, assert_contains, assert_fields, wait_for, wait_until};
use crate::harness::peername::words;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT};

/// Starts a service that denies paths with `secret`; the scripted one denies once its answer is set. The service listens on an
/// address or a Unix socket (`unix:PATH`), with TLS and required client certificates or without.
type Start = fn(&InterceptLab, address: &str, tls: bool) -> CheckService;

/// A running service.
enum CheckService {
    Scripted(Service),
    BehindNginx { _nginx: Process, _service: Process },
    Opa(#[expect(dead_code, reason = "stops it when dropped")] Opa),
}

struct Protocol {
    scheme: &'static str,
    tls_scheme: &'static str,
    path: &'static str,
    start: Start,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        scheme: "grpc:",
        tls_scheme: "grpcs:",
        path: "",
        start: start_ext_authz,
    },
    Protocol {
        scheme: "http:",
        tls_scheme: "https:",
        path: "/verify",
        start: start_forward_auth,
    },
    Protocol {
        scheme: "opa+http:",
        tls_scheme: "opa+https:",
        path: "/v1/data/egress/allow",
        start: start_opa,
    },
];

#[test]
fn services_are_asked_over_tls_with_certificates_on_both_sides() {
    for protocol in PROTOCOLS {
        let (stage, mut service) =
            start_stage(|stage| (protocol.start)(stage, "127.0.0.1:9191", true));
        let (scheme, path) = (protocol.tls_scheme, protocol.path);
        let url = format!("--check={scheme}//127.0.0.1:9191{path}");
        let option = |option: &str, file: &str| {
            format!("--check-{option}={}", stage.scratch.path_text(file))
        };
        let ca = option("ca", "root.pem");
        let (cert, key) = (option("cert", "client.pem"), option("key", "client.key"));
        let rig = stage.start(&[&url, &ca, &cert, &key, LONG_CHECK_TIMEOUT]);
        assert_decides(&rig, &mut service, scheme);
    }
}

#[test]
fn services_are_asked_on_unix_sockets() {
    for protocol in PROTOCOLS {
        let (stage, mut service) = start_stage(|stage| {
            let socket = stage.scratch.path_text("check.sock");
            (protocol.start)(stage, &format!("unix:{socket}"), false)
        });
        let socket = stage.scratch.path_text("check.sock");
        let scheme = protocol.scheme;
        let path = match protocol.path {
            "" => String::new(),
            path => format!(":{path}"),
        };
        let rig = stage.start(&[
            &format!("--check={scheme}unix:{socket}{path}"),
            LONG_CHECK_TIMEOUT,
        ]);
        assert_decides(&rig, &mut service, scheme);
    }
}

/// A service that the proxy can't verify, or that does not accept the proxy, is a failed check.
#[test]
fn service_that_can_not_be_verified_is_not_asked() {
    let (stage, mut service) = start_stage(|stage| start_ext_authz(stage, "0.0.0.0:9191", true));
    let path = |name: &str| stage.scratch.path_text(name);
    let (root, client, key) = (path("root.pem"), path("client.pem"), path("client.key"));
    let (other, wrong, wrong_key) = (
        path("openssl.pem"),
        path("self-signed.pem"),
        path("self-signed.key"),
    );
    let arg = |kind: &str, file: &str| format!("--check-{kind}={file}");
    let cases = [
        // Another authority.
        (
            "127.0.0.1",
            vec![arg("ca", &other), arg("cert", &client), arg("key", &key)],
            "check_tls",
        ),
        // Another name than the certificate's.
        (
            "127.0.0.2",
            vec![arg("ca", &root), arg("cert", &client), arg("key", &key)],
            "check_tls",
        ),
        // No certificate, and one that the service rejects: with TLS 1.3 the client learns of it after its handshake.
        ("127.0.0.1", vec![arg("ca", &root)], "check_broken"),
        (
            "127.0.0.1",
            vec![
                arg("ca", &root),
                arg("cert", &wrong),
                arg("key", &wrong_key),
            ],
            "check_broken",
        ),
    ];
    let _origin = stage.start_nginx();
    for (host, files, code) in cases {
        let url = format!("--check=grpcs://{host}:9191");
        let mut args = vec![
            &*url,
            "--allow-destination=10.81.0.0/24",
            LONG_CHECK_TIMEOUT,
        ];
        args.extend(files.iter().map(String::as_str));
        let proxy = stage.start_proxy(&args);
        let curl = words("-sS -o /dev/null -w %{http_code} -x 203.0.113.1:8080 http://a.test/echo");
        assert_eq!(stage.lab.client.run("curl", &curl), "503", "{files:?}");
        let line = proxy.wait_json("of the audit", |line| line["path"] == "/echo");
        assert_eq!(line["how"], code, "{files:?}: {}", proxy.log());
    }
    if let CheckService::Scripted(service) = &mut service {
        assert_eq!(service.count_requests(), 0);
    }
}

/// The second service is asked while the first can't be reached, and no request waits for the first.
#[test]
fn next_service_is_asked_where_one_can_not_be_reached() {
    let stage = InterceptLab::new();
    let (first, second) = (v4([127, 0, 0, 1], 9191), v4([127, 0, 0, 1], 9192));
    let host = &stage.lab.balancer;
    let first_opa = start_named_opa(host, first, "first");
    let second_opa = start_named_opa(host, second, "second");
    let url = |address| format!("--check=opa+http://{address}/v1/data/egress/allow");
    let rig = stage.start(&[&url(first), &url(second), LONG_CHECK_TIMEOUT, ADMIN]);
    let is_ready = || {
        let url = "http://127.0.0.1:9300/readyz";
        rig.lab
            .balancer
            .run("curl", &["-sS", "--noproxy", "*", url])
            == "ready\n"
    };
    assert_eq!(decider(&rig), "first");
    drop(first_opa);
    for _ in 0..15 {
        assert_eq!(decider(&rig), "second");
    }
    let named = format!("{second}/v1/data/egress/allow decides in its place");
    rig.proxy.wait_logged(&named);
    let log = rig.proxy.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains(&named)).collect();
    assert!(warnings.len() < 3, "throttled: {log}");
    let service = format!("\"service\":\"opa+http://{first}/v1/data/egress/allow\"");
    assert_contains(warnings[0], &[&service, "\"suppressed\":0"]);
    assert!(is_ready());
    assert!(rig.read_metrics().contains("peername_check_suspended 1"));
    drop(second_opa);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 503);
    assert!(!is_ready());
    let _first_opa = start_named_opa(&rig.lab.balancer, first, "first");
    wait_until("the first is asked again", || {
        let status = rig.curl_status(&["http://a.test/echo"]);
        status == 200 && decider(&rig) == "first"
    });
}

/// The second service is asked once the first has answered many requests with nothing but errors.
#[test]
fn next_service_is_asked_where_one_answers_with_errors() {
    let stage = InterceptLab::new();
    let (first, second) = (v4([127, 0, 0, 1], 9191), v4([127, 0, 0, 1], 9192));
    let host = &stage.lab.balancer;
    let mut first_service = host.enter(|| Service::forward_auth(first));
    first_service.set_answer(r#"{"status": 500, "headers": [], "body": ""}"#);
    let _second = start_named_opa(host, second, "second");
    let rig = stage.start(&[
        &format!("--check=http://{first}/verify"),
        &format!("--check=opa+http://{second}/v1/data/egress/allow"),
        LONG_CHECK_TIMEOUT,
        ADMIN,
    ]);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 503);
    wait_until("the second is asked", || decider(&rig) == "second");
    assert!(rig.read_metrics().contains("peername_check_suspended 1"));
    first_service.set_answer(r#"{"status": 200, "headers": [], "body": ""}"#);
    wait_until("the first is asked again", || {
        rig.curl_status(&["http://a.test/echo"]) == 200
            && rig.read_metrics().contains("peername_check_suspended 0")
    });
}

/// Sends a request; returns the name that the OPA that allowed it gave to the origin; empty if none did.
fn decider(rig: &InterceptRig) -> String {
    let answer = rig.curl(&["http://a.test/echo"]);
    let name = answer
        .split(" x=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    name.unwrap_or_default().to_owned()
}

/// Starts OPA with a policy that allows each request, and sets a header to this name.
fn start_named_opa(host: &Host, address: SocketAddr, name: &str) -> Opa {
    let policy = format!(
        "package egress\nallow := {{\"allow\": true, \"headers\": {{\"x-mine\": \"{name}\"}}}}\n"
    );
    host.enter(|| Opa::start_at(address, &policy))
}

fn assert_decides(rig: &InterceptRig, service: &mut CheckService, scheme: &str) {
    assert!(
        rig.curl(&["https://a.test/echo"])
            .starts_with("GET a.test "),
        "{scheme}"
    );
    if let CheckService::Scripted(service) = service {
        service.set_answer(r#"{"status": {"code": 7}}"#);
    }
    assert_eq!(rig.curl_status(&["http://a.test/secret"]), 403, "{scheme}");
    for (path, expected) in [("/echo", "allowed"), ("/secret", "denied")] {
        let line = &rig.wait_audit_lines(path, 1)[0];
        assert_fields(line, json!({"decision": expected, "how": "asked"}));
    }
}

fn start_stage(start: impl FnOnce(&InterceptLab) -> CheckService) -> (InterceptLab, CheckService) {
    let stage = InterceptLab::new();
    let script = CERTIFICATES.replace("DIR", &stage.scratch.path_text("."));
    stage.lab.client.run("sh", &["-ec", &script]);
    let service = start(&stage);
    (stage, service)
}

fn start_ext_authz(stage: &InterceptLab, address: &str, tls: bool) -> CheckService {
    let files = ["server.pem", "server.key", "root.pem"].map(|name| stage.scratch.path_text(name));
    let files = files.iter().map(String::as_str).filter(|_| tls);
    let args: Vec<_> = [address].into_iter().chain(files).collect();
    let mut service = stage.lab.balancer.enter(|| Service::ext_authz_with(&args));
    service.set_answer(r#"{"status": {}}"#);
    CheckService::Scripted(service)
}

/// nginx in front of a forwardAuth service.
fn start_forward_auth(stage: &InterceptLab, address: &str, tls: bool) -> CheckService {
    let script = super::decisions::CHECK_SERVICE.replace("9191", "9192");
    let script = stage.scratch.write("check.py", &script);
    let backend = v4([127, 0, 0, 1], 9192);
    let service = Process::start(&stage.lab.balancer, "/usr/bin/python3", &["-u", &script]);
    let _service = service.wait_listening(&[backend]);
    let (ssl, tls_directives) = if tls {
        (" ssl", TLS_DIRECTIVES)
    } else {
        ("", "")
    };
    let config = NGINX.replace("LISTEN", &format!("{address}{ssl}"));
    let config = config
        .replace("TLS_DIRECTIVES", tls_directives)
        .replace("DIR", &stage.scratch.path_text("."));
    let config = stage.scratch.write("check.conf", &config);
    let args = ["-c", &config, "-e", "stderr"];
    let nginx = Process::start_in_pid_namespace(&stage.lab.balancer, "nginx", &args);
    let _nginx = match address.strip_prefix("unix:") {
        Some(socket) => {
            wait_connects(Path::new(socket));
            nginx
        }
        None => nginx.wait_listening(&[v4([127, 0, 0, 1], 9191)]),
    };
    CheckService::BehindNginx { _nginx, _service }
}

fn start_opa(stage: &InterceptLab, address: &str, tls: bool) -> CheckService {
    let policy =
        "package egress\nallow if not contains(input.attributes.request.http.path, \"secret\")\n";
    let file = |name: &str| stage.scratch.path_text(name);
    let files = [
        "--authentication=tls".to_owned(),
        format!("--tls-cert-file={}", file("server.pem")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--tls-ca-cert-file={}", file("root.pem")),
    ];
    let files: Vec<_> = files.iter().map(String::as_str).filter(|_| tls).collect();
    let opa = |address: &str| {
        stage
            .lab
            .balancer
            .enter(|| Opa::start_on(address, policy, &files))
    };
    let opa = match address.strip_prefix("unix:") {
        Some(socket) => {
            let opa = opa(&format!("unix://{socket}"));
            wait_connects(Path::new(socket));
            opa
        }
        None => {
            let opa = opa(&format!("https://{address}"));
            let addr: SocketAddr = address.parse().expect("an address");
            wait_for("OPA listens", || {
                stage.lab.balancer.enter(|| TcpStream::connect(addr).ok())
            });
            opa
        }
    };
    CheckService::Opa(opa)
}

fn wait_connects(socket: &Path) {
    wait_for("the socket", || UnixStream::connect(socket).ok());
}

const NGINX: &str = include_str!("transports/nginx.conf");
/// A client without a certificate gets 400.
const TLS_DIRECTIVES: &str = "
        ssl_certificate DIR/server.pem;
        ssl_certificate_key DIR/server.key;
        ssl_client_certificate DIR/root.pem;
        ssl_verify_client on;
";
const CERTIFICATES: &str = include_str!("transports/certificates.sh");

//! Connections to check services: TLS with certificates on both sides, Unix sockets, and several services.

use crate::harness::peername::words;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::harness::addr::v4;
use crate::harness::check::service::{Opa, Service};
use crate::harness::lab::{Process, wait_for, wait_until};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT};

/// Starts a service that denies paths with `secret` (the scripted one once it is told to) and allows everything else, at an address or a Unix socket
/// (`unix:PATH`), with TLS and required client certificates or without.
type Start = fn(&InterceptLab, address: &str, tls: bool) -> Running;

/// What keeps a service running.
enum Running {
    Scripted(Service),
    Behind { _nginx: Process, _service: Process },
    Opa(#[expect(dead_code, reason = "stops it when dropped")] Opa),
}

/// URL prefix and suffix without TLS and with it, and how the service is started.
const SERVICES: [(&str, &str, &str, Start); 3] = [
    ("grpc:", "grpcs:", "", start_ext_authz),
    ("http:", "https:", "/verify", start_forward_auth),
    (
        "opa+http:",
        "opa+https:",
        "/v1/data/egress/allow",
        start_opa,
    ),
];

#[test]
fn services_are_asked_over_tls_with_certificates_on_both_sides() {
    for (_, scheme, path, start) in SERVICES {
        let (stage, mut service) = start_stage(|stage| start(stage, "127.0.0.1:9191", true));
        let url = format!("--check={scheme}//127.0.0.1:9191{path}");
        let files = ["ca", "cert", "key"].map(|kind| {
            let name = match kind {
                "ca" => "root.pem".to_owned(),
                "cert" => "client.pem".to_owned(),
                _ => "client.key".to_owned(),
            };
            format!("--check-{kind}={}", stage.scratch.path_text(&name))
        });
        let [ca, cert, key] = &files;
        let rig = stage.start(&[&url, ca, cert, key, LONG_CHECK_TIMEOUT]);
        assert_decides(&rig, &mut service, scheme);
    }
}

#[test]
fn services_are_asked_on_unix_sockets() {
    for (scheme, _, path, start) in SERVICES {
        let (stage, mut service) = start_stage(|stage| {
            let socket = stage.scratch.path_text("check.sock");
            start(stage, &format!("unix:{socket}"), false)
        });
        let socket = stage.scratch.path_text("check.sock");
        let path = match path {
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
        // No certificate, and one that the service does not accept: TLS 1.3 tells so with the first answer.
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
        let how = proxy.wait_line("the audit line", |line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            (line["path"] == "/echo").then(|| line["how"].clone())
        });
        assert_eq!(how, code, "{files:?}: {}", proxy.log());
    }
    if let Running::Scripted(service) = &mut service {
        assert_eq!(service.count_requests(), 0);
    }
}

/// The second service is asked while the first can't be reached, and no request waits for the first.
#[test]
fn next_service_is_asked_where_one_can_not_be_reached() {
    let stage = InterceptLab::new();
    let policy = |by: &str| {
        format!(
            "package egress\nallow := {{\"allow\": true, \"headers\": {{\"x-mine\": \"{by}\"}}}}\n"
        )
    };
    let (first, second) = (v4([127, 0, 0, 1], 9191), v4([127, 0, 0, 1], 9192));
    let start = |address, by: &str| {
        stage
            .lab
            .balancer
            .enter(|| Opa::start_at(address, &policy(by)))
    };
    let one = start(first, "first");
    let url = |address| format!("--check=opa+http://{address}/v1/data/egress/allow");
    let (one_url, two_url) = (url(first), url(second));
    let lab = &stage.lab.balancer;
    let second_opa = std::thread::scope(|scope| {
        // Each needs a directory of its own, which is named by the thread.
        let started = scope.spawn(|| lab.enter(|| Opa::start_at(second, &policy("second"))));
        started.join().expect("OPA")
    });
    let rig = stage.start(&[
        &one_url,
        &two_url,
        LONG_CHECK_TIMEOUT,
        "--admin=127.0.0.1:9300",
    ]);
    let asked = || {
        let answer = rig.curl(&["http://a.test/echo"]);
        let by = answer
            .split(" x=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        by.unwrap_or_default().to_owned()
    };
    let is_ready = || {
        let url = "http://127.0.0.1:9300/readyz";
        rig.lab
            .balancer
            .run("curl", &["-sS", "--noproxy", "*", url])
            == "ready\n"
    };
    assert_eq!(asked(), "first");
    drop(one);
    for _ in 0..15 {
        assert_eq!(asked(), "second");
    }
    assert!(is_ready());
    assert!(rig.read_metrics().contains("peername_check_suspended 1"));
    drop(second_opa);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 503);
    assert!(!is_ready());
    let _one = rig
        .lab
        .balancer
        .enter(|| Opa::start_at(first, &policy("first")));
    wait_until("the first is asked again", || {
        let status = rig.curl_status(&["http://a.test/echo"]);
        status == 200 && asked() == "first"
    });
}

fn assert_decides(rig: &InterceptRig, service: &mut Running, scheme: &str) {
    assert!(
        rig.curl(&["https://a.test/echo"])
            .starts_with("GET a.test "),
        "{scheme}"
    );
    if let Running::Scripted(service) = service {
        service.set_answer(r#"{"status": {"code": 7}}"#);
    }
    assert_eq!(rig.curl_status(&["http://a.test/secret"]), 403, "{scheme}");
    for (path, expected) in [("/echo", "allowed"), ("/secret", "denied")] {
        let line = &rig.wait_audit_lines(path, 1)[0];
        let (decision, how) = (&line["decision"], &line["how"]);
        assert_eq!(
            (decision, how),
            (&expected.into(), &"asked".into()),
            "{scheme}: {line}"
        );
    }
}

fn start_stage(start: impl FnOnce(&InterceptLab) -> Running) -> (InterceptLab, Running) {
    let stage = InterceptLab::new();
    let script = CERTIFICATES.replace("DIR", &stage.scratch.path_text("."));
    stage.lab.client.run("sh", &["-ec", &script]);
    let service = start(&stage);
    (stage, service)
}

fn start_ext_authz(stage: &InterceptLab, address: &str, tls: bool) -> Running {
    let files = ["server.pem", "server.key", "root.pem"].map(|name| stage.scratch.path_text(name));
    let files = files.iter().map(String::as_str).filter(|_| tls);
    let args: Vec<_> = [address].into_iter().chain(files).collect();
    let mut service = stage.lab.balancer.enter(|| Service::ext_authz_with(&args));
    service.set_answer(r#"{"status": {}}"#);
    Running::Scripted(service)
}

/// nginx in front of a forwardAuth service.
fn start_forward_auth(stage: &InterceptLab, address: &str, tls: bool) -> Running {
    let script = super::decisions::SERVICE.replace("9191", "9192");
    let script = stage.scratch.write("check.py", &script);
    let backend = v4([127, 0, 0, 1], 9192);
    let service = Process::start(&stage.lab.balancer, "/usr/bin/python3", &["-u", &script]);
    let _service = service.wait_listening(&[backend]);
    let (ssl, more) = match tls {
        true => (" ssl", TLS_OF_NGINX),
        false => ("", ""),
    };
    let config = NGINX.replace("LISTEN", &format!("{address}{ssl}"));
    let config = config
        .replace("MORE", more)
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
    Running::Behind { _nginx, _service }
}

fn start_opa(stage: &InterceptLab, address: &str, tls: bool) -> Running {
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
            let at = address.parse().expect("an address");
            wait_for("OPA listens", || {
                let connect = || std::net::TcpStream::connect::<std::net::SocketAddr>(at).ok();
                stage.lab.balancer.enter(connect)
            });
            opa
        }
    };
    Running::Opa(opa)
}

fn wait_connects(socket: &Path) {
    wait_for("the socket", || UnixStream::connect(socket).ok());
}

const NGINX: &str = include_str!("transports/nginx.conf");
/// A client without a certificate gets 400.
const TLS_OF_NGINX: &str = "
        ssl_certificate DIR/server.pem;
        ssl_certificate_key DIR/server.key;
        ssl_client_certificate DIR/root.pem;
        ssl_verify_client on;
";
const CERTIFICATES: &str = include_str!("transports/certificates.sh");

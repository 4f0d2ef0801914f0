//! A check of each kind, by a real service: what it sees, and what becomes of its yes and its no.

use serde_json::{Value, json};

use super::rig::{PROXY, Rig, head};
use crate::addr::{someone_v4, v4};
use crate::check::service::{Opa, Service};
use crate::conn::Conn;
use crate::header;
use crate::lab::wait_for;

/// A service, and how it is told what to say.
enum Kind {
    /// With what it answers for a no.
    Told(Service, &'static str),
    /// Its policy says both.
    Opa(Opa),
}

impl Kind {
    fn says_no(&mut self) {
        if let Self::Told(service, no) = self {
            service.answers(no);
        }
    }

    /// What it was asked about this path, or about a tunnel: in words common to all.
    fn asked(&self, path: Option<&str>) -> Value {
        match self {
            Self::Told(service, _) => {
                let asked = service.asked();
                match asked.get("headers") {
                    Some(headers) => of_forward_auth(headers),
                    None => of_ext_authz(&asked),
                }
            }
            Self::Opa(opa) => {
                let wanted = json!(path);
                of_ext_authz(&opa.decided_about(|input| of_ext_authz(input)["path"] == wanted))
            }
        }
    }
}

/// OPA's input has the same shape.
fn of_ext_authz(asked: &Value) -> Value {
    let attributes = &asked["attributes"];
    let (http, more) = (
        &attributes["request"]["http"],
        &attributes["contextExtensions"],
    );
    json!({
        "mode": more["mode"],
        "client": attributes["source"]["address"]["socketAddress"]["address"],
        "connect": more["connect"],
        "sni": more["sni"],
        "method": http["method"],
        "host": http["host"],
        // An empty one is none.
        "path": http["path"].as_str().filter(|path| !path.is_empty()),
    })
}

fn of_forward_auth(headers: &Value) -> Value {
    let headers = headers.as_array().expect("headers");
    let header = |name: &str| headers.iter().find(|one| one[0] == name).map(|one| &one[1]);
    json!({
        "mode": header("x-peername-mode"),
        "client": header("x-forwarded-for"),
        "connect": header("x-peername-connect"),
        "sni": header("x-peername-sni"),
        "method": header("x-forwarded-method"),
        "host": header("x-forwarded-host"),
        "path": header("x-forwarded-uri"),
    })
}

/// `sets` is what the service's yes adds to a request, as the origin sees it.
fn is_asked_and_obeyed(scheme: &str, rule: &str, sets: &str, start: impl FnOnce(&Rig) -> Kind) {
    let check = format!("--check={scheme}://{CHECK}{rule}");
    let rig = Rig::new(&[&check, "--accept-proxy=203.0.113.9"]);
    let mut service = start(&rig);
    // Where connections begin without a header.
    rig.lab.client.address("eth0", &["203.0.113.10/24"]);
    let from = ["--interface", "203.0.113.10"];

    let answer = rig.curl(&[&from[..], &["https://a.test/echo?q=1"]].concat());
    assert!(answer.starts_with("GET a.test HTTP/2.0 "), "{answer}");
    assert!(answer.contains(&format!(" x={sets} ")), "{answer}");
    let tunnel = json!({ "mode": "connect", "client": "203.0.113.10", "connect": "a.test:443", "sni": null,
        "method": "CONNECT", "host": "a.test:443", "path": null });
    assert_eq!(service.asked(None), tunnel);
    let inside = json!({ "mode": "request", "client": "203.0.113.10", "connect": "a.test:443",
        "sni": "a.test", "method": "GET", "host": "a.test", "path": "/echo?q=1" });
    assert_eq!(service.asked(Some("/echo?q=1")), inside);

    let behind = someone_v4();
    let request = b"GET http://a.test/echo?q=2 HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let bytes = [&header::v2(behind, PROXY, &[])[..], request].concat();
    let conn = Conn::open(&rig.lab.client, PROXY, &bytes);
    assert!(head(&conn).starts_with("HTTP/1.1 200 "));
    let plain = json!({ "mode": "request", "client": behind.ip().to_string(), "connect": null, "sni": null,
        "method": "GET", "host": "a.test", "path": "/echo?q=2" });
    assert_eq!(service.asked(Some("/echo?q=2")), plain);
    wait_for("nginx logs both", || (rig.seen().len() == 2).then_some(()));

    service.says_no();
    let refused = rig.try_curl(&[&from[..], &["https://b.test/echo"]].concat());
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("tunnel failed, response 451"), "{error}");
    let told = rig.curl(&[&from[..], &["-i", "http://a.test/no"]].concat());
    assert!(
        told.starts_with("HTTP/1.1 451 ") && told.ends_with("\r\n\r\nby law"),
        "{told}"
    );
    assert_eq!(rig.seen().len(), 2, "nothing of it reached the origin");
    let denied = |line: &Value| line["decision"] == "denied" && line["status"] == 451;
    assert!(denied(&rig.audit("/no", 1)[0]), "{}", rig.proxy.log());
}

#[test]
fn by_ext_authz() {
    const YES: &str = r#"{"status": {}, "okResponse": {"headers": [{"header": {"key": "x-mine", "value": "set"}}]}}"#;
    const NO: &str =
        r#"{"status": {"code": 7}, "deniedResponse": {"status": {"code": 451}, "body": "by law"}}"#;
    is_asked_and_obeyed("grpc", "", "set", |rig| {
        let mut service = rig.lab.balancer.enter(|| Service::ext_authz(CHECK));
        service.answers(YES);
        Kind::Told(service, NO)
    });
}

/// Which headers of its answer are for the origin has to be said beforehand: here, none are.
#[test]
fn by_forward_auth() {
    const YES: &str = r#"{"status": 200, "headers": [["x-mine", "set"]], "body": ""}"#;
    const NO: &str = r#"{"status": 451, "headers": [], "body": "by law"}"#;
    is_asked_and_obeyed("http", "/verify", "", |rig| {
        let mut service = rig.lab.balancer.enter(|| Service::forward_auth(CHECK));
        service.answers(YES);
        Kind::Told(service, NO)
    });
}

#[test]
fn by_opa() {
    const POLICY: &str = r#"package egress
http := input.attributes.request.http
is_listed if { http.method == "CONNECT"; http.host == "a.test:443" }
is_listed if { startswith(http.path, "/echo") }
verdict := {"allow": true, "headers": {"x-mine": "set"}} if is_listed
else := {"allow": false, "http_status": 451, "body": "by law"}
"#;
    is_asked_and_obeyed("opa+http", "/v1/data/egress/verdict", "set", |rig| {
        Kind::Opa(rig.lab.balancer.enter(|| Opa::at(CHECK, POLICY)))
    });
}

const CHECK: std::net::SocketAddr = v4([127, 0, 0, 1], 9191);

//! Origins that are refused, each beside one that differs in nothing but the flaw and is served.
//!
//! Real servers with real certificates (`certificates.py`). A client that verifies nothing shows that the
//! flawed one is reachable.

use std::fmt::Display;

use crate::harness::addr::v4;
use crate::harness::lab::{Host, Process, assert_contains, stdout_text, wait_for};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig};

#[test]
fn flawed_certificates_are_refused() {
    assert_refused(&start_rig(), &certificates());
}

/// Refused are TLS 1.0 and 1.1, and in TLS 1.2 a key exchange without forward secrecy and a CBC cipher (Lucky 13). All servers
/// have the same certificate.
#[test]
fn weak_tls_is_refused() {
    let good = "old.test:4433";
    let handshake = "upstream_tls_handshake";
    assert_refused(
        &start_rig(),
        &[
            ("old.test:4431", good, handshake),
            ("old.test:4432", good, handshake),
            ("old.test:4434", good, handshake),
            ("old.test:4435", good, handshake),
        ],
    );
}

/// The answer says what the origin wants, and what helps.
#[test]
fn cause_of_a_failed_handshake_is_named() {
    let rig = start_rig();
    let _servers = start_client_certificate_servers(&rig);
    for (origin, code, cause) in [
        (
            "old.test:4431",
            "upstream_tls_handshake",
            "an older version",
        ),
        (
            "old.test:4432",
            "upstream_tls_handshake",
            "an older version",
        ),
        (
            "old.test:4434",
            "upstream_tls_handshake",
            "RSA key exchange",
        ),
        ("old.test:4435", "upstream_tls_handshake", "CBC mode"),
        (
            "old.test:4436",
            "upstream_tls_handshake",
            "over a finite field",
        ),
        (
            "old.test:9012",
            "upstream_tls_client_certificate",
            "a client certificate",
        ),
        (
            "old.test:9013",
            "upstream_tls_client_certificate",
            "a client certificate",
        ),
        (
            "rsa-1024.test",
            "upstream_tls_weak_key",
            "an RSA key of 1024 bits",
        ),
        (
            "rsa-1024-issuer.test",
            "upstream_tls_weak_key",
            "an RSA key of 1024 bits",
        ),
    ] {
        for _ in 0..2 {
            let problem = rig.curl_problem(&[&format!("https://{origin}/")]);
            let detail = problem["detail"].as_str().unwrap_or_default();
            assert!(
                problem["code"] == code && detail.contains(cause),
                "{origin}: {problem}"
            );
            assert!(problem.to_string().contains("--passthrough"), "{problem}");
        }
    }
}

/// The client shows the origin its own certificate.
#[test]
fn origin_that_wants_a_client_certificate_gets_it_by_passthrough() {
    let rig = start_with(make_stage(), &["--passthrough=old.test"]);
    let _servers = start_client_certificate_servers(&rig);
    let [root, own, key] = [
        "root.pem",
        "ok-client-auth.test.pem",
        "ok-client-auth.test.key",
    ]
    .map(|name| rig.scratch.path_text(name));
    for origin in ["https://old.test:9012/", "https://old.test:9013/"] {
        let args = ["--cacert", &root, "--cert", &own, "--key", &key, origin];
        assert_eq!(rig.curl(&args), "hello\n", "{origin}");
    }
}

/// Starts servers that want a client certificate: TLS 1.2 at 9012, TLS 1.3 at 9013.
fn start_client_certificate_servers(rig: &InterceptRig) -> Process {
    let script = rig
        .scratch
        .write("client_certificate_servers.py", CLIENT_CERTIFICATE_SERVERS);
    let dir = rig.scratch.path_text(".");
    Process::start(&rig.lab.server, "/usr/bin/python3", &["-u", &script, &dir])
        .wait_listening(&[9012, 9013].map(|port| v4([10, 81, 0, 1], port)))
}

/// The proxy's authority certifies leaves for clients only. An origin that shows such a leaf is a loop, or
/// has the stolen key. It is refused even where a trusted authority has signed the proxy's authority.
#[test]
fn proxys_own_authority_certifies_no_origin() {
    let rig = start_rig();
    let own = "upstream_tls_own_authority";
    let good = "ok-crossed.test";
    let compressed = "ok-compressed.test";
    assert_refused(
        &rig,
        &[
            ("forged-alone.test", good, "upstream_tls_untrusted"),
            ("forged.test", good, own),
            ("crossed.test", good, own),
            ("compressed.test", compressed, own),
            ("own-key.test", "ok-own-key.test", own),
        ],
    );
}

/// A proxy that was started before the rotation still has the old key.
#[test]
fn rotated_authority_certifies_no_origin() {
    let stage = make_stage();
    let ca = stage.scratch.path_text("ca");
    stage.lab.client.run(BINARY, &["ca", "rotate", "--ca", &ca]);
    let pem = stage.lab.client.run(BINARY, &["ca", "export", "--ca", &ca]);
    stage.scratch.write("ca.pem", &pem);
    let own = "upstream_tls_own_authority";
    assert_refused(&start(stage), &[("crossed.test", "ok-crossed.test", own)]);
}

#[test]
fn proxys_own_authority_is_refused_as_extra_ca() {
    let stage = make_stage();
    let ca = stage.scratch.path_text("ca");
    for extra in ["ca.pem", "crossed.crt", "compressed.crt"] {
        let extra = stage.scratch.path_text(extra);
        let args = ["intercept", "--ca", &ca, "--extra-ca", &extra];
        let errors = Peername::run_failing(&stage.lab.balancer, &args, 2);
        assert!(!errors.contains("listening"), "{extra}: {errors}");
        assert_contains(&errors, &["the proxy's own authority"]);
    }
}

/// A cached signature counts only for that certificate of that issuer. Names and validity are verified each time.
#[test]
fn cached_signature_does_not_extend_validity() {
    let rig = start_rig();
    let [soon, seen] = ["https://soon.test/", "https://seen.test/"];
    assert_eq!(rig.curl(&[soon]), "hello\n");
    for _ in 0..2 {
        assert_eq!(rig.curl(&[seen]), "hello\n");
        for (url, code) in [
            ("https://elsewhere.test/", "upstream_tls_wrong_name"),
            ("https://changed.test/", "upstream_tls_invalid"),
            ("https://sewn.test/", "upstream_tls_invalid"),
            ("https://impostor.test/", "upstream_tls_invalid"),
        ] {
            assert_eq!(rig.curl_problem(&[url])["code"], code, "{url}");
        }
    }
    let problem = wait_for("the end of its validity", || {
        let text = rig.curl(&[soon]);
        (text != "hello\n").then_some(text)
    });
    assert_contains(&problem, &["upstream_tls_expired"]);
}

/// Hosts with a flawed certificate, each with a host without the flaw and with the error code.
fn certificates() -> Vec<(&'static str, String, &'static str)> {
    let flawed = FLAWED.iter().flat_map(|&(code, hosts)| {
        hosts
            .iter()
            .map(move |&host| (host, format!("ok-{host}"), code))
    });
    let wildcards = WILDCARDS
        .iter()
        .map(|&(bad, good)| (bad, good.to_owned(), "upstream_tls_wrong_name"));
    flawed.chain(wildcards).collect()
}

/// Asserts that the first of each row is refused with the code, and the second is served.
#[track_caller]
fn assert_refused(rig: &InterceptRig, rows: &[(&str, impl Display, &str)]) {
    let mut wrong = Vec::new();
    for (bad, good, code) in rows {
        let (bad, good) = (format!("https://{bad}/"), format!("https://{good}/"));
        let answer = rig.try_curl(&["-w", "%{http_code}", &bad]);
        let answer = stdout_text(&answer);
        if !answer.ends_with("502") || !answer.contains(&format!("\"{code}\"")) {
            wrong.push(format!("{bad}: {answer}"));
        }
        let served = rig.try_curl(&[&good]);
        let served = stdout_text(&served);
        if served != "hello\n" {
            wrong.push(format!("{good}: {served}"));
        }
        assert_eq!(curl_unverified(rig, &bad), "lenient\n", "{bad} is there");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let reached = rig.wait_origin_log(2 * rows.len());
    let reached = reached.iter().filter(|line| !line.contains("lenient"));
    assert_eq!(reached.count(), rows.len(), "{:#?}", rig.origin_log());
}

/// Requests the URL on the origin's own host by a client that accepts any certificate and any version.
fn curl_unverified(rig: &InterceptRig, url: &str) -> String {
    let url = format!("{url}lenient");
    let lenient = words("--insecure --tlsv1.0 --ciphers ALL:@SECLEVEL=0");
    let direct = words("-sS --noproxy * --connect-to ::10.81.0.1:");
    rig.lab
        .server
        .run("curl", &[&lenient[..], &direct, &[&url]].concat())
}

fn start_rig() -> InterceptRig {
    start(make_stage())
}

fn make_stage() -> InterceptLab {
    let stage = InterceptLab::new();
    let mut hosts = stage.scratch.read("hosts");
    let certificates = certificates();
    let pairs = certificates.iter().flat_map(|(bad, good, _)| [*bad, good]);
    for host in pairs.chain(OTHERS) {
        hosts += &format!("10.81.0.1 {host}\n");
    }
    stage.scratch.write("hosts", &hosts);
    let script = stage
        .scratch
        .write("certificates.py", include_str!("certificates.py"));
    let dir = stage.scratch.path_text(".");
    let args = ["-W", "ignore", &script, &dir];
    stage.lab.client.run("/usr/bin/python3", &args);
    stage
}

fn start(stage: InterceptLab) -> InterceptRig {
    start_with(stage, &[])
}

fn start_with(stage: InterceptLab, args: &[&str]) -> InterceptRig {
    let config = NGINX.replace("DIR", &stage.scratch.path_text("."));
    let config = stage.scratch.write("nginx.conf", &config);
    stage.scratch.write("index.html", "hello\n");
    stage.scratch.write("lenient", "lenient\n");
    let _origin = start_nginx(&stage.lab.server, &config);
    InterceptRig {
        proxy: stage.start_proxy(&[args, &["--allow-destination=10.81.0.0/24"]].concat()),
        _origin,
        lab: stage.lab,
        scratch: stage.scratch,
    }
}

fn start_nginx(host: &Host, config: &str) -> Process {
    let process = Process::start_in_pid_namespace(host, "nginx", &["-c", config, "-e", "stderr"]);
    process.wait_listening(
        &[443, 4431, 4432, 4433, 4434, 4435, 4436].map(|port| v4([10, 81, 0, 1], port)),
    )
}

/// Hosts with a flawed certificate, by error code. Each has a counterpart without the flaw, by a name that
/// begins with `ok-`.
const FLAWED: &[(&str, &[&str])] = &[
    ("upstream_tls_not_yet_valid", &["not-yet-valid.test"]),
    (
        "upstream_tls_expired",
        &["long-expired.test", "expired-issuer.test"],
    ),
    (
        "upstream_tls_wrong_name",
        &["nul.test", "cn-only.test", "cn-beside-san.test", "star"],
    ),
    (
        "upstream_tls_weak_key",
        &["rsa-1024.test", "rsa-1024-issuer.test"],
    ),
    (
        "upstream_tls_invalid",
        &[
            "ecdsa-sha1.test",
            "rsa-sha1.test",
            "client-auth.test",
            "critical.test",
            "no-ca.test",
            "path-length.test",
            "permitted.test",
            "excluded.test",
        ],
    ),
];

/// Hosts that a wildcard does not match, each with a host that it matches.
const WILDCARDS: &[(&str, &str)] = &[
    ("a.b.deep.test", "a.deep.test"),
    ("deep.test", "a.deep.test"),
    ("bad.partial.test", "ok.partial.test"),
    ("a.b.stars.test", "ok.stars.test"),
    ("inner.star.test", "ok.star.test"),
];

/// Hosts whose certificates are tested one by one.
const OTHERS: [&str; 15] = [
    "seen.test",
    "elsewhere.test",
    "changed.test",
    "sewn.test",
    "impostor.test",
    "soon.test",
    "old.test",
    "forged-alone.test",
    "forged.test",
    "crossed.test",
    "ok-crossed.test",
    "compressed.test",
    "ok-compressed.test",
    "own-key.test",
    "ok-own-key.test",
];

/// Its old versions and ciphers are those that OpenSSL no longer offers by default.
const NGINX: &str = include_str!("certificates/nginx.conf");

const CLIENT_CERTIFICATE_SERVERS: &str = include_str!("certificates/client_certificate_servers.py");

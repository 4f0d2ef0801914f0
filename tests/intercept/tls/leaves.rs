//! Leaves: certificates of hosts, minted on demand.

use crate::harness::lab::stdout_text;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig};

/// All clients have a tunnel before any of them begins a handshake.
#[test]
fn concurrent_clients_get_one_certificate() {
    let rig = InterceptRig::new(&["--admin=127.0.0.1:9300"]);
    let serials = rig.run_python_client(CROWD, &[]);
    let serials: Vec<_> = serials.lines().collect();
    assert_eq!(serials.len(), 200);
    assert!(
        serials.iter().all(|serial| *serial == serials[0]),
        "{serials:?}"
    );
    let metrics = rig.read_metrics();
    for expected in [
        "peername_certificates_issued_total 1",
        "peername_certificate_cache_hits_total 199",
    ] {
        assert!(metrics.lines().any(|line| line == expected), "{metrics}");
    }
}

/// A gateway or a crawler opens many hosts. Each request gets a response, even if its host does not exist.
#[test]
fn one_client_may_open_a_thousand_hosts() {
    let (_names, rig) = InterceptLab::new().start_with_unknown_names(&["--admin=127.0.0.1:9300"]);
    let answers = request_many(&rig, 1000, &[]);
    assert!(
        answers.iter().all(|answer| answer == "200 502"),
        "{answers:?}"
    );
    let issued = "peername_certificates_issued_total 1000";
    let metrics = rig.read_metrics();
    assert!(metrics.lines().any(|line| line == issued), "{metrics}");
}

/// Beyond its rate limit a client waits, and then gets an error in a form that it shows.
#[test]
fn mint_rate_limit_answers_429() {
    let rig = InterceptRig::new(&["--certificates-per-client=5"]);
    let answers = request_many(&rig, 100, &[]);
    let count = |what: &str| answers.iter().filter(|answer| *answer == what).count();
    // Five at once and five a second for some seconds.
    assert!((15..=60).contains(&count("200 502")), "{answers:?}");
    assert!(count("429 000") > 0, "{answers:?}");
    // Clients whose CONNECT was answered before the limit was reached get a TLS alert.
    assert_eq!(count("200 502") + count("429 000") + count("200 000"), 100);
    let line = rig.proxy.wait_json("the refusal", |line| {
        line["code"] == "too_many_certificates" && line["status"] == 429
    });
    assert_eq!(line["decision"], "refused", "{line}");
    // Another client is not delayed.
    assert_eq!(
        rig.curl(&["--interface", "203.0.113.10", "https://a.test/"]),
        "hello\n"
    );
}

/// A client whose ClientHello names another host than its CONNECT gets a certificate for the host of the ClientHello.
#[test]
fn mint_rate_limit_counts_the_names_of_client_hellos() {
    let rig = InterceptRig::new(&["--certificates-per-client=5"]);
    // The certificate for the name in CONNECT exists.
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    let answers = request_many(&rig, 100, &["--connect-to", "::a.test:443"]);
    let count = |what: &str| answers.iter().filter(|answer| *answer == what).count();
    assert!((15..=60).contains(&count("200 403")), "{answers:?}");
    assert_eq!(count("200 403") + count("200 000"), 100, "{answers:?}");
}

/// Requests `hosts` hosts in parallel; returns for each the status of the CONNECT and that of the request inside.
fn request_many(rig: &InterceptRig, hosts: usize, options: &[&str]) -> Vec<String> {
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let hosts = format!("https://h[1-{hosts}].example/");
    let common = [
        "--interface",
        "203.0.113.9",
        "-Z",
        "--parallel-immediate",
        "--parallel-max",
        "100",
        "-o",
        "/dev/null",
        "-w",
        "%{http_connect} %{http_code}\n",
        &hosts,
    ];
    let text = stdout_text(&rig.try_curl(&[&common, options].concat()));
    text.lines().map(str::to_owned).collect()
}

const CROWD: &str = include_str!("leaves/crowd.py");

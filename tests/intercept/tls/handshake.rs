//! The last flight of a TLS handshake is sent, and coalesced with what follows.

use crate::harness::rig::intercept::InterceptRig;

/// TCP_INFO (tcp(7)) has the number of segments.
#[test]
fn origin_gets_finished_and_request_in_one_segment() {
    let rig = InterceptRig::new(&[]);
    let _origin = rig.start_python_origin(COUNTING_ORIGIN);
    assert_eq!(rig.curl(&["https://a.test:9001/"]), "1");
}

/// Without the alert the origin can't know why the client gave up.
#[test]
fn refused_origin_gets_an_alert() {
    let rig = InterceptRig::new(&[]);
    let origin = rig.start_python_origin(COUNTING_ORIGIN);
    let url = "https://other.test:9001/";
    assert_eq!(rig.curl_problem(&[url])["code"], "upstream_tls_wrong_name");
    let alert = origin.wait_line("the alert", |line| {
        line.strip_prefix("alert ").map(str::to_owned)
    });
    assert_eq!(alert, "SSLV3_ALERT_CERTIFICATE_UNKNOWN");
}

#[test]
fn client_gets_tickets_and_response_in_one_segment() {
    let printed = run_client("tickets");
    assert_eq!(
        printed,
        "nothing before the request, 1 segment, with a ticket"
    );
}

/// A client that waits for the proxy: for its Finished in TLS 1.2, and for the SETTINGS at the start of
/// HTTP/2.
#[test]
fn client_that_only_reads_gets_the_last_flight() {
    assert_eq!(run_client("finished"), "TLSv1.2");
    assert_eq!(run_client("settings"), "SETTINGS");
}

#[test]
fn failed_client_handshake_sends_an_alert() {
    assert_eq!(run_client("garbage"), "alert");
}

fn run_client(case: &str) -> String {
    let rig = InterceptRig::new(&[]);
    rig.run_python_client(CLIENT, &[case])
}

/// An origin that answers with the number of segments it received after its own flight. The script reads the socket itself.
const COUNTING_ORIGIN: &str = include_str!("handshake/counting_origin.py");

const CLIENT: &str = include_str!("handshake/client.py");

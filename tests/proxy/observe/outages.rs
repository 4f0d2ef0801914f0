//! A backend that is down and the connection limit are visible: metrics, `peername top` and the page.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::admin::{ADMIN, get, read_limit, wait_metric};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, assert_contains, assert_succeeds, wait_until};
use crate::harness::peername::Peername;
use crate::harness::programs::browser::wait_page_shows;
use crate::harness::rig::proxy::{ProxyRig, header_for};

fn top(lab: &Lab) -> String {
    assert_succeeds(&Peername::run(
        &lab.server,
        &["top", "--admin=127.0.0.1:9300"],
    ))
}

#[test]
fn backend_that_is_down_is_reported_until_it_accepts_again() {
    let lab = Lab::new();
    let proxy = Peername::proxy(&lab, &[ADMIN]);
    let metric = |value| format!("peername_backend_up{{backend=\"{TARGET_V4}\"}} {value}");
    let connect = || {
        let header = header_for(fresh_client_v4());
        Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header)
    };
    connect().wait_closed();
    proxy.wait_outcome("connect_refused");
    wait_metric(&lab.server, &[], &metric(0));
    let outage = format!("backend {TARGET_V4} has accepted no clients for ");
    let shown = top(&lab);
    assert!(shown.contains(&outage), "{shown}");
    // The last client has found the backend down, so the time since then is shown, too.
    let failed = format!("peername_backend_last_failure_seconds{{backend=\"{TARGET_V4}\"}} ");
    let scrape = get(&lab.server, &[], "/metrics");
    let age = scrape.lines().find_map(|line| line.strip_prefix(&failed));
    assert!(
        age.is_some_and(|age| age.parse::<u64>().is_ok()),
        "{scrape}"
    );
    assert_contains(&shown, &[", its last failure was "]);
    let cells = format!("{TARGET_V4}\taccepts no clients, for ");
    wait_page_shows(&lab.server, &["Backends that have failed", &cells]);

    let backend = Backend::listen(&lab.server, TARGET_V4);
    let open = connect();
    let up = backend.accept();
    wait_metric(&lab.server, &[], &metric(1));
    let recovered = format!("peername_backend_down_seconds{{backend=\"{TARGET_V4}\"}} 0");
    wait_metric(&lab.server, &[], &recovered);
    wait_until("the end of the outage in `top`", || {
        !top(&lab).contains(&outage)
    });
    drop((open, up));
}

#[test]
fn connection_limit_is_reported_before_and_when_it_is_reached() {
    let rig = ProxyRig::start_through(&["prlimit", "--nofile=128:128"], &[ADMIN]);
    let host = &rig.lab.server;
    let limit = read_limit(host);
    wait_metric(host, &[], "peername_accept_paused 0");
    assert!(top(&rig.lab).contains(&format!("open 0 of {limit}, ")));
    let open = |_| rig.connect_and_send(&header_for(fresh_client_v4()));
    let downs: Vec<Conn> = (0..30).map(open).collect();
    let ups = rig.proxy.accept_until_full(&rig.backend_v4);
    assert_eq!(ups.len(), limit);
    wait_metric(host, &[], "peername_accept_paused 1");
    let paused = format!("open {limit} of {limit}, ");
    wait_until("the limit in `top`", || {
        let shown = top(&rig.lab);
        let advice = "accepting is paused: As many connections";
        shown.contains(&paused) && shown.contains(advice)
    });
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    let card = format!("Open connections, of {limit}");
    wait_page_shows(host, &[&card, "accepting is paused", "Raise LimitNOFILE"]);
    drop((downs, ups));
    wait_metric(host, &[], "peername_accept_paused 0");
}

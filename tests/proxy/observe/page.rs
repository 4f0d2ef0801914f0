//! `/` and `/events`: Chromium shows what the proxy does at this moment, and nothing that a peer sends becomes markup.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, get, wait_metric};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, Scratch, assert_contains, stdout_text, wait_until};
use crate::harness::peername::Peername;
use crate::harness::programs::browser::{browse_until, wait_page_shows};
use crate::harness::rig::proxy::{ProxyRig, front_of};

/// Sends a request for the events, and returns the connection.
fn open_stream(host: &Host) -> Conn {
    let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    Conn::connect_and_send(host, v4([127, 0, 0, 1], 9300), request)
}

/// The data of the first event of a stream.
fn first_event(text: &str) -> Option<Value> {
    let (_, rest) = text.split_once("data: ")?;
    let (data, _) = rest.split_once("\n\n")?;
    Some(serde_json::from_str(data).expect("one JSON object an event"))
}

fn read_event(stream: &Conn) -> Value {
    let text = stream.recv_text_until(|text| first_event(text).is_some());
    first_event(&text).expect("an event")
}

#[test]
fn chromium_shows_connections_clients_and_refusals_with_advice() {
    let rig = ProxyRig::new(&[ADMIN]);
    let client = v4([203, 0, 113, 7], 56324);
    let (down, up) = rig.connect_client(client);
    down.send(&[b'x'; 2500]);
    up.recv(2500);
    let other = rig.connect_client(v4([198, 51, 100, 9], 1234));
    rig.connect_and_send(b"GET / HTTP/1.1\r\n\r\n")
        .wait_closed();

    let shown = [
        "peername proxy",
        "ready",
        "Open connections, of ",
        "\n2\n",
        "203.0.113.7\t1\t2.50 kB",
        "198.51.100.9\t1\t0 B",
        "10.81.0.2\t2\t2.50 kB",
        &format!("{TARGET_V4}\ttcp\topen\tcopy\t2.50 kB\t0 B"),
        "no_header\tconnections\t1\t",
        "Turn the PROXY protocol on at the balancer.",
    ];
    wait_page_shows(&rig.lab.server, &shown);
    drop((up, other));
}

/// The events contain no text that a peer chooses. If a later field does, it must not become markup either.
#[test]
fn hostile_text_does_not_become_markup() {
    let rig = ProxyRig::new(&[ADMIN]);
    let client = v4([203, 0, 113, 7], 56324);
    let authority = b"<img src=x onerror=alert(1)>";
    let tlv = [&[0x02, 0, authority.len() as u8], &authority[..]].concat();
    let down = rig.connect_and_send(&header_bytes::v2(client, front_of(client), &tlv));
    let up = rig.accept_client(client);
    let event = read_event(&open_stream(&rig.lab.server));
    assert!(!event.to_string().contains("onerror"), "{event:#}");

    // Every text of an event in turn, as if it came from a peer.
    let page = browse_until(
        &rig.lab.server,
        r#"latest !== null && (() => {
            const hostile = '<img src=x onerror="document.title=1"><script>1</' + 'script>';
            const spoil = value => {
                if (typeof value === 'string') return hostile;
                if (Array.isArray(value)) return value.map(spoil);
                if (value === null || typeof value !== 'object') return value;
                return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, spoil(inner)]));
            };
            const event = spoil(latest);
            event.not_ready = hostile;
            for (const sample of event.metrics.peername_connections_total || []) sample.labels.outcome = hostile;
            event.metrics.peername_connections_total = [{ labels: { outcome: hostile }, value: 1 }];
            event.advice = { [hostile]: hostile };
            receive({ data: JSON.stringify(event) });
            const texts = document.body.innerText.split(hostile).length - 1;
            return texts > 5 && document.images.length === 0 && document.scripts.length === 1;
        })()"#,
    );
    assert!(
        !page["text"]
            .as_str()
            .expect("text")
            .contains("onerror=alert")
    );
    drop((down, up));
}

#[test]
fn page_is_answered_for_own_names_only_and_allows_no_other_script() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    for path in ["/", "/events"] {
        for header in ["Host: evil.example", "Origin: http://evil.example"] {
            let answer = get(host, &["-H", header, "--max-time", "5"], path);
            assert!(answer.ends_with("421"), "{path} {header}: {answer}");
        }
    }
    let head = get(host, &["-I"], "/").to_lowercase();
    assert_contains(&head, &["content-security-policy: default-src 'none';"]);
    assert!(!head.contains("unsafe"), "{head}");
}

/// The ninth stream is refused; a stream that is closed frees a slot for another one.
#[test]
fn event_streams_are_bounded() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    let mut streams: Vec<_> = (0..8).map(|_| open_stream(host)).collect();
    for stream in &streams {
        assert_eq!(read_event(stream)["command"], "proxy");
    }
    let refused = open_stream(host).recv_text_until(|text| text.contains("open already"));
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(get(host, &[], "/healthz"), "ok\n200");
    streams.pop();
    wait_until("a free stream", || {
        let text = open_stream(host)
            .recv_text_until(|text| text.contains("open already") || first_event(text).is_some());
        text.starts_with("HTTP/1.1 200 ")
    });
}

/// While event streams are not read, other clients are served at the same address and over the Unix socket.
#[test]
fn event_streams_that_are_not_read_block_no_other_client() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let socket = format!("unix:{path}");
    let rig = ProxyRig::new(&[ADMIN, "--admin", &socket]);
    let host = &rig.lab.server;
    let streams: Vec<_> = (0..20).map(|_| open_stream(host)).collect();
    // Which ones are refused depends on the order in which the requests come.
    let heads = streams
        .iter()
        .map(|stream| stream.recv_text_until(|text| text.contains("\r\n\r\n")));
    let refused = heads.filter(|head| head.starts_with("HTTP/1.1 503 "));
    assert_eq!(refused.count(), 12);
    let by_path = ["--unix-socket", &path];
    for by in [&["--max-time", "5"][..], &by_path] {
        assert_eq!(get(host, by, "/readyz"), "ready\n200");
        assert!(get(host, by, "/metrics").ends_with("# EOF\n200"));
        assert!(get(host, by, "/").contains("EventSource"));
    }
    let top = Peername::run(host, &["top", "--admin", &socket]);
    let shown = stdout_text(&top);
    assert!(shown.starts_with("peername proxy"), "{shown} {top:?}");
    drop(streams);
}

/// A stream has an event each second, and ends with the one that reports the drain.
#[test]
fn event_streams_end_on_drain() {
    let rig = ProxyRig::new(&[ADMIN, "--drain=60s"]);
    let host = &rig.lab.server;
    let open = rig.connect_client(fresh_client_v4());
    let stream = open_stream(host);
    let started = Instant::now();
    stream.recv_text_until(|text| text.matches("data: ").count() == 3);
    assert!(started.elapsed() > Duration::from_secs(1));
    rig.proxy.signal(Signal::TERM);
    let last = stream.recv_text_until(|text| text.ends_with("\r\n0\r\n\r\n"));
    assert_contains(&last, &["\"is_draining\":true"]);
    // A page that connects again sees the drain go on.
    let event = read_event(&open_stream(host));
    assert_eq!(event["not_ready"], "draining");
    wait_metric(host, &[], "peername_connections_active 1");
    drop(open);
}

#[test]
fn chromium_shows_why_a_proxy_is_not_ready() {
    let lab = Lab::without_routes();
    let _proxy = Peername::proxy(&lab, &[ADMIN]);
    let reason = "not ready: replies to clients do not come back to this host";
    wait_page_shows(&lab.server, &[reason]);
}

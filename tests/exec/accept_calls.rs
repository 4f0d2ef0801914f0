//! Every way in which a program waits for connections: all see the client, and a header that is not all
//! there holds nobody up.

use std::time::{Duration, Instant};

use crate::harness::addr::someone_v4;
use crate::harness::rig::exec::{Libc, Served, server, v1, v2};

macro_rules! modes {
    ($($name:ident $mode:literal)*) => { $(
        #[test]
        fn $name() {
            serves(&Served::new($mode, &[]));
        }
    )* };
}

modes! {
    blocking "block 4 8443"
    threads "threads 4 8443"
    forked "fork 4 8443"
    poll "poll 4 8443"
    select "select 4 8443"
    level_triggered_epoll "lt 4 8443"
    edge_triggered_epoll "et 4 8443"
    exclusive_epoll "exclusive 4 8443"
    oneshot_epoll "oneshot 4 8443"
    blocking_v6 "block 6 8443"
    forked_v6 "fork 6 8443"
    edge_triggered_epoll_v6 "et 6 8443"
}

/// The same library in a program that has another C library.
#[test]
fn musl() {
    for mode in ["block 4 8443", "et 4 8443"] {
        serves(&Served::through(&[], &server(Libc::Musl), mode, &[]));
    }
}

fn serves(served: &Served) {
    for header in [v1, v2] {
        let client = someone_v4();
        let conn = served.open(&[&header(client)[..], b"hi"].concat());
        served.sees(&conn, served.shown(client));
    }
    in_two_pieces(served);
    in_single_octets(served);
}

/// While one header is waited for, another client is served at once.
fn in_two_pieces(served: &Served) {
    let (slow, fast) = (someone_v4(), someone_v4());
    let header = v2(slow);
    let (first, second) = header.split_at(20);
    let waiting = served.open(first);
    let start = Instant::now();
    served.sees(
        &served.open(&[&v2(fast)[..], b"hi"].concat()),
        served.shown(fast),
    );
    assert!(start.elapsed() < HELD_UP, "{:?}", start.elapsed());
    waiting.send(second);
    waiting.send(b"hi");
    served.sees(&waiting, served.shown(slow));
}

fn in_single_octets(served: &Served) {
    for header in [v1, v2] {
        let client = someone_v4();
        let header = header(client);
        let conn = served.open(&[]);
        for octet in &header {
            conn.send(&[*octet]);
            std::thread::sleep(Duration::from_micros(500));
        }
        conn.send(b"hi");
        served.sees(&conn, served.shown(client));
    }
}

/// Far below the header's timeout, far above what a busy machine takes.
const HELD_UP: Duration = Duration::from_secs(2);

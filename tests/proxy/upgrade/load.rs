//! A load of TCP connections, each checked to the byte, and one long transfer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::lab::{Lab, WAIT_LIMIT};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::rig::load::{Load, SetOnDrop, under_load};
use crate::harness::rig::proxy::header_for;

/// Runs `test` while clients connect again and again and one long transfer goes on. Returns how many connections were served.
#[track_caller]
pub(crate) fn under_tcp_load(lab: &Lab, test: impl FnOnce(&Load)) -> usize {
    let listener = lab.server.enter(|| TcpListener::bind(TARGET_V4));
    let listener = listener.expect("the backend");
    thread::spawn(move || listener.incoming().flatten().for_each(answer));
    let (number, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let request = || {
        exchange(lab, number.fetch_add(1, Relaxed));
        thread::sleep(PAUSE);
    };
    thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let long = scope.spawn(|| transfer_until(lab, &is_over));
        let served = under_load(CLIENTS, request, test);
        drop(end);
        assert!(long.join().is_ok(), "the transfer failed, see above");
        served
    })
}

fn connect(lab: &Lab, client: SocketAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&LISTEN_V4, WAIT_LIMIT);
    let mut stream = lab.balancer.enter(connect).expect("not refused");
    stream
        .set_read_timeout(Some(WAIT_LIMIT))
        .expect("SO_RCVTIMEO");
    stream.write_all(&header_for(client)).expect("not reset");
    stream
}

/// Opens a short connection, on which the backend has to report the client's address and return the bytes that were sent.
fn exchange(lab: &Lab, number: u64) {
    let client = fresh_client_v4();
    let mut stream = connect(lab, client);
    let bytes = pattern(number, 3000);
    stream.write_all(&bytes).expect("not reset");
    stream.shutdown(Shutdown::Write).expect("not reset");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("not reset");
    let greeting = format!("{client}\n");
    assert!(answer.starts_with(greeting.as_bytes()), "{client}");
    assert_same(&answer[greeting.len()..], &bytes);
}

/// Exchanges data on one connection, which is never idle for long.
fn transfer_until(lab: &Lab, is_over: &AtomicBool) {
    let client = fresh_client_v4();
    let mut stream = connect(lab, client);
    let greeting = format!("{client}\n");
    let mut buffer = vec![0; greeting.len()];
    stream.read_exact(&mut buffer).expect("not reset");
    assert_eq!(buffer, greeting.as_bytes());
    for number in 0.. {
        if is_over.load(Relaxed) {
            return;
        }
        let bytes = pattern(1 << 23 | number, 4096);
        stream.write_all(&bytes).expect("not reset");
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).expect("not reset");
        assert_same(&back, &bytes);
        thread::sleep(Duration::from_millis(1));
    }
}

/// The backend's side of a connection: reports the client's address, and echoes.
fn answer(mut stream: TcpStream) {
    thread::spawn(move || {
        let peer = stream.peer_addr()?;
        writeln!(stream, "{peer}")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream)?;
        stream.shutdown(Shutdown::Write)
    });
}

const CLIENTS: usize = 4;
/// Limits the rate, so that even during a hundred upgrades no client's address and port is used again within the minute that
/// the proxy's socket is in TIME_WAIT.
const PAUSE: Duration = Duration::from_millis(20);

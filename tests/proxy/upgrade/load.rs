//! A load of TCP connections, each checked to the byte, and one long transfer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::lab::{Lab, WAIT_LIMIT, wait_for};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::rig::proxy::header_for;

/// Clients that connect one after the other, and their backend.
#[derive(Debug)]
pub(crate) struct TcpLoad {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl TcpLoad {
    pub(crate) fn start(lab: &Lab) -> Self {
        let listener = lab.server.enter(|| TcpListener::bind(TARGET_V4));
        let listener = listener.expect("the backend");
        thread::spawn(move || listener.incoming().flatten().for_each(answer));
        let stop = Arc::new(AtomicBool::new(false));
        let served = Arc::new(AtomicUsize::new(0));
        let long = {
            let stop = Arc::clone(&stop);
            spawn(lab, move || transfer_until(&stop))
        };
        let short = (0..CLIENTS).map(|number| {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            spawn(lab, move || {
                for connection in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    exchange(number << 20 | connection);
                    served.fetch_add(1, Relaxed);
                    thread::sleep(PAUSE);
                }
            })
        });
        let clients = short.chain([long]).collect();
        Self {
            stop,
            served,
            clients,
        }
    }

    /// Waits until so many further connections were served.
    pub(crate) fn wait_served(&self, connections: usize) {
        let before = self.served.load(Relaxed);
        wait_for("connections are served", || {
            let failed = self.clients.iter().any(JoinHandle::is_finished);
            (failed || self.served.load(Relaxed) >= before + connections).then_some(())
        });
    }

    /// Ends the clients, asserts that none has failed, and returns how many connections were served.
    #[track_caller]
    pub(crate) fn finish(self) -> usize {
        self.stop.store(true, Relaxed);
        for client in self.clients {
            assert!(client.join().is_ok(), "a client failed, see above");
        }
        self.served.load(Relaxed)
    }
}

/// A thread on the balancer.
fn spawn(lab: &Lab, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    lab.balancer.enter(|| thread::spawn(work))
}

fn connect(client: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&LISTEN_V4, WAIT_LIMIT);
    let mut stream = stream.expect("not refused");
    stream
        .set_read_timeout(Some(WAIT_LIMIT))
        .expect("SO_RCVTIMEO");
    stream.write_all(&header_for(client)).expect("not reset");
    stream
}

/// One short connection: the backend reports the client's address, and returns what was sent.
fn exchange(number: u64) {
    let client = fresh_client_v4();
    let mut stream = connect(client);
    let bytes = pattern(number, 3000);
    stream.write_all(&bytes).expect("not reset");
    stream.shutdown(Shutdown::Write).expect("not reset");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("not reset");
    let greeting = format!("{client}\n");
    assert!(answer.starts_with(greeting.as_bytes()), "{client}");
    assert_same(&answer[greeting.len()..], &bytes);
}

/// One connection that is never idle for long.
fn transfer_until(stop: &AtomicBool) {
    let client = fresh_client_v4();
    let mut stream = connect(client);
    let greeting = format!("{client}\n");
    let mut buffer = vec![0; greeting.len()];
    stream.read_exact(&mut buffer).expect("not reset");
    assert_eq!(buffer, greeting.as_bytes());
    for number in 0.. {
        if stop.load(Relaxed) {
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

/// The backend's side of a connection.
fn answer(mut stream: TcpStream) {
    thread::spawn(move || {
        let peer = stream.peer_addr()?;
        writeln!(stream, "{peer}")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream)?;
        stream.shutdown(Shutdown::Write)
    });
}

const CLIENTS: u64 = 4;
/// So that no client's address and port is used twice in the minute that the proxy's end of it is in TIME_WAIT, also in
/// a hundred upgrades.
const PAUSE: Duration = Duration::from_millis(20);

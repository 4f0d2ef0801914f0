//! An io_uring session while the process has no free descriptor. In a process of its own, as it uses all descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method, Pair, Prefix, Side, relay};
use tokio::runtime;

#[test]
fn uring_session_ends_without_a_free_descriptor() {
    let ((mut client, downstream), (mut backend, upstream)) = (connected(), connected());
    let relay = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            let [downstream, upstream] = [downstream, upstream].map(|socket| {
                socket.set_nonblocking(true).unwrap();
                tokio::net::TcpStream::from_std(socket).unwrap()
            });
            let pair = Pair {
                downstream,
                upstream,
            };
            relay(
                pair,
                Prefix::default(),
                Method::Uring,
                Limits::default(),
                Arc::default(),
            )
            .await
        })
    });
    client.write_all(b"ping").unwrap();
    backend.read_exact(&mut [0; 4]).unwrap();

    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let large = vec![7; 1 << 20];
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&large).unwrap());
        let mut got = vec![0; large.len()];
        backend.read_exact(&mut got).unwrap();
        assert!(got == large);
    });
    drop(all);
    drop(client);
    assert_eq!(backend.read(&mut [0]).unwrap(), 0);
    drop(backend);
    assert_eq!(relay.join().unwrap(), End::Finished(Side::Downstream));
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    (near, listener.accept().unwrap().0)
}

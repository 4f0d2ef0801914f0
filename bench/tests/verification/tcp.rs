//! The TCP workloads, with faulty backends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{assert_fails, assert_passes, error_message};

/// The length of a message. The first one on a connection opens it.
const OPENING_BYTES: usize = 64;

#[test]
fn correct_backend_passes() {
    let target = serve(|mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    });
    for workload in WORKLOADS {
        let output = load(workload, target);
        assert_passes(workload, &output);
    }
}

#[test]
fn flipped_bit_fails() {
    for workload in WORKLOADS {
        let opening = opening_messages(workload);
        let target = serve(move |stream| echo_with(stream, opening, |bytes| bytes[7] ^= 0x10));
        let output = load(workload, target);
        let good = opening * OPENING_BYTES;
        let words = format!("after {good} good bytes: byte 7 came back as");
        assert_fails(workload, &output, &words);
    }
}

#[test]
fn repeated_message_fails() {
    for workload in ["pingpong", "bulk"] {
        let opening = opening_messages(workload);
        let target = serve(move |stream| {
            let mut first = None;
            echo_with(stream, opening, move |bytes| {
                let first = first.get_or_insert_with(|| bytes.to_vec());
                bytes.copy_from_slice(first);
            });
        });
        assert_fails(workload, &load(workload, target), "came back as");
    }
}

#[test]
fn echo_on_the_wrong_connection_fails() {
    for workload in ["pingpong", "churn"] {
        let opening = opening_messages(workload);
        let last = Arc::new(Mutex::new(None));
        let target = serve(move |stream| {
            let last = Arc::clone(&last);
            echo_with(stream, opening, move |bytes| {
                let previous = last.lock().unwrap().replace(bytes.to_vec());
                if let Some(previous) = previous {
                    bytes.copy_from_slice(&previous);
                }
            });
        });
        assert_fails(workload, &load(workload, target), "came back as");
    }
}

#[test]
fn connection_closed_early_fails() {
    let target = serve(|mut stream| {
        let mut bytes = [0; OPENING_BYTES];
        let _ = stream.read_exact(&mut bytes);
        let _ = stream.write_all(&bytes);
        let _ = stream.read_exact(&mut bytes);
        let _ = stream.write_all(&bytes[..OPENING_BYTES - 1]);
    });
    for workload in ["pingpong", "bulk", "idle"] {
        let output = load(workload, target);
        assert!(
            !output.status.success(),
            "{workload} did not detect the fault"
        );
        let message = error_message(&output);
        assert!(
            message.contains("outstanding") || message.contains("reset"),
            "{workload}: {message}"
        );
    }
}

#[test]
fn refused_connection_fails() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for workload in WORKLOADS {
        assert_fails(workload, &load(workload, closed), "Connection refused");
    }
}

#[test]
fn target_outside_loopback_is_refused() {
    let output = load("pingpong", "192.0.2.1:80".parse().unwrap());
    assert_fails("pingpong", &output, "outside of 127.0.0.0/8");
}

const WORKLOADS: [&str; 4] = ["pingpong", "bulk", "churn", "idle"];

fn load(workload: &str, target: SocketAddr) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peername-bench"))
        .args(["load", workload, "--target", &target.to_string()])
        .args(["--connections", "3", "--for", "100ms"])
        .output()
        .unwrap()
}

/// A backend with a thread for each connection.
fn serve(handle: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

/// The number of messages on a connection before the measured interval. The backend leaves them unaltered, so that only the
/// workload itself can detect the faults. `churn` measures the opening, too.
fn opening_messages(workload: &str) -> usize {
    usize::from(workload != "churn")
}

/// Echoes messages of the opening's size. Each that follows the first `opening` messages is altered by `spoil`.
fn echo_with(mut stream: TcpStream, opening: usize, mut spoil: impl FnMut(&mut [u8])) {
    let mut bytes = [0; OPENING_BYTES];
    for number in 0.. {
        if stream.read_exact(&mut bytes).is_err() {
            return;
        }
        if number >= opening {
            spoil(&mut bytes);
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

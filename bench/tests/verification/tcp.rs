//! The generator over TCP. It is backends that do wrong here.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{complaint, expect, passes};

/// The first echo on a connection comes while it is opened; faults begin after it, where only the
/// workload itself can see them.
const OPENING: usize = 64;

#[test]
fn an_honest_backend_passes() {
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
        passes(workload, &output);
    }
}

#[test]
fn a_flipped_bit_fails() {
    let target = serve(|stream| echo_with(stream, |bytes| bytes[7] ^= 0x10));
    for workload in WORKLOADS {
        expect(workload, &load(workload, target), "byte 7 came back as");
    }
}

#[test]
fn a_repeated_message_fails() {
    let target = serve(|stream| {
        let mut first = None;
        echo_with(stream, move |bytes| {
            let first = first.get_or_insert_with(|| bytes.to_vec());
            bytes.copy_from_slice(first);
        });
    });
    for workload in ["pingpong", "bulk"] {
        expect(workload, &load(workload, target), "came back as");
    }
}

#[test]
fn answers_to_the_wrong_connection_fail() {
    let last = Arc::new(Mutex::new([0; OPENING]));
    let target = serve(move |stream| {
        let last = Arc::clone(&last);
        echo_with(stream, move |bytes| {
            let mut last = last.lock().unwrap();
            let mine: [u8; OPENING] = (&*bytes).try_into().unwrap();
            bytes.copy_from_slice(&*last);
            *last = mine;
        });
    });
    for workload in ["pingpong", "churn"] {
        expect(workload, &load(workload, target), "came back as");
    }
}

#[test]
fn a_connection_closed_early_fails() {
    let target = serve(|mut stream| {
        let mut bytes = [0; OPENING];
        let _ = stream.read_exact(&mut bytes);
        let _ = stream.write_all(&bytes);
        let _ = stream.read_exact(&mut bytes);
        let _ = stream.write_all(&bytes[..OPENING - 1]);
    });
    for workload in ["pingpong", "bulk", "idle"] {
        let output = load(workload, target);
        assert!(!output.status.success(), "{workload} did not notice");
        let said = complaint(&output);
        assert!(
            said.contains("outstanding") || said.contains("reset"),
            "{workload}: {said}"
        );
    }
}

#[test]
fn a_refused_connection_fails() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for workload in WORKLOADS {
        expect(workload, &load(workload, closed), "Connection refused");
    }
}

#[test]
fn other_machines_are_refused() {
    let output = load("pingpong", "192.0.2.1:80".parse().unwrap());
    expect("pingpong", &output, "outside of 127.0.0.0/8");
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

/// Echoes messages of the opening's size, after doing something to each.
fn echo_with(mut stream: TcpStream, mut spoil: impl FnMut(&mut [u8])) {
    let mut bytes = [0; OPENING];
    while stream.read_exact(&mut bytes).is_ok() {
        spoil(&mut bytes);
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

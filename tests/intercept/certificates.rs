//! Certificates of hosts, made when they are asked for.

use super::rig::{PROXY, Rig};

/// Everybody has a tunnel before anybody begins a handshake.
#[test]
fn two_hundred_clients_at_once_see_one_certificate() {
    let rig = Rig::new(&["--admin=127.0.0.1:9300"]);
    let script = rig.scratch.write("crowd.py", CROWD);
    let (proxy, ca) = (PROXY.to_string(), rig.scratch.text("ca.pem"));
    let args = [
        "--signal=KILL",
        "60",
        "/usr/bin/python3",
        &script,
        &proxy,
        &ca,
    ];
    let serials = rig.lab.client.run("timeout", &args);
    let serials: Vec<_> = serials.lines().collect();
    assert_eq!(serials.len(), 200);
    assert!(serials.iter().all(|one| *one == serials[0]), "{serials:?}");
    let issued = "peername_certificates_issued_total 1";
    let metrics = rig.metrics();
    assert!(metrics.lines().any(|line| line == issued), "{metrics}");
}

const CROWD: &str = r#"
import socket, ssl, sys, threading
host, port = sys.argv[1].split(":")
tls = ssl.create_default_context(cafile=sys.argv[2])
ready = threading.Barrier(200, timeout=50)

def client():
    tunnel = socket.create_connection((host, int(port)))
    tunnel.sendall(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n")
    assert b" 200 " in tunnel.recv(1000)
    ready.wait()
    with tls.wrap_socket(tunnel, server_hostname="b.test") as stream:
        print(stream.getpeercert()["serialNumber"] + "\n", end="", flush=True)

for _ in range(200):
    threading.Thread(target=client).start()
"#;

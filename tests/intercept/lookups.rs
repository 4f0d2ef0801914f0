//! Names that take long to be found, or are not.

use std::thread::sleep;
use std::time::Duration;

use super::rig::{PROXY, Stage};
use crate::conn::Conn;
use crate::lab::{Process, wait_for};

/// A name server that says nothing has the threads of one client's few lookups, not those of all.
#[test]
fn a_silent_name_server_is_in_the_way_of_those_who_ask_it() {
    peername_sys::limits::raise_open_files().expect("descriptors for many clients");
    let stage = Stage::new();
    let script = stage.scratch.write("names.py", SILENT);
    let names = Process::start(&stage.lab.balancer, "/usr/bin/python3", &["-u", &script]);
    wait_for("the name server", || {
        names.log().contains("ready").then_some(())
    });
    let resolver = [
        ("nsswitch.conf", "hosts: files dns\n"),
        (
            "resolv.conf",
            "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n",
        ),
    ];
    let mounts = resolver.map(|(name, text)| {
        let path = stage.scratch.write(&format!("with-dns-{name}"), text);
        format!("mount --bind {path} /etc/{name} && ")
    });
    let mount = format!("{}exec \"$@\"", mounts.concat());
    let through = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let rig = stage.start_through(&through, &["--workers=1", "--connect-timeout=3s"]);
    rig.lab.client.address("eth0", &["203.0.113.10/24"]);
    let ask = |n| {
        let request = format!("GET http://{n}.slow.test/ HTTP/1.1\r\nHost: {n}.slow.test\r\n\r\n");
        Conn::open(&rig.lab.client, PROXY, request.as_bytes())
    };
    // More than a worker has threads for it.
    let waiting: Vec<_> = (0..600).map(ask).collect();
    // By then each has its thread, or waits for one.
    sleep(Duration::from_millis(700));
    let other = ["--interface", "203.0.113.10", "http://a.test/echo"];
    assert!(rig.curl(&other).starts_with("GET a.test "));
    for conn in &waiting {
        conn.recv_text_until(|text| text.contains("dns_timeout"));
    }
}

const SILENT: &str = r#"
import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
time.sleep(1000)
"#;

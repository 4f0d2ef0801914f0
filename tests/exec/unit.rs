//! `peername exec --unit`: Debian's own units, in a systemd that is booted for the test. The evidence is what each server
//! reports.

mod booted;

use std::net::{IpAddr, SocketAddr};

use crate::harness::addr::v4;
use crate::harness::lab::assert_contains;
use crate::harness::rig::exec::v2;

use booted::Booted;

/// A unit, and a request that its server answers. The client's address is in the answer or in a log.
struct Server {
    unit: String,
    port: u16,
    request: &'static [u8],
    report: Report,
}

enum Report {
    Answer,
    Journal,
    File(&'static str),
}

/// All units are in one test, because only one systemd can be booted in a control group at a time.
#[test]
fn servers_of_debian_see_their_clients() {
    let machine = Booted::new();
    for (server, last) in servers().iter().zip(10..) {
        // Each unit has a client of its own, by which its lines of the journal are found: journald can't tell the unit of a
        // process that has exited.
        assert_sees_client(&machine, server, v4([198, 51, 100, last], 4711));
    }
}

fn assert_sees_client(machine: &Booted, server: &Server, client: SocketAddr) {
    let Server { unit, request, .. } = server;
    let written = machine.run(&[
        "peername",
        "exec",
        "--trust=10.81.0.2",
        &format!("--ports={}", server.port),
        &format!("--unit={unit}"),
    ]);
    let drop_in = format!("/etc/systemd/system/{unit}.service.d/peername.conf");
    let next = format!("systemctl restart {unit}.service");
    assert_contains(&written, &[&drop_in, &next]);
    machine.restart(unit);
    // The refused connection comes first: after it PostgreSQL blocks in accept(2) until the next one, and would not stop.
    let without_header = machine.connect(server.port, request);
    let (answer, _) = without_header.recv_to_end();
    assert!(answer.is_empty(), "{unit}: {}", answer.escape_ascii());
    let conn = machine.connect(server.port, &[&v2(client), *request].concat());
    let answer = conn.recv_some();
    server.assert_reports(machine, client.ip(), &answer);

    machine.run(&["peername", "exec", "--remove", &format!("--unit={unit}")]);
    machine.restart(unit);
    let answer = machine.connect(server.port, request).recv_some();
    assert!(!answer.is_empty(), "{unit}");
    machine.run(&["systemctl", "stop", unit]);
}

impl Server {
    fn assert_reports(&self, machine: &Booted, client: IpAddr, answer: &[u8]) {
        let client = client.to_string();
        match self.report {
            Report::Answer => {
                let answer = answer.escape_ascii().to_string();
                assert_contains(&answer, &[&client]);
            }
            Report::Journal => {
                machine.wait_printed(&["journalctl", "--output=cat"], &client);
            }
            Report::File(path) => machine.wait_printed(&["cat", path], &client),
        }
    }
}

fn servers() -> [Server; 10] {
    [
        Server {
            unit: "ssh".to_owned(),
            port: 22,
            request: b"neither SSH nor HTTP\r\n",
            report: Report::Journal,
        },
        Server {
            unit: "nginx".to_owned(),
            port: 80,
            request: b"GET / HTTP/1.0\r\n\r\n",
            report: Report::File("/var/log/nginx/access.log"),
        },
        Server {
            unit: "apache2".to_owned(),
            port: 8080,
            request: b"GET / HTTP/1.0\r\n\r\n",
            report: Report::File("/var/log/apache2/access.log"),
        },
        Server {
            unit: "redis-server".to_owned(),
            port: 6379,
            request: b"CLIENT INFO\r\n",
            report: Report::Answer,
        },
        Server {
            unit: postgres_cluster(),
            port: 5432,
            // No entry of pg_hba.conf permits this user. The error names the client.
            request: b"\0\0\0\x1b\0\x03\0\0user\0x\0database\0x\0\0",
            report: Report::Answer,
        },
        Server {
            unit: "postfix@-".to_owned(),
            port: 25,
            request: b"",
            report: Report::Journal,
        },
        Server {
            unit: "dovecot".to_owned(),
            port: 143,
            request: b"a LOGOUT\r\n",
            report: Report::Journal,
        },
        Server {
            unit: "mosquitto".to_owned(),
            port: 1883,
            request: b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01a",
            report: Report::File("/var/log/mosquitto/mosquitto.log"),
        },
        Server {
            unit: "haproxy".to_owned(),
            port: 8081,
            request: b"GET / HTTP/1.0\r\n\r\n",
            report: Report::Answer,
        },
        Server {
            unit: "confined".to_owned(),
            port: 8088,
            request: b"GET / HTTP/1.0\r\n\r\n",
            report: Report::Journal,
        },
    ]
}

/// The unit of the cluster that the package has created.
fn postgres_cluster() -> String {
    let mut versions = std::fs::read_dir("/etc/postgresql").expect("PostgreSQL (make setup)");
    let version = versions.next().expect("a cluster").expect("a version");
    format!("postgresql@{}-main", version.file_name().display())
}

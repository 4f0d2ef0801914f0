//! The programs: how each is started, what a client sends, and where the program reports its client.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::clients::{connect_by_psql, connect_by_ssh};
use super::running::{Listener, Running};
use crate::harness::addr::{v4, v6};
use crate::harness::lab::{Host, Scratch, assert_succeeds};
use crate::harness::programs::server::{postgres, sshd};
use crate::harness::rig::exec::{Libc, compiled_server};
use crate::harness::rig::exec_notify::compiled_go_server;

/// A row of the table.
pub(super) struct Program {
    /// Returns the command of a server on port 8443, and writes the files that it needs.
    pub(super) command: fn(&CommandContext<'_>) -> Vec<String>,
    /// The prefix of the command that starts `peername exec`, which changes the user or mounts a directory.
    pub(super) through: &'static [&'static str],
    pub(super) can_be_preloaded: bool,
    pub(super) listens_on: &'static [Listener],
    /// What a client sends first.
    pub(super) request: &'static [u8],
    /// Where the program reports its client's address.
    pub(super) reports_to: ReportsTo,
    /// The text before the address in a report.
    pub(super) marker: &'static str,
    /// Whether each client connects only after the child that served the previous one has exited. The SIGCHLD of that child can
    /// interrupt getpeername(2) under a supervisor, and socat does not repeat the call.
    pub(super) one_at_a_time: bool,
    /// Connects by the program's usual client through HAProxy, and asserts that the program sees that client.
    pub(super) real_client: fn(&Running<'_>),
}

/// What the command of a program depends on.
pub(super) struct CommandContext<'a> {
    pub(super) host: &'a Host,
    pub(super) scratch: &'a Scratch,
    pub(super) listener: Listener,
}

pub(super) enum ReportsTo {
    /// To the client, on its connection.
    Client,
    /// To standard output or standard error.
    Log,
}

/// A program that sends each client a line `peer ADDRESS PORT`.
const USUAL: Program = Program {
    command: |_| Vec::new(),
    through: &[],
    can_be_preloaded: true,
    listens_on: &[Listener::V4, Listener::Both],
    request: b"hello\n",
    reports_to: ReportsTo::Client,
    marker: "peer ",
    one_at_a_time: false,
    real_client: super::connect_through_haproxy,
};

pub(super) fn go_static() -> Program {
    Program {
        command: |rig| go(rig, false),
        can_be_preloaded: false,
        request: HTTP,
        ..USUAL
    }
}

/// A dynamically linked Go program. Like static ones, it makes its system calls without the C library.
pub(super) fn go_cgo() -> Program {
    Program {
        command: |rig| go(rig, true),
        can_be_preloaded: false,
        request: HTTP,
        ..USUAL
    }
}

fn go(rig: &CommandContext<'_>, cgo: bool) -> Vec<String> {
    let network = rig.pick("tcp4", "tcp");
    let program = compiled_go_server(cgo).to_str().expect("text").to_owned();
    vec![program, network.to_owned(), ":8443".to_owned()]
}

pub(super) fn c_static() -> Program {
    Program {
        command: |rig| c(rig, Libc::Static),
        can_be_preloaded: false,
        marker: "getpeername ",
        ..USUAL
    }
}

pub(super) fn c_musl() -> Program {
    Program {
        command: |rig| c(rig, Libc::Musl),
        marker: "getpeername ",
        ..USUAL
    }
}

fn c(rig: &CommandContext<'_>, libc: Libc) -> Vec<String> {
    let family = rig.pick("4", "6");
    let arguments = format!("--accept=level --family={family} --brief");
    words(&compiled_server(libc), &arguments)
}

pub(super) fn python() -> Program {
    Program {
        command: |rig| {
            let (class, ip) = (rig.pick("V4", "V6"), rig.pick("0.0.0.0", "::"));
            let script = format!("{PYTHON}{class}((\"{ip}\", 8443), Hello).serve_forever()\n");
            words_with_last("/usr/bin/python3 -uc", script)
        },
        request: HTTP,
        ..USUAL
    }
}

pub(super) fn node() -> Program {
    Program {
        command: |rig| words_with_last("node -e", NODE.replace("HOST", rig.pick("0.0.0.0", "::"))),
        ..USUAL
    }
}

pub(super) fn erlang() -> Program {
    Program {
        command: |rig| {
            let options = rig.pick("inet", "inet6, {ipv6_v6only, false}");
            words_with_last("erl -noshell -eval", ERLANG.replace("FAMILY", options))
        },
        ..USUAL
    }
}

pub(super) fn java() -> Program {
    Program {
        command: |rig| {
            let only_v4 = rig.listener == Listener::V4;
            let arguments = format!("-Djava.net.preferIPv4Stack={only_v4} Server 8443");
            let classes = java_classes();
            words(
                "java -XX:TieredStopAtLevel=1 -cp",
                &format!("{classes} {arguments}"),
            )
        },
        ..USUAL
    }
}

fn java_classes() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("java");
        let classes = classes.to_str().expect("text").to_owned();
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/exec/programs/Server.java"
        );
        let output = Command::new("javac")
            .args(["-d", &classes, source])
            .output();
        assert_succeeds(&output.expect("javac (make setup)"));
        classes
    })
}

pub(super) fn redis() -> Program {
    Program {
        command: |rig| {
            let bind = rig.pick("0.0.0.0", "0.0.0.0 ::");
            let rest = "--port 8443 --appendonly no --protected-mode no --save";
            let line = format!("redis-server --bind {bind} {rest}");
            // An empty argument, so that nothing is saved.
            words_with_last(&line, String::new())
        },
        request: b"CLIENT INFO\r\n",
        marker: " addr=",
        ..USUAL
    }
}

/// nginx with two workers of another user, which share one listener, or with `reuseport` have one each.
pub(super) fn nginx() -> Program {
    Program {
        command: |rig| nginx_with(rig, ""),
        ..WEB_SERVER
    }
}

pub(super) fn nginx_reuseport() -> Program {
    Program {
        command: |rig| nginx_with(rig, "reuseport"),
        ..WEB_SERVER
    }
}

fn nginx_with(rig: &CommandContext<'_>, option: &str) -> Vec<String> {
    let listen = rig.pick("0.0.0.0:8443", "[::]:8443 ipv6only=off");
    let config = NGINX.replace("LISTEN", &format!("{listen} {option}"));
    words("nginx -e stderr -c", &rig.write("nginx.conf", &config))
}

pub(super) fn apache() -> Program {
    Program {
        command: |rig| {
            let listen = rig.pick("0.0.0.0:8443", "[::]:8443");
            let config = rig.write("apache.conf", &APACHE.replace("LISTEN", listen));
            words("/usr/sbin/apache2 -D FOREGROUND -f", &config)
        },
        ..WEB_SERVER
    }
}

const WEB_SERVER: Program = Program {
    request: HTTP,
    reports_to: ReportsTo::Log,
    ..USUAL
};

/// PostgreSQL refuses to run as root, and serves each connection by a process.
pub(super) fn postgres() -> Program {
    Program {
        command: |rig| {
            let data = rig.scratch.path_text("data");
            let initdb = postgres::program("initdb");
            let initdb = format!("-u postgres -- {initdb} -N -A trust -D {data}");
            let initdb: Vec<&str> = initdb.split(' ').collect();
            rig.host.run("runuser", &initdb);
            rig.write("data/pg_hba.conf", "host all all 203.0.113.9/32 trust\n");
            let config = POSTGRES.replace("LISTEN", rig.pick("0.0.0.0", "*"));
            rig.write("data/postgresql.conf", &config);
            words(&format!("{} -D", postgres::program("postgres")), &data)
        },
        through: &["runuser", "-u", "postgres", "--"],
        request: STARTUP,
        reports_to: ReportsTo::Log,
        marker: "connection received: host=",
        real_client: connect_by_psql,
        ..USUAL
    }
}

pub(super) fn sshd() -> Program {
    Program {
        command: |rig| {
            // sshd binds the last address first, and takes [::] for both families.
            let listen = match rig.listener {
                Listener::V4 => &[ANY_V4][..],
                Listener::Both => &[ANY_V6, ANY_V4],
            };
            let config = sshd::write_config(rig.host, rig.scratch, listen);
            words("/usr/sbin/sshd -D -e -oLogLevel=VERBOSE -f", &config)
        },
        through: &["unshare", "--mount", "sh", "-c", sshd::RUN, "sh"],
        request: b"SSH-2.0-test\r\n",
        reports_to: ReportsTo::Log,
        marker: "Connection from ",
        real_client: connect_by_ssh,
        ..USUAL
    }
}

pub(super) fn socat() -> Program {
    Program {
        command: |_| socat_on("TCP4-LISTEN:8443,reuseaddr,fork"),
        listens_on: &[Listener::V4],
        // No request: `echo` would not read it, and socat drops the answer of a child that leaves input unread.
        request: b"",
        one_at_a_time: true,
        ..USUAL
    }
}

pub(super) fn socat_v6() -> Program {
    Program {
        command: |_| socat_on("TCP6-LISTEN:8443,ipv6only=0,reuseaddr,fork"),
        listens_on: &[Listener::Both],
        ..socat()
    }
}

fn socat_on(listen: &str) -> Vec<String> {
    words_with_last(
        &format!("socat {listen}"),
        "SYSTEM:echo peer $SOCAT_PEERADDR $SOCAT_PEERPORT".to_owned(),
    )
}

/// netcat supports one family at a time.
pub(super) fn netcat() -> Program {
    Program {
        command: |_| words("nc.openbsd -lnvk", "0.0.0.0 8443"),
        listens_on: &[Listener::V4],
        reports_to: ReportsTo::Log,
        marker: "Connection received on ",
        ..USUAL
    }
}

impl CommandContext<'_> {
    /// Returns `v4` or `both`, for the sockets on which the program listens.
    fn pick<'a>(&self, v4: &'a str, both: &'a str) -> &'a str {
        match self.listener {
            Listener::V4 => v4,
            Listener::Both => both,
        }
    }

    /// Writes a file of the program's; `DIR` is its directory.
    fn write(&self, name: &str, content: &str) -> String {
        let content = content.replace("DIR", &self.scratch.path_text("."));
        self.scratch.write(name, &content)
    }
}

fn words(program: &str, arguments: &str) -> Vec<String> {
    program
        .split(' ')
        .chain(arguments.split(' '))
        .map(str::to_owned)
        .collect()
}

/// Splits a command line, and appends a last argument, which may have spaces.
fn words_with_last(program: &str, last: String) -> Vec<String> {
    program
        .split(' ')
        .map(str::to_owned)
        .chain([last])
        .collect()
}

const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// A StartupMessage for user postgres (PostgreSQL's protocol 3.0).
pub(super) const STARTUP: &[u8] = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";

const PYTHON: &str = include_str!("catalogue/python.py");

/// A Node server. Node gets the address by getpeername(2) only, since it passes no buffer to accept(2).
const NODE: &str = r#"
require("net").createServer(socket => {
    socket.on("error", () => {});
    socket.end(`peer ${socket.remoteAddress} ${socket.remotePort}\n`);
}).listen({ host: "HOST", port: 8443 });
"#;

const ERLANG: &str = include_str!("catalogue/erlang.erl");

const NGINX: &str = include_str!("catalogue/nginx.conf");

const APACHE: &str = include_str!("catalogue/apache.conf");

const POSTGRES: &str = "
listen_addresses = 'LISTEN'
port = 8443
unix_socket_directories = 'DIR'
fsync = off
log_connections = on
";

const ANY_V4: SocketAddr = v4([0; 4], 8443);
const ANY_V6: SocketAddr = v6([0; 8], 8443);

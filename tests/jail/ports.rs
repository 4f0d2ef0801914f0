//! Servers of the program on the ports that the jail opens.

use crate::harness::rig::jail::{JailRig, USERS, User};

/// Whichever address a server binds: it is reached there, and other hosts at their own addresses still.
#[test]
fn servers_of_the_program_get_the_ports_that_they_bind() {
    let rig = JailRig::new();
    for (name, servers) in [
        (
            "v4",
            "serve(v4, '0.0.0.0'), [(v4, '127.0.0.1'), (v4, '127.0.0.2')]",
        ),
        ("v6", "serve(v6, '::', True), [(v6, '::1')]"),
        (
            "both",
            "serve(v6, '::', False), [(v4, '127.0.0.1'), (v6, '::1')]",
        ),
        ("loopback", "serve(v4, '127.0.0.1'), [(v4, '127.0.0.1')]"),
    ] {
        let script = format!("{SERVERS}\ncheck(*({servers}))\nprint('ok')");
        let script = rig.scratch().write(&format!("{name}.py"), &script);
        for user in USERS {
            let printed = rig.succeeds(
                user,
                &["-q", "--port=8081", "--allow-tcp=a.test:7022"],
                &format!("/usr/bin/python3 {script}"),
            );
            assert_eq!(printed, "ok\n", "{name}: {user:?}");
        }
    }
}

/// Those that listening opens without being asked for, as of a database, and a network namespace of the program's own.
#[test]
fn usual_ports_of_learning_are_the_programs_too() {
    let rig = JailRig::new();
    let list = rig.scratch().path_text("learned.txt");
    let inner = rig.scratch().write("inner.py", INNER);
    let script = format!(
        "redis-server --port 6379 --save '' --daemonize yes >/dev/null && \
         for i in $(seq 50); do redis-cli ping 2>/dev/null | grep PONG && break; sleep 0.1; done; redis-cli shutdown; \
         unshare --user --map-root-user --net /usr/bin/python3 {inner}; curl -sS http://127.0.0.1/ | grep -c destination_; \
         curl -sS http://a.test/echo"
    );
    let printed = rig.succeeds(User::Root, &["-q", "--learn", &list], &script);
    let lines: Vec<_> = printed.lines().collect();
    let [pong, in_use, still_open, other] = lines[..] else {
        panic!("{printed}");
    };
    assert_eq!([pong, in_use, still_open], ["PONG", "True", "1"]);
    assert!(other.starts_with("GET a.test "), "{other}");
}

const INNER: &str = r#"
import errno, socket

server = socket.socket()
server.bind(("127.0.0.1", 80))
server.listen()
try:
    socket.socket().bind(("127.0.0.1", 80))
except OSError as error:
    print(error.errno == errno.EADDRINUSE)
"#;

const SERVERS: &str = r#"
import errno, http.client, socket, subprocess

v4, v6 = socket.AF_INET, socket.AF_INET6

def bind(family, host, port, v6_only=None):
    server = socket.socket(family)
    if v6_only is not None:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6_only)
    server.bind((host, port))
    server.listen()
    server.settimeout(10)
    return server

def serve(family, host, v6_only=None):
    servers = []
    # A connection that the interceptor has accepted on the port stays.
    before = http.client.HTTPConnection("a.test")
    for _ in range(2):
        before.request("GET", "/echo")
        assert b"a.test" in before.getresponse().read()
        before.auto_open = False
        servers = servers or [bind(family, host, port, v6_only) for port in (80, 443, 8081, 7022)]
    for port in (80, 443):
        try:
            bind(family, host, port, v6_only)
            raise SystemExit("bound twice")
        except OSError as error:
            assert error.errno == errno.EADDRINUSE, error
    return servers

def check(servers, addresses):
    for server in servers:
        port = server.getsockname()[1]
        for family, address in addresses:
            with socket.socket(family) as client:
                client.settimeout(10)
                client.connect((address, port))
                assert client.getpeername()[:2] == (address, port)
                server.accept()[0].close()
    for option in ("-4", "-6"):
        for url in ("http://a.test/echo", "https://a.test/echo", "http://a.test:8081/echo"):
            answer = subprocess.check_output(["curl", "-sS", option, url], text=True)
            assert answer.startswith("GET a.test"), answer
    for server in servers:
        port = server.getsockname()[1]
        server.close()
        for family, address in addresses:
            with socket.socket(family) as client:
                assert client.connect_ex((address, port)) == errno.ECONNREFUSED, port
    # The alternate ports are no use to the program.
    with socket.socket(v4) as client:
        assert client.connect_ex(("192.0.2.1", 1)) == errno.ECONNREFUSED
"#;

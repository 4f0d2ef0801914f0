//! `peername top` against a running proxy: in a terminal, and without one.

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, addr, fresh_client_v4, v4};
use crate::harness::admin::ADMIN;
use crate::harness::backend::Backend;
use crate::harness::lab::{
    Lab, Process, Scratch, assert_contains, stderr_text, stdout_text, wait_for,
};
use crate::harness::peername::Peername;
use crate::harness::programs::terminal::run_in_terminal;
use crate::harness::rig::proxy::ProxyRig;

#[test]
fn top_shows_and_closes_connections_in_a_terminal() {
    let scratch = Scratch::new();
    let admin = format!("--admin=unix:{}", scratch.path_text("admin.sock"));
    let rig = ProxyRig::new(&[&admin]);
    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    down.send(&[b'x'; 2500]);
    up.recv(2500);
    let (other, other_up) = rig.connect_client(v4([198, 51, 100, 9], 1234));
    rig.connect_and_send(b"GET / HTTP/1.1\r\n\r\n")
        .wait_closed();
    let steps = [
        "see:peername proxy",
        "see:clients: 198.51.100.9 1, 203.0.113.7 1",
        "see:203.0.113.7:56324",
        "see:2.50 kB",
        "see:no_header 1: Turn the PROXY protocol on",
        // The end of a line that is wider than the terminal.
        "see:on the first datagram only.",
        // No connection is selected.
        "press:k",
        "see:select a connection first",
        "press:?",
        "see:sort by bytes or by age",
        "press:?",
        "see:203.0.113.7",
        // The first row is the one with the most bytes. Another key than y keeps it.
        r"press:\x1b[B",
        "press:k",
        "see:of 203.0.113.7:56324? Both sides are reset.",
        "press:n",
        "see:quit",
        "press:k",
        "see:Both sides are reset.",
        "press:y",
        "see:closed",
        "press:q",
    ];
    run_in_terminal(&rig.lab.server, &steps, &["top", &admin]);
    down.wait_closed();
    rig.proxy.wait_outcome("closed_by_admin");
    other.assert_reaches(&other_up, b"goes on");
    drop(up);
}

/// Over TCP the admin endpoint allows no changes, so `top` can't close a connection.
#[test]
fn top_over_tcp_sorts_and_does_not_close() {
    let rig = ProxyRig::new(&[ADMIN]);
    let open = rig.connect_client(fresh_client_v4());
    let steps = [
        "see:most bytes first",
        "press:s",
        "see:oldest",
        r"press:\x1b[B",
        "press:k",
        "see:over a Unix socket only",
        "press:q",
    ];
    run_in_terminal(&rig.lab.server, &steps, &["top", "--admin=127.0.0.1:9300"]);
    drop(open);
}

#[test]
fn top_prints_one_snapshot_without_a_terminal() {
    let rig = ProxyRig::new(&[ADMIN]);
    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    down.send(&[b'x'; 2500]);
    up.recv(2500);
    rig.connect_and_send(b"GET / HTTP/1.1\r\n\r\n")
        .wait_closed();
    let output = Peername::run(&rig.lab.server, &["top", "--admin=127.0.0.1:9300"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout_text(&output);
    assert_contains(
        &text,
        &[
            ", ready, up ",
            "open 1 of ",
            "accepted 2, to backends 2.50 kB, to clients 0 B",
            "no_header 1: Turn the PROXY protocol on",
            "clients: 203.0.113.7 1\n",
            "clients by bytes: 203.0.113.7 2.50 kB\n",
            "balancers: 10.81.0.2 1\n",
            "203.0.113.7:56324  10.81.0.2:",
            "tcp open  2.50 kB  0 B",
        ],
    );
    assert!(!text.contains('\x1b'), "{text:?}");
    drop(up);
}

#[test]
fn top_separates_the_errors_of_a_refused_reload() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let valid = "[[listen]]\naddress = [\"10.81.0.1:8443\"]\ntarget = \"127.0.0.1:443\"\ntrust = [\"10.81.0.0/24\"]\n";
    let file = scratch.write("proxy.toml", valid);
    let args = ["proxy", "--config", &file, ADMIN];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    scratch.write("proxy.toml", &format!("{valid}colour = 1\nshape = 2\n"));
    proxy.signal(Signal::HUP);
    wait_for("the refusal in `top`", || {
        let text = stdout_text(&Peername::run(
            &lab.server,
            &["top", "--admin=127.0.0.1:9300"],
        ));
        let refused = text
            .lines()
            .find(|line| line.contains("reload was refused"))?;
        let (first, second) = refused.split_once("; ")?;
        (first.contains("colour") && second.contains("shape")).then_some(())
    });
}

#[test]
fn top_names_the_call_that_failed() {
    let lab = Lab::without_routes();
    let text = |args: &[&str]| {
        let output = Peername::run(&lab.server, args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr_text(&output)
    };
    let refused = text(&["top", "--admin=127.0.0.1:9300"]);
    assert_contains(
        &refused,
        &[
            "--admin 127.0.0.1:9300: connect(2): Connection refused",
            "is --admin set in that process? `pgrep -a peername`",
        ],
    );
    let missing = text(&["top", "--admin=unix:/nonexistent/admin.sock"]);
    assert_contains(&missing, &["connect(2): No such file"]);
    // A server that accepts connections and sends nothing.
    let _silent = Backend::listen(&lab.server, addr("127.0.0.1:9302"));
    let silent = text(&["top", "--admin=127.0.0.1:9302"]);
    assert_contains(
        &silent,
        &["--admin 127.0.0.1:9302: no answer within 5s; is that peername's --admin"],
    );
    let args = ["-m", "http.server", "--bind", "127.0.0.1", "9301"];
    let _web_server =
        Process::start(&lab.server, "python3", &args).wait_listening(&[addr("127.0.0.1:9301")]);
    let other = text(&["top", "--admin=127.0.0.1:9301"]);
    assert_contains(
        &other,
        &["404 Not Found: this is no admin endpoint of peername\n"],
    );
}

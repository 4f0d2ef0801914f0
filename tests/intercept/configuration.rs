//! The configuration: errors at the start, and reloads (SIGHUP, `--watch`), which apply all files or none.

use std::fs;
use std::path::Path;

use data_encoding::BASE64;
use rustix::process::Signal;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Scratch, assert_contains, stdout_text, wait_until};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR};
use crate::harness::rig::load::under_load;
use crate::intercept::upstream::reuse::start_streams;

#[test]
fn invalid_options_and_missing_files_are_named_at_the_start() {
    let stage = InterceptLab::new();
    let ca = stage.scratch.path_text("ca");
    let missing = stage.scratch.path_text("missing");
    for (options, expected) in [
        (format!("--extra-ca={missing}"), "--extra-ca"),
        ("--check=ftp://x/".to_owned(), "opa+http://"),
        (format!("{CHECK} --check-take=Host"), "host can't be taken"),
        (format!("{CHECK} --auto-passthrough"), "--check"),
        ("--upstream-proxy=socks5://x".to_owned(), "http://HOST:PORT"),
        ("--passthrough=*.192.0.2.1".to_owned(), "*.example.com"),
    ] {
        let args = [&["intercept", "--ca", &ca], &words(&options)[..]].concat();
        assert_contains(
            &Peername::run_failing(&stage.lab.balancer, &args, 2),
            &[expected],
        );
    }
    let args = ["intercept", "--ca", &missing];
    assert_contains(
        &Peername::run_failing(&stage.lab.balancer, &args, 2),
        &["peername ca init"],
    );
}

/// `config check` reports what would end the start, and leaves it to the start to make the file.
#[test]
fn config_check_examines_the_path_of_the_log() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let file = scratch.write("file", "");
    let write_config = |log: &str| {
        let table = format!("[intercept]\nlog = \"{log}\"\n");
        scratch.write("intercept.toml", &table)
    };
    for (log, expected) in [
        (scratch.path_text("none/audit.log"), "no such directory"),
        (scratch.path_text(""), "Is a directory"),
        (format!("{file}/audit.log"), "Not a directory"),
    ] {
        let config = write_config(&log);
        let checked = Peername::run(&host, &["config", "check", &config]);
        assert_eq!(checked.status.code(), Some(3), "{checked:?}");
        let checked = stdout_text(&checked);
        let started = Peername::run_failing(&host, &["intercept", "--config", &config], 2);
        for printed in [checked, started] {
            assert_contains(&printed, &["line 2, [intercept]: log ", expected]);
        }
    }
    let log = scratch.path("audit.log");
    let config = write_config(&log.display().to_string());
    let checked = Peername::run(&host, &["config", "check", &config]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(!log.exists());
}

#[test]
fn reload_applies_a_rotated_authority_and_a_new_list() {
    let stage = InterceptLab::new();
    let list = stage.scratch.write("clients", "203.0.113.0/24\n");
    let rig = stage.start(&[&format!("--allow-client=@{list}")]);
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    rotate_authority(&rig);
    // Still signed by the old authority, which this client does not trust any more.
    assert!(!rig.try_curl(&["https://a.test/"]).status.success());
    rig.proxy.reload("\"reloaded\"");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");

    rig.scratch.write("clients", "not an address\n");
    rig.proxy.reload("reload refused, nothing was changed");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    rig.scratch.write("clients", "192.0.2.0/24\n");
    rig.proxy.reload("\"reloaded\"");
    assert!(!rig.try_curl(&["https://a.test/"]).status.success());
    rig.proxy.signal(Signal::USR1);
    rig.scratch.write("clients", "any\n");
    rig.proxy.reload("\"reloaded\"");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
}

/// A connection stays, and its requests are of no user any more.
#[test]
fn requests_after_a_reload_without_users_have_none() {
    let rig = start_with_file("-v");
    let entry = ["-nbBC", "4", "ann", "secret"];
    let users = rig.lab.client.run("htpasswd", &entry);
    let users = rig.scratch.write("users", &users);
    let with_users = config(&rig, &format!("proxy-auth = \"{users}\"\n"));
    reload(&rig, &with_users, "\"reloaded\"");
    let credentials = BASE64.encode(b"ann:secret");
    let request = |path: &str| {
        format!(
            "GET http://a.test/{path} HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
        )
    };
    let conn = rig.connect_and_send(request("put").as_bytes());
    assert_eq!(rig.wait_audit_lines("/put", 1)[0]["user"], "ann");
    let without_users = config(&rig, "");
    reload(&rig, &without_users, "\"reloaded\"");
    conn.send(request("echo").as_bytes());
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    assert_eq!(line["status"], 200, "{line}");
    assert!(line["user"].is_null(), "{line}");
}

/// A file without an end is refused at once, and the next reload works.
#[test]
fn fifo_does_not_stop_later_reloads() {
    let rig = InterceptRig::new(&[]);
    rig.proxy.wait_started();
    for name in ["root.pem", "ca/authority.pem"] {
        let (path, aside) = (rig.scratch.path_text(name), rig.scratch.path_text("aside"));
        rig.lab.server.run("mv", &[&path, &aside]);
        rig.lab.server.run("mkfifo", &["--mode=600", &path]);
        rig.proxy.signal(Signal::HUP);
        let parts = ["reload refused", &path, "not a regular file"];
        rig.proxy.wait_logged_parts(&parts);
        rig.lab.server.run("mv", &[&aside, &path]);
    }
    rig.proxy.reload("\"reloaded\"");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
}

/// Every tenth file is invalid, and every second one adds a listener and a timeout. Clients request without a pause, and the
/// origin itself counts what it served.
#[test]
fn intercept_reloads_under_load_and_loses_no_request() {
    let rig = start_with_file("-v");
    let get = || {
        let both = rig.curl(&["https://a.test/", "https://a.test/"]);
        assert_eq!(both, "hello\nhello\n");
    };
    let served = under_load(3, get, |load| {
        for round in 1..=RELOADS {
            match round % 10 {
                0 => reload(&rig, "[intercept]\nlisten = 7\n", "reload refused"),
                _ if round % 2 == 0 => reload(&rig, &config(&rig, ""), "\"reloaded\""),
                _ => {
                    let second = config(&rig, "idle-timeout = \"20s\"\n")
                        .replace(":8080\"", ":8080\", \"203.0.113.1:8081\"");
                    reload(&rig, &second, "\"reloaded\"");
                    Conn::connect(&rig.lab.client, v4([203, 0, 113, 1], 8081)).reset();
                }
            }
            load.wait_served(1);
        }
    });
    let log = rig.scratch.read("access.log");
    assert_eq!(log.lines().count(), 2 * served);
}

/// The reason is also shown by the admin endpoint, which asks for no password.
#[test]
fn refused_reload_does_not_log_a_password() {
    let rig = start_with_file("-v");
    rig.proxy.wait_started();
    let wrong = config(
        &rig,
        "upstream-proxy = \"https://user:s3cr3t@a.test:3128\"\n",
    );
    reload(&rig, &wrong, "https://***@a.test:3128");
    assert!(!rig.proxy.log().contains("s3cr3t"));
}

/// Rules, timeouts and lists are those of the new file; what needs a restart is refused by its key.
#[test]
fn intercept_reload_changes_rules_and_refuses_the_rest() {
    let rig = start_with_file("-v");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    let refusing = config(&rig, "").replace("10.81.0.0/24", "192.0.2.0/24");
    reload(&rig, &refusing, "\"reloaded\"");
    assert!(
        !rig.try_curl(&["--fail", "https://a.test/"])
            .status
            .success()
    );
    reload(&rig, &config(&rig, ""), "\"reloaded\"");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    for (text, key) in [
        (format!("workers = 7\n{}", config(&rig, "")), "workers"),
        (
            config(&rig, "certificates-per-client = 7\n"),
            "certificates-per-client",
        ),
        (
            config(&rig, "check = \"grpc://127.0.0.1:9\"\n"),
            "check can't be added",
        ),
        (
            config(&rig, "check-cache = \"1s\"\n"),
            "check-cache: has no effect",
        ),
        (
            config(&rig, "").replace("allow-client", "trust"),
            "trust: belongs ",
        ),
    ] {
        reload(&rig, &text, key);
        assert_eq!(rig.curl(&["https://a.test/"]), "hello\n", "{key}");
    }
}

/// A rule that opened a private destination is gone for connections that are open, too.
#[test]
fn open_connection_reaches_no_destination_of_an_old_rule() {
    let rig = start_with_file("-v");
    reload(
        &rig,
        &config_with_rule(&rig, "allow 10.81.0.1"),
        "\"reloaded\"",
    );
    assert_eq!(rig.curl(&["http://10.81.0.1/"]), "hello\n");
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let get = b"GET http://10.81.0.1/ HTTP/1.1\r\nHost: 10.81.0.1\r\n\r\n";
    client.send(get);
    client.recv_text_until(|text| text.ends_with("hello\n"));
    reload(&rig, &config_with_rule(&rig, "allow any"), "\"reloaded\"");
    client.send(get);
    client.recv_text_until(|text| text.contains("destination_not_public"));
}

/// A connection to the origin that is in use during the reload is not reused against the new rules.
#[test]
fn connection_in_use_serves_no_request_of_an_old_rule() {
    let rig = start_with_file("-v");
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 8099));
    let opened = config_with_rule(&rig, "allow 10.81.0.1:8099");
    reload(&rig, &opened, "\"reloaded\"");
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let to_origin = request_on_new_connection(&client, &origin);
    reload(&rig, &config_with_rule(&rig, "allow any"), "\"reloaded\"");
    answer(&to_origin, &client);
    assert_not_public(&client);
}

/// The same, after an earlier reload that left the rules unchanged came between the client's connection and its request.
#[test]
fn connection_in_use_serves_no_request_of_an_old_rule_after_several_reloads() {
    let rig = start_with_file("-v");
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 8099));
    let opened = config_with_rule(&rig, "allow 10.81.0.1:8099");
    reload(&rig, &opened, "\"reloaded\"");
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    answer(&request_on_new_connection(&client, &origin), &client);
    reload(&rig, &(opened + CONTACT), "\"reloaded\"");
    let to_origin = request_on_new_connection(&client, &origin);
    reload(&rig, &config_with_rule(&rig, "allow any"), "\"reloaded\"");
    answer(&to_origin, &client);
    assert_not_public(&client);
}

/// The same over HTTP/2, where the connection to the origin takes further requests while it is in use.
#[test]
fn http2_connection_in_use_serves_no_request_of_an_old_rule_after_several_reloads() {
    let rig = start_with_file("-v");
    let opened = config_with_rule(&rig, "allow a.test");
    reload(&rig, &opened, "\"reloaded\"");
    let pause = rig.scratch.path_text("pause");
    let steps = ["wait", &pause, "/slow", "wait", &pause, "/echo"];
    let client = start_streams(&rig, "a.test:443", &steps);
    for text in [opened + CONTACT, config_with_rule(&rig, "allow any")] {
        wait_until("the client's pause", || Path::new(&pause).exists());
        reload(&rig, &text, "\"reloaded\"");
        fs::remove_file(&pause).expect("the client's pause");
    }
    client.wait_printed("200 403");
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    assert_eq!(line["code"], "destination_not_public", "{line}");
}

/// `--watch` notices the rotation: a client that trusts the new root alone is served without a signal, and a connection
/// that was open goes on.
#[test]
fn watch_notices_a_rotated_authority() {
    let rig = start_with_file("--watch");
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let get = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    client.send(get);
    client.recv_text_until(|text| text.ends_with("hello\n"));
    rotate_authority(&rig);
    rig.proxy.wait_logged("\"reloaded\"");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    client.send(get);
    client.recv_text_until(|text| text.ends_with("hello\n"));
}

/// Sends [`GET_8099`], and returns the connection on which it reaches the origin.
fn request_on_new_connection(client: &Conn, origin: &Backend) -> Conn {
    client.send(GET_8099);
    let to_origin = origin.accept();
    to_origin.recv_text_until(|text| text.ends_with("\r\n\r\n"));
    to_origin
}

/// Answers the request, and waits until the client has the answer.
fn answer(to_origin: &Conn, client: &Conn) {
    to_origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    client.recv_text_until(|text| text.ends_with("hello\n"));
}

/// Sends [`GET_8099`], and asserts that the proxy refuses its destination.
#[track_caller]
fn assert_not_public(client: &Conn) {
    client.send(GET_8099);
    let response = client.recv_text_until(|text| text.ends_with("}\n"));
    assert_contains(&response, &["destination_not_public"]);
}

/// Starts the proxy with a configuration file and this option.
fn start_with_file(option: &str) -> InterceptRig {
    let stage = InterceptLab::new();
    let text = config_in(&stage.scratch.path_text("."), "");
    let path = stage.scratch.write("intercept.toml", &text);
    stage.start_with_file(&path, option)
}

/// The configuration of [`start_with_file`] with these further keys.
fn config(rig: &InterceptRig, keys: &str) -> String {
    config_in(&rig.scratch.path_text("."), keys)
}

/// The same with this rule in place of the allowed destination.
fn config_with_rule(rig: &InterceptRig, rule: &str) -> String {
    config(rig, &format!("rules = [\"{rule}\"]\n"))
        .replace("allow-destination = [\"10.81.0.0/24\"]\n", "")
}

fn config_in(dir: &str, keys: &str) -> String {
    format!(
        "[intercept]\nlisten = [\"{PROXY_ADDR}\"]\nca = \"{dir}/ca\"\nextra-ca = [\"{dir}/root.pem\"]\n\
         allow-client = [\"203.0.113.0/24\"]\nallow-destination = [\"10.81.0.0/24\"]\n{keys}"
    )
}

/// Where the system refuses further threads, calls wait for these: one of the control side, and one for the calls of requests.
#[test]
fn first_thread_of_each_pool_runs_from_the_start() {
    let rig = InterceptRig::new(&[]);
    wait_until("a thread of each pool", || {
        let names = rig.proxy.thread_status_fields("Name");
        let pools = names.iter().filter(|(name, _)| name == "tokio-rt-worker");
        pools.count() == 2
    });
}

/// Writes another file, sends SIGHUP, and waits until the proxy has logged `logged` once more.
#[track_caller]
fn reload(rig: &InterceptRig, text: &str, logged: &str) {
    rig.scratch.write("intercept.toml", text);
    rig.proxy.reload(logged);
}

const RELOADS: usize = 100;
const GET_8099: &[u8] = b"GET http://10.81.0.1:8099/ HTTP/1.1\r\nHost: 10.81.0.1:8099\r\n\r\n";
/// A key that changes nothing but pages of refusals.
const CONTACT: &str = "contact = \"ann\"\n";

const CHECK: &str = "--check=http://127.0.0.1:1/";

/// Rotates the authority of the proxy, and has clients trust the new one alone.
fn rotate_authority(rig: &InterceptRig) {
    let ca = rig.scratch.path_text("ca");
    rig.lab.client.run(BINARY, &["ca", "rotate", "--ca", &ca]);
    let pem = rig.lab.client.run(BINARY, &["ca", "export", "--ca", &ca]);
    rig.scratch.write("ca.pem", first_certificate(&pem));
}

/// `ca export` has the predecessors after the authority.
fn first_certificate(pem: &str) -> &str {
    let end = "-----END CERTIFICATE-----\n";
    pem.find(end).map_or(pem, |at| &pem[..at + end.len()])
}

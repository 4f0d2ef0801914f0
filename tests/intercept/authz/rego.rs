//! Rego policies that the proxy evaluates itself (`--check=rego:`).

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::check::service::Opa;
use crate::harness::lab::{assert_contains, assert_fields, wait_until};
use crate::harness::page::Page;
use crate::harness::peername::Peername;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, recv_head};

const POLICY: &str = r#"package egress
http := input.attributes.request.http
verdict := {"allow": true} if http.method == "CONNECT"
else := {"allow": true, "headers": {"x-mine": "set"}} if startswith(http.path, "/echo")
else := {"allow": false, "http_status": 451, "body": "by law", "reason": "not listed"}
"#;

#[test]
fn policy_decides_on_each_request() {
    let rig = start(POLICY);
    let answer = rig.curl(&["https://a.test/echo"]);
    assert!(
        answer.starts_with("GET a.test HTTP/2.0 ") && answer.contains(" x=set "),
        "{answer}"
    );
    assert_eq!(rig.curl(&["https://a.test/no"]), "by law");
    assert_eq!(rig.curl_status(&["http://a.test/no"]), 451);
    let line = &rig.wait_audit_lines("/no", 2)[0];
    let expected = json!({"decision": "denied", "how": "asked", "reason": "not listed"});
    assert_fields(line, expected);
    assert_eq!(rig.wait_origin_log(1).len(), 1);
}

/// A changed file is in force without a signal, for open connections, too; one that is not valid leaves the old policy.
#[test]
fn changed_policy_is_in_force_as_a_whole_or_not_at_all() {
    let rig = start(POLICY);
    let status = |path: &str| rig.curl_status(&[&format!("http://a.test{path}")]);
    assert_eq!((status("/echo"), status("/none")), (200, 451));
    let file = rig.scratch.path("policy.rego");
    let replace = |text: &str| {
        let new = rig.scratch.write("policy.new", text);
        fs::rename(new, &file).expect("replace the policy");
    };
    replace(&POLICY.replace("/echo", "/none"));
    wait_until("the new policy", || status("/none") == 204);
    assert_eq!(status("/echo"), 451);
    replace("package egress\n\nverdict := {\"allow\": true} if {\n");
    let refused = rig.proxy.wait_logged("reload refused");
    assert_contains(&refused, &["policy.rego:4:"]);
    assert_eq!((status("/echo"), status("/none")), (451, 204));
    replace(POLICY);
    rig.proxy.signal(Signal::HUP);
    wait_until("the old policy", || status("/echo") == 200);
    assert_eq!(status("/none"), 451);
}

/// The evaluation is stopped at the deadline, and the worker serves other requests meanwhile. With one CPU there is one permit,
/// which an evaluation that ran on would keep.
#[test]
fn policy_that_takes_too_long_or_fails_denies() {
    const SLOW: &str = r#"package egress
http := input.attributes.request.http
r := numbers.range(1, 3000)
allow if http.path == "/echo"
allow if { http.path == "/slow"; count([1 | some x in r; some y in r; some z in r; x + y == z]) > 0 }
verdict := allow if http.path != "/conflict"
verdict := false if http.path in ["/slow", "/conflict"]
verdict := true if http.path == "/conflict"
"#;
    let rig = start_through(
        &["taskset", "-c", "0"],
        SLOW,
        &["--check-timeout=2s", "--workers=1", "--allow=a.test"],
    );
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 200);
    // This request is before others that warn, because warnings are throttled.
    assert_eq!(rig.curl_status(&["http://a.test/conflict"]), 503);
    let slow = rig.connect_and_send(b"GET http://a.test/slow HTTP/1.1\r\nHost: a.test\r\n\r\n");
    // The list denies it without an evaluation, which would have to wait for the permit.
    let denied = rig.connect_and_send(b"GET http://b.test/slow HTTP/1.1\r\nHost: b.test\r\n\r\n");
    let head = recv_head(&denied);
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let answer = slow.recv_text_until(|text| text.ends_with("}\n"));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_contains(&answer, &["check_failed"]);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 200);
    // In the order of the responses.
    let lines = rig.wait_audit_lines("/slow", 2);
    assert_eq!(lines[0]["host"], "b.test", "{lines:?}");
    assert_eq!(lines[1]["how"], "check_timeout", "{lines:?}");
    assert_eq!(
        rig.wait_audit_lines("/conflict", 1)[0]["how"],
        "check_status"
    );
    assert!(
        rig.proxy.log().contains("policy.rego:7:"),
        "{}",
        rig.proxy.log()
    );
}

/// The first example of docs/check.md decides the same in the proxy and in OPA, by the options that the page has for each.
#[test]
fn example_of_the_page_decides_the_same_in_the_proxy_and_in_opa() {
    let policy = documented_policy();
    let section = PAGE.section(SECTION);
    let option = |start: &str| {
        let command = section.command(&format!("peername intercept --check {start}"));
        let (_, value) = command.rsplit_once(' ').expect("its value");
        format!("--check={value}")
    };
    let stage = InterceptLab::new();
    let file = stage.scratch.write("policy.rego", &policy);
    let embedded = option("rego:").replace("/etc/peername/policy.rego", &file);
    let rig = stage.start(&[&embedded, LONG_CHECK_TIMEOUT]);
    assert_decided_as_documented(&rig);
    let rig = InterceptRig::new(&[&option("opa+http:"), LONG_CHECK_TIMEOUT]);
    let opa = v4([127, 0, 0, 1], 8181);
    let _opa = rig.lab.balancer.enter(|| Opa::start_at(opa, &policy));
    assert_decided_as_documented(&rig);
}

#[track_caller]
fn assert_decided_as_documented(rig: &InterceptRig) {
    for (url, status) in [
        ("https://a.test/echo", 200),
        ("http://a.test:8081/echo", 200),
        ("http://b.test/echo", 403),
        ("http://10.81.0.1/echo", 403),
    ] {
        assert_eq!(rig.curl_status(&[url]), status, "{url}");
    }
    assert_eq!(rig.curl_status(&["http://b.test/none"]), 403);
    let line = &rig.wait_audit_lines("/none", 1)[0];
    assert_eq!(line["reason"], "b.test is not listed", "{line}");
}

/// Of two policies for a prefix, the page warns of the first one, and has the second one.
#[test]
fn documented_policy_for_paths_allows_no_other_path() {
    let section = PAGE.section("### Paths in a policy");
    let policy = section.block("package egress");
    let policy = policy.replace("api.example.com", "a.test");
    let stage = InterceptLab::new();
    let file = stage.scratch.write("policy.rego", &policy);
    let rig = stage.start(&[&format!("--check=rego:{file}"), LONG_CHECK_TIMEOUT]);
    let status = |args: &[&str]| rig.curl_status(&[&["--path-as-is"][..], args].concat());
    let team = ["-H", "X-Team: blue"];
    let with_team = |url: &str| status(&[&team[..], &[url]].concat());
    for url in ["https://a.test/v1/x", "https://a.test/v1/x/y.z?q=../"] {
        assert_eq!(with_team(url), 404, "the origin's answer to {url}");
    }
    for path in [
        "/v1",
        "/v1/",
        "/v1/../echo",
        "/v1/%2e%2e/echo",
        "/v1/x/..;/echo",
        "/v1//echo",
        "/echo?/v1/x",
    ] {
        assert_eq!(with_team(&format!("https://a.test{path}")), 403, "{path}");
    }
    assert_eq!(with_team("http://a.test/v1/x"), 403, "plain HTTP");
    assert_eq!(with_team("http://b.test/v1/x"), 403);
    assert_eq!(status(&["https://a.test/v1/x"]), 403, "no header");
    assert_eq!(
        status(&["-H", "X-Team: blue", "-d", "x", "https://a.test/v1/x"]),
        403
    );

    let prefix =
        "package egress\nallow if startswith(input.attributes.request.http.path, \"/v1/\")\n";
    for (rules, expected) in [
        (&[] as &[&str], 200),
        (&["--allow=GET,HEAD a.test/v1"], 403),
    ] {
        let stage = InterceptLab::new();
        let file = stage.scratch.write("policy.rego", prefix);
        let check = format!("--check=rego:{file}");
        let rig = stage.start(&[&[&*check, LONG_CHECK_TIMEOUT], rules].concat());
        let traversal = ["--path-as-is", "http://a.test/v1/%2e%2e/echo"];
        assert_eq!(rig.curl_status(&traversal), expected, "{rules:?}");
    }
}

const PAGE: Page = Page::new(include_str!("../../../docs/check.md"));
const SECTION: &str = "## Policies in the proxy";

/// The page's policy, with a name of the test in place of the public one.
fn documented_policy() -> String {
    let policy = PAGE.section(SECTION).block("package egress");
    policy.replace("example.com", "a.test")
}

#[test]
fn invalid_policy_is_refused_at_the_start() {
    let stage = InterceptLab::new();
    let file = stage
        .scratch
        .write("policy.rego", "package egress\n\nallow if {\n");
    let ca = stage.scratch.path_text("ca");
    let args = ["intercept", "--ca", &ca, &format!("--check=rego:{file}")];
    assert_contains(
        &Peername::run_failing(&stage.lab.balancer, &args, 2),
        &["policy.rego:4:"],
    );
}

/// A mounted ConfigMap has such links, and so has a directory of releases with `current`.
#[test]
fn policy_behind_a_symbolic_link_is_watched() {
    let stage = InterceptLab::new();
    let (folder, link) = (stage.scratch.path("folder"), stage.scratch.path("current"));
    fs::create_dir(&folder).expect("a directory");
    let file = folder.join("policy.rego");
    fs::write(&file, POLICY).expect("the policy");
    symlink(&folder, &link).expect("a link");
    let check = format!("--check=rego:{}#egress/verdict", link.display());
    let rig = stage.start(&[&check, LONG_CHECK_TIMEOUT]);
    assert_eq!(rig.curl_status(&["http://a.test/none"]), 451);
    fs::write(&file, POLICY.replace("/echo", "/none")).expect("the policy");
    let status = || rig.curl_status(&["http://a.test/none"]);
    wait_until("the new policy", || status() == 204);
}

fn start(policy: &str) -> InterceptRig {
    start_through(&[], policy, &[LONG_CHECK_TIMEOUT])
}

/// Starts the proxy with this policy through other programs.
fn start_through(through: &[&str], policy: &str, args: &[&str]) -> InterceptRig {
    let stage = InterceptLab::new();
    let file = stage.scratch.write("policy.rego", policy);
    let check = format!("--check=rego:{file}#egress/verdict");
    stage.start_through(through, &[&[&*check], args].concat())
}

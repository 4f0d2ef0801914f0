//! The proxy for a team of docs/intercept.md, started with the file of the page and by its commands.

use serde_json::{Value, json};

use crate::harness::lab::{assert_contains, assert_fields, wait_for};
use crate::harness::page::Page;
use crate::harness::peername::BINARY;
use crate::harness::rig::intercept::{InterceptLab, PROXY_ADDR};

const PAGE: Page = Page::new(include_str!("../../../docs/intercept.md"));

/// A user needs the password, and sees the contact where a rule denies. One host's TLS stays unopened. The log names the user.
#[test]
fn proxy_for_a_team_works_as_written() {
    let stage = InterceptLab::new();
    let section = PAGE.section("## A proxy for a team");
    let scratch = stage.scratch.path_text("");
    let here = |text: &str| {
        text.replace("/etc/peername/", &scratch)
            .replace("/var/log/", &scratch)
            .replace("192.0.2.20:8080", &PROXY_ADDR.to_string())
            .replace("*.example.com", "h1.test")
            .replace("bank.example.com", "h1.test")
            .replace("example.com", "a.test")
            .replace("htpasswd -cB", "htpasswd -cbB")
            .replace("users ann", "users ann secret")
            .replace("peername config", &format!("{BINARY} config"))
    };
    let origins =
        format!("extra-ca = \"{scratch}root.pem\"\nallow-destination = \"10.81.0.0/24\"\n");
    let file = here(section.fenced("toml")[0]) + &origins;
    let file = stage.scratch.write("intercept.toml", &file);
    // The authority is the lab's.
    for command in ["htpasswd", "mkdir", "peername config"] {
        let command = here(&section.command(command));
        stage.lab.balancer.run("sh", &["-c", &command]);
    }
    let rig = stage.start_with_file(&file, "-v");
    let user = ["--proxy-user", "ann:secret"];
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 407);
    let echo = rig.curl(&[&user[..], &["https://a.test/echo"]].concat());
    assert!(echo.starts_with("GET a.test "), "{echo}");
    let denied = rig.curl_problem(&[&user[..], &["https://a.test/admin"]].concat());
    assert_fields(
        &denied,
        json!({"status": 403, "contact": "Ask in #network"}),
    );
    // The client trusts the origin's authority alone, which signs what is not opened.
    let root = format!("{scratch}root.pem");
    let unopened = [&user[..], &["--cacert", &root, "https://h1.test/echo"]].concat();
    assert_contains(&rig.curl(&unopened), &["GET h1.test "]);
    let decisions = wait_for("the lines of three requests", || {
        let log = rig.scratch.read("peername-intercept/audit.log");
        let decisions: Vec<_> = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
            .filter(|line| line["message"] == "request" && line["user"] == "ann")
            .map(|line| line["decision"].clone())
            .collect();
        (decisions.len() == 3).then_some(decisions)
    });
    assert_eq!(decisions, ["allowed", "denied", "allowed"]);
}

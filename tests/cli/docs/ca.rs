//! docs/ca.md: its commands run in the order of the page, in an ordinary shell.

use super::follow::shell;
use crate::harness::lab::{Host, Scratch, assert_contains};
use crate::harness::page::Page;

const PAGE: Page = Page::new(include_str!("../../../docs/ca.md"));

#[test]
fn authority_is_made_shown_rotated_and_replaced_as_the_page_has_it() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let run_in = |home: &str, command: &str| {
        let here = scratch.path_text(home);
        let state = format!("mkdir -p {here} && cd {here} && export XDG_STATE_HOME={here}");
        shell(&host, &format!("{state} && {command}"))
    };
    let [init, trust] = &PAGE.commands()[..2] else {
        panic!("two commands");
    };
    run_in("first", init);
    let trusted = run_in("first", &format!("{trust} && echo $SSL_CERT_FILE"));
    assert_contains(&trusted, &["/first/peername/ca/bundle.pem"]);
    run_in("narrow", &PAGE.command("peername ca init --days"));
    let shown = run_in("narrow", "peername ca show");
    assert_contains(&shown, &["corp.example", "10.0.0.0/8"]);
    let debian = PAGE
        .command("peername ca export")
        .replace("/usr/local/share/ca-certificates/", "");
    let (debian, _) = debian.split_once(" && ").expect("and then");
    run_in("first", debian);
    assert_contains(
        &scratch.read("first/peername.crt"),
        &["-----BEGIN CERTIFICATE-----"],
    );

    let rotation = PAGE.section("## Rotation");
    run_in("first", &rotation.command("peername ca rotate"));
    let both = run_in("first", "peername ca export");
    assert_eq!(both.matches("-----BEGIN").count(), 2, "{both}");

    // A self-signed certificate for an origin is not that of a CA.
    let section = PAGE.section("## Origins of your own");
    run_in("own", &section.command("openssl req"));
    let text = run_in("own", "openssl x509 -in certificate.pem -noout -text");
    assert_contains(&text, &["CA:FALSE", "DNS:server.example"]);

    // An authority that was made elsewhere: its key, its certificate, and an empty chain.
    run_in("other", "peername ca init");
    let files = "cd peername/ca && sed -n '/BEGIN PRIVATE/,/END PRIVATE/p' authority.pem >key.pem && \
                 sed -n '/BEGIN CERT/,/END CERT/p' authority.pem >certificate.pem && : >chain.pem && rm authority.pem";
    let own = PAGE
        .section("## An authority of your own")
        .command("(umask");
    run_in("other", &format!("{files} && {own} && peername ca show"));
}

/// No check service runs, so its line is a failure and the exit code is 3. Each check of the page's table has a line.
#[test]
fn doctor_prints_a_line_for_each_check_of_the_page() {
    let section = PAGE.section("## Check the setup");
    let (host, scratch) = (Host::new(), Scratch::new());
    let doctor = section.command("peername doctor");
    let state = format!("export XDG_STATE_HOME={}", scratch.path_text(""));
    let script = format!("{state}; peername ca init; {doctor} || echo exit code $?");
    let printed = shell(&host, &script);
    let names: Vec<_> = section
        .text()
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.split('|').nth(1).expect("a cell"))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(names.len() > 6, "{names:?}");
    assert_contains(&printed, &names);
    assert_contains(
        &printed,
        &["FAIL  check service: grpc://127.0.0.1:9191", "exit code 3"],
    );
}

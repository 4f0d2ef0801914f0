//! What is valid in a file, but may not be meant: `config check`, `doctor` and the log say so.

use super::{run, text};
use crate::harness::lab::{Host, Scratch};
use crate::harness::peername::Peername;

/// Clients of the family without a target go to the default of the contract, which may be another server: `config check`,
/// `doctor` and the log say so, and not where both targets or none are given.
#[test]
fn lone_target_warns_of_the_default_of_the_other_family() {
    let scratch = Scratch::new();
    let file = |targets: &str| {
        let table = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\ntrust = [\"any\"]\n";
        scratch.write("proxy.toml", &format!("{table}{targets}"))
    };
    let v4 = "target-v4 = \"127.0.0.1:9000\"\n";
    let v6 = "target-v6 = \"[::1]:9000\"\n";
    for (targets, warning) in [
        (
            v4,
            Some("IPv6 clients go to the default backend [::1]:443: set --target-v6"),
        ),
        (
            v6,
            Some("IPv4 clients go to the default backend 127.0.0.1:443: set --target-v4"),
        ),
        ("", None),
        (&format!("{v4}{v6}"), None),
    ] {
        let host = Host::new();
        let path = file(targets);
        let checked = Peername::run(&host, &["config", "check", &path]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        let examined = Peername::run(&host, &["doctor", "--config", &path]);
        let listens = [([127, 0, 0, 1], 8443).into()];
        let proxy = Peername::start(&host, &["proxy", "--config", &path], &listens);
        proxy.wait_started();
        for said in [text(&checked), text(&examined), proxy.log()] {
            match warning {
                Some(warning) => assert!(said.contains(warning), "{warning}: {said}"),
                None => assert!(!said.contains("default backend"), "{said}"),
            }
        }
    }
}

/// A reload refuses a change of these keys, which `config check` can't compare with a running process.
#[test]
fn config_check_names_keys_that_a_reload_does_not_change() {
    let scratch = Scratch::new();
    let table = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\ntrust = [\"any\"]\n";
    let check = |top: &str| {
        let path = scratch.write("proxy.toml", &format!("{top}{table}"));
        let checked = run(&["config", "check", &path]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        text(&checked)
    };
    let said = check("workers = 2\ndata-path = \"kernel\"\ndrain = \"5s\"\n");
    let note =
        "a reload refuses a change of workers, data-path: restart the process, or upgrade it";
    assert!(said.contains(note), "{said}");
    let said = check("drain = \"5s\"\n");
    assert!(!said.contains("a reload refuses"), "{said}");
}

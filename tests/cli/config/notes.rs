//! Notes on a file beside its errors: older names, keys at the wrong place, keys that a reload can't change.

use super::{run, text};
use crate::harness::lab::{Host, Scratch, assert_contains, assert_count};
use crate::harness::peername::Peername;

/// An older name of a key works, and is reported once for all tables. The newer names cause no warning, although the listeners
/// have a target of one family only.
#[test]
fn older_names_of_keys_are_reported_once() {
    let scratch = Scratch::new();
    let table = |key: &str, port: u16| {
        format!(
            "[[listen]]\n{key} = \"127.0.0.1:{port}\"\ntrust = \"any\"\ntarget = \"127.0.0.1:9000\"\n"
        )
    };
    let older = format!(
        "listeners = 1\n{}{}",
        table("address", 8443),
        table("address", 8444)
    );
    let newer = format!(
        "workers = 1\n{}{}",
        table("listen", 8443),
        table("listen", 8444)
    );
    let warnings = [
        "line 1, listeners: an older name of `workers`",
        "line 3, address: an older name of `listen`",
    ];
    for (file, expected) in [(older, &warnings[..]), (newer, &[])] {
        let host = Host::new();
        let path = scratch.write("proxy.toml", &file);
        let checked = Peername::run(&host, &["config", "check", &path]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        let listens = [8443, 8444].map(|port| ([127, 0, 0, 1], port).into());
        let proxy = Peername::start(&host, &["proxy", "--config", &path], &listens);
        proxy.wait_started();
        for printed in [text(&checked), proxy.log()] {
            assert_contains(&printed, expected);
            assert_count(&printed, "older name", expected.len());
        }
    }
}

#[test]
fn misplaced_key_is_reported_with_the_table_that_it_belongs_in() {
    let scratch = Scratch::new();
    let table = "[[listen]]\nlisten = \"127.0.0.1:1\"\ntrust = \"any\"\ntarget = \"127.0.0.1:2\"\n";
    for (file, report) in [
        (
            format!("trust = \"any\"\n{table}"),
            "line 1, trust: belongs in [[listen]] or in [[agent]]\n",
        ),
        (
            format!("{table}drain = \"1s\"\n"),
            "line 5, drain: belongs at the top, before the first table\n",
        ),
        (
            format!("{table}crc32c = true\n"),
            "line 5, crc32c: belongs in [[forward]]\n",
        ),
        (
            format!("rules = [\"allow a.test\"]\n{table}"),
            "line 1, rules: belongs in [intercept] or in [jail]\n",
        ),
        (
            format!("{table}[jail]\nallow = [\"a.test\"]\ndeny = [\"a.test/x\"]\n"),
            "line 7: `deny` beside `allow`: write all in `rules`, in their order: \"deny HOST\", \"allow HOST\", \"allow @FILE\"\n",
        ),
        (
            format!("{table}[jail]\nallow = [\"a.test\"]\nrules = [\"deny a.test/x\"]\n"),
            "line 6: `allow` beside `rules`: write all in `rules`, in their order: \"deny HOST\", \"allow HOST\", \"allow @FILE\"\n",
        ),
        (
            format!("{table}trsut = \"any\"\n"),
            "line 5, trsut: unknown key; did you mean `trust`?\n",
        ),
        (
            format!("{table}setup_routes = true\n"),
            "line 5, setup_routes: `setup-routes` belongs at the top, before the first table\n",
        ),
        (
            format!("{table}header_timeout = \"5s\"\n"),
            "line 5, header_timeout: unknown key; did you mean `header-timeout`?\n",
        ),
        (
            format!("{table}x = 1\n"),
            "line 5, x: unknown key; `peername config schema` prints all\n",
        ),
        (
            format!("{table}backend = \"127.0.0.1:2\"\n"),
            "line 5, backend: unknown key; did you mean `target`?\n",
        ),
        (
            "[[forward]]\nlisten = \"127.0.0.1:1\"\ntarget = \"127.0.0.1:2\"\n".to_owned(),
            "line 3, target: unknown key; did you mean `to`?\n",
        ),
        (
            format!("{table}[[lisen]]\naddress = [\"127.0.0.1:2\"]\n"),
            "line 5, lisen: unknown table; did you mean [[listen]]?\n",
        ),
        (
            format!("{table}[nothing]\nx = 1\n"),
            "line 5, nothing: unknown table; there are [[listen]], [[forward]], [intercept], [jail], [[agent]]\n",
        ),
    ] {
        let checked = run(&["config", "check", &scratch.write("proxy.toml", &file)]);
        assert_eq!(checked.status.code(), Some(3), "{}", text(&checked));
        assert!(
            text(&checked).ends_with(report),
            "{report}: {}",
            text(&checked)
        );
    }
}

/// Exit code 2 tells a service manager that another start would fail, too.
#[test]
fn config_check_refuses_what_no_start_can_use() {
    let scratch = Scratch::new();
    let long = format!("/tmp/{}", "a".repeat(120));
    let forward = "[[forward]]\nlisten = \"127.0.0.1:8080\"\n";
    for (file, report) in [
        (
            format!("admin = \"unix:{long}\"\n{forward}to = \"127.0.0.1:9\"\n"),
            format!("line 1, admin: \"unix:{long}\": use a path of at most 96 bytes\n"),
        ),
        (
            format!("{forward}to = \"127.0.0.1:0\"\n"),
            "line 3, to: \"127.0.0.1:0\": name the server's address and port\n".to_owned(),
        ),
    ] {
        let path = scratch.write("forward.toml", &file);
        for (args, code) in [
            (["config", "check", &path], 3),
            (["forward", "--config", &path], 2),
        ] {
            let output = run(&args);
            assert_eq!(output.status.code(), Some(code), "{}", text(&output));
            assert_contains(&text(&output), &[&report]);
        }
    }
}

/// `config check` and the command that reads the file mask secrets in errors, as errors about the command line do.
#[test]
fn secrets_of_wrong_values_are_not_printed() {
    let scratch = Scratch::new();
    let text_of = |keys: &str| format!("[intercept]\nlisten = \"127.0.0.1:8080\"\n{keys}\n");
    for (keys, report) in [
        (
            "upstream-proxy = \"https://user:s3cr3t@a.test:3128\"",
            "line 3, upstream-proxy: \"https://***@a.test:3128\": use http://HOST:PORT or ",
        ),
        (
            "check = [\"user:s3cr3t@a.test:1\"]",
            "line 3, check: \"***@a.test:1\": not a URL; write ",
        ),
        (
            "inject = \"a.test=Authorization: Bearer s3cr3t\"",
            "line 3, inject: \"a.test=…\": use HOST=HEADER@FILE, ",
        ),
    ] {
        let path = scratch.write("intercept.toml", &text_of(keys));
        for (args, code) in [
            (["config", "check", &path], 3),
            (["intercept", "--config", &path], 2),
        ] {
            let output = run(&args);
            let printed = text(&output);
            assert_eq!(output.status.code(), Some(code), "{printed}");
            assert_contains(&printed, &[report]);
            assert!(!printed.contains("s3cr3t"), "{printed}");
        }
    }
}

/// A reload refuses a change of these keys, which `config check` can't compare with a running process.
#[test]
fn config_check_names_keys_that_a_reload_does_not_change() {
    let scratch = Scratch::new();
    let table = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n";
    let check = |top: &str| {
        let path = scratch.write("proxy.toml", &format!("{top}{table}"));
        let checked = run(&["config", "check", &path]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        text(&checked)
    };
    let printed = check("workers = 2\ndata-path = \"kernel\"\ndrain = \"5s\"\n");
    let note = "a reload refuses a change of workers, data-path: restart the process, or `peername upgrade`";
    assert!(printed.contains(note), "{printed}");
    let printed = check("drain = \"5s\"\n");
    assert!(!printed.contains("a reload refuses"), "{printed}");
    let printed = check("admin = [\"127.0.0.1:9100\"]\nverbose = 1\nsetup-routes = true\n");
    let note = "a reload refuses a change of admin, verbose, setup-routes: restart";
    assert!(printed.contains(note), "{printed}");
    assert_contains(
        &printed,
        &["note: with setup-routes, a reload adds no rules"],
    );
}

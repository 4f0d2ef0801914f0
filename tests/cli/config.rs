//! The configuration file: errors name the line, and the documented examples are valid.

mod examples;
mod jail;
mod notes;

use std::fs;
use std::process::Output;

use crate::harness::lab::{Host, Scratch, stdout_text};
use crate::harness::peername::{Peername, words};

#[test]
fn every_error_has_its_position() {
    let table =
        "[[listen]]\naddress = [\"127.0.0.1:80\"]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n";
    let cases = [
        ("workers = 0\n", "line 1, workers: ", "from 1 to 1024"),
        (
            &format!("workers = 1\nlisteners = 2\n{table}"),
            "line 2, listeners: ",
            "is `workers`, which is given, too",
        ),
        (
            &format!("quiet = true\nverbose = 1\n{table}"),
            "line 2, verbose: ",
            "can't be combined with quiet",
        ),
        (
            &format!("admin-host = \"a.test\"\n{table}"),
            "line 1, admin-host: ",
            "has no effect without admin",
        ),
        (
            "wrokers = 2\n",
            "line 1, wrokers: ",
            "did you mean `workers`?",
        ),
        (
            r#""\u001b[2J\n\u202e" = 1"#,
            r"line 1, \u{1b}[2J\n\u{202e}: ",
            "unknown key",
        ),
        ("[[listen]\n", "line 1: ", "]"),
        (
            "workers = 1\nworkers = 2\n",
            "line 2: ",
            "not TOML: duplicate key `workers`;",
        ),
        (
            &format!("drain = 30\n{table}"),
            "line 1, drain: ",
            "the unit is missing, as in \"30s\"",
        ),
        (
            &format!("no-sandbox = \"true\"\n{table}"),
            "line 1, no-sandbox: ",
            "use true or false, without quotes",
        ),
        (
            &format!("workers = \"2\"\n{table}"),
            "line 1, workers: ",
            "use a number, without quotes",
        ),
        (
            "[[listen]]\ntarget = 127.0.0.1:8443\n",
            "line 2: ",
            "text needs quotes, as in \"127.0.0.1:8443\"",
        ),
        (
            "[[listen]]\ntrust = [192.0.2.10]\n",
            "line 2: ",
            "text needs quotes",
        ),
        ("drain = \"1s\"\n", "", "listen"),
        (
            "[[listen]]\nheader-timeout = \"5\"\n",
            "line 2, header-timeout: ",
            "5s",
        ),
        (
            "\n[[listen]]\naddress = [\n \"127.0.0.1:80\",\n \"nonsense\"\n]\n",
            "line 5, address: ",
            "use 192.0.2.1:80",
        ),
        (
            "[[listen]]\ntarget-v4 = \"[::1]:80\"\n",
            "line 2, target-v4: ",
            "not an IPv4 address",
        ),
        (
            "[[listen]]\nrelay = \"teleport\"\n",
            "line 2, relay: ",
            "splice",
        ),
        (
            "[[listen]]\n",
            "line 1, [[listen]]: ",
            "such as 192.0.2.0/24",
        ),
        (
            "[[listen]]\naddress = []\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n",
            "line 2, address: ",
            "an empty list",
        ),
        (
            "[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\nhealth-checks-from = []\n",
            "line 4, health-checks-from: ",
            "an empty list",
        ),
        (
            "[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"@/nonexistent\"]\n",
            "line 3, [[listen]]: ",
            "trust @/nonexistent: no such file; write",
        ),
        (
            "[[listen]]\nprotocol = \"both\"\nsend-proxy = \"v2\"\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n",
            "line 3, [[listen]]: ",
            "send-proxy is for TCP only",
        ),
        (
            "[[listen]]\nudp-header = \"spp\"\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n",
            "line 2, [[listen]]: ",
            "udp-header is for UDP",
        ),
        (
            "[[listen]]\naddress = [\"127.0.0.1:1-9\"]\ntrust = [\"any\"]\ntarget-v4 = \"127.0.0.1:same\"\n",
            "line 1, [[listen]]: ",
            "to itself",
        ),
        (
            &format!("{table}{table}"),
            "line 6, [[listen]]: ",
            "address 127.0.0.1:80 is given twice",
        ),
        (
            "[[listen]]\naddress = [\"127.0.0.1:80\"]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\ndynamic-destination = true\n\
             allow-destination = [\"127.0.0.1:80\"]\n",
            "line 6, [[listen]]: ",
            "allow-destination 127.0.0.1:80: the proxy would connect to itself",
        ),
    ];
    let scratch = Scratch::new();
    for (content, position, hint) in cases {
        let path = scratch.write("proxy.toml", content);
        for (args, code) in [
            (["config", "check", &path], 3),
            (["proxy", "--config", &path], 2),
        ] {
            let output = run(&args);
            let printed = text(&output);
            assert_eq!(output.status.code(), Some(code), "{content}: {printed}");
            assert!(printed.contains(&path), "{content}: {printed}");
            assert!(
                printed.contains(position) && printed.contains(hint),
                "{content}: {printed}"
            );
        }
    }
}

#[test]
fn config_check_reports_all_errors() {
    let scratch = Scratch::new();
    let path = scratch.write(
        "proxy.toml",
        "[[listen]]\n[[listen]]\ntrust = [\"10.0.0.0/33\"]\n[[listen]]\ntrust = [\"any\"]\n",
    );
    let output = run(&["config", "check", &path]);
    let printed = stdout_text(&output);
    let positions: Vec<_> = printed
        .lines()
        .map(|line| line.split(", ").nth(1))
        .collect();
    let expected = ["line 1", "line 1", "line 3", "line 2", "line 4"].map(Some);
    assert_eq!(positions, expected, "{printed}");
}

/// Wrong types, unknown keys and unknown values are reported with their lines; so are all errors of the syntax.
#[test]
fn config_check_reports_all_parse_errors() {
    let scratch = Scratch::new();
    let content = "workers = \"many\"\nwrokers = 3\n\n[[listen]]\naddress = 7\ntrust = [\n  \"any\",\n  5,\n]\n\
        [[listen]]\ntrsut = [\"any\"]\nrelay = \"fast\"\nheader-timeout = \"soon\"\n";
    for (content, lines) in [
        (
            content,
            &[
                "line 1", "line 2", "line 5", "line 11", "line 12", "line 13", "line 6", "line 4",
            ][..],
        ),
        (
            "workers = \n[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"\n",
            &["line 1", "line 4"],
        ),
        (
            "[intercept]\nlisten = [\"127.0.0.1:1\"]\ncheck = [\"ftp://x\"]\ncheck-timeout = \"1s\"\n",
            &["line 3"],
        ),
    ] {
        let path = scratch.write("proxy.toml", content);
        let output = run(&["config", "check", &path]);
        let printed = stdout_text(&output);
        let positions: Vec<_> = printed
            .lines()
            .filter_map(|line| line.split(", ").nth(1))
            .map(|position| position.split(':').next().unwrap_or(position))
            .collect();
        assert_eq!(positions, lines, "{printed}");
    }
}

/// Validation goes on after a mistake, and reports all contradictions of each table. An error that may be the consequence of a
/// mistake is left out.
#[test]
fn config_check_reports_errors_of_all_stages_at_once() {
    let content = "\
wrokers = 3
[[listen]]
address = [\"nonsense\", \"127.0.0.1:1\", \"more nonsense\"]
relay = \"fast\"
trust = [\"10.0.0.0/33\", \"everyone\", \"@/nonexistent\"]
deny-client = [\"nobody\"]
protocol = \"both\"
send-proxy = \"v2\"
[[listen]]
address = [\"127.0.0.1:80\"]
trsut = [\"any\"]
allow-destination = [\"10.0.0.0/8\"]
[[listen]]
address = [\"127.0.0.1:90\"]
trust = [\"any\"]
target-v4 = \"127.0.0.1:90\"
[[forward]]
udp-header = \"first\"
[intercept]
check-cache = \"1s\"
check-take = [\"x-user\"]
listen = [\"0.0.0.0:8080\"]
accept-proxy = [\"nowhere\"]
";
    let expected = [
        "line 1, wrokers: ",
        "line 3, address: \"nonsense\"",
        "line 3, address: \"more nonsense\"",
        "line 4, relay: ",
        "line 11, trsut: ",
        "line 20, check-cache: has no effect without check",
        "line 21, check-take: has no effect without check",
        "line 8, [[listen]]: send-proxy is for TCP only",
        "line 6, [[listen]]: deny-client \"nobody\"",
        "line 5, [[listen]]: trust \"10.0.0.0/33\"",
        "line 5, [[listen]]: trust \"everyone\"",
        "line 5, [[listen]]: trust @/nonexistent",
        "line 2, [[listen]]: target is missing",
        "line 13, [[listen]]: target 127.0.0.1:90: the proxy would connect to itself",
        "line 17, [[forward]]: listen needs an address",
        "line 18, [[forward]]: udp-header is for UDP",
        "line 17, [[forward]]: to needs the address of the server",
        "line 23, [intercept]: accept-proxy \"nowhere\"",
    ];
    let scratch = Scratch::new();
    let path = scratch.write("peername.toml", content);
    let output = run(&["config", "check", &path]);
    assert_eq!(output.status.code(), Some(3));
    let printed = stdout_text(&output);
    let lines: Vec<_> = printed
        .lines()
        .map(|line| line.strip_prefix(&format!("{path}, ")).expect(&path))
        .collect();
    assert_eq!(lines.len(), expected.len(), "{printed}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{expected}: {line}\n{printed}");
    }
    // A start, and a reload, which reads the file by the same function, report those of their own tables.
    for (command, other_tables) in [
        ("proxy", ["[[forward]]", "[intercept]"]),
        ("forward", ["[[listen]]", "[intercept]"]),
        ("intercept", ["[[forward]]", "[[listen]]"]),
    ] {
        let started = text(&run(&[command, "--config", &path]));
        for line in expected.iter().filter(|line| line.contains("]: ")) {
            let is_of_another = other_tables.iter().any(|table| line.contains(table));
            assert_eq!(started.contains(line), !is_of_another, "{line}: {started}");
        }
        assert!(started.contains("line 1, wrokers: "), "{started}");
    }
}

/// Each command reads its own tables, so only `config check` reports an error in another command's table.
#[test]
fn one_file_serves_all_commands() {
    let scratch = Scratch::new();
    let listen = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n";
    for (table, position, hint) in [
        (
            "[[forward]]\nlisten = [\"127.0.0.1:1\"]\n",
            "line 5, [[forward]]: ",
            "to needs the address",
        ),
        (
            "[[forward]]\nto = \"127.0.0.1\"\n",
            "line 6, to: ",
            "the port is missing",
        ),
        (
            "[[forward]]\nlisten = [\"127.0.0.1:1\"]\nto = \"127.0.0.1:2\"\nproxy-version = 1\ncrc32c = true\n",
            "line 8, [[forward]]: ",
            "proxy-version must be 2 for --crc32c: other",
        ),
        (
            "[intercept]\nidle-timeout = \"5\"\n",
            "line 6, idle-timeout: ",
            "5s",
        ),
        ("[intercept]\nchek = \"x\"\n", "line 6, chek: ", "`check`"),
        (
            "[intercept]\ncheck-timeout = \"1s\"\n",
            "line 6, check-timeout: ",
            "has no effect without check",
        ),
        (
            "[intercept]\nlisten = [\"203.0.113.1:80\"]\n",
            "line 6, [intercept]: ",
            "listen 203.0.113.1:80 would be an open proxy",
        ),
        (
            "[intercept]\ncheck-cache = \"1s\"\n",
            "line 6, check-cache: ",
            "has no effect without check",
        ),
    ] {
        let path = scratch.write("all.toml", &format!("{listen}{table}"));
        let command = if table.starts_with("[[") {
            "forward"
        } else {
            "intercept"
        };
        for (args, code) in [
            (&["config", "check", &path][..], 3),
            (&[command, "--config", &path], 2),
        ] {
            let output = run(args);
            let printed = text(&output);
            assert_eq!(output.status.code(), Some(code), "{table}: {printed}");
            assert!(
                printed.contains(position) && printed.contains(hint),
                "{table}: {printed}"
            );
        }
        // The target is the proxy's own listener, so that the proxy exits at once.
        let own = format!("{}{table}", listen.replace(":443", ":8443"));
        let output = run(&["proxy", "--config", &scratch.write("own.toml", &own)]);
        let printed = text(&output);
        assert!(
            printed.contains("to itself") && !printed.contains(hint),
            "{printed}"
        );
    }
    for (command, option) in [
        ("forward", "--to=127.0.0.1:80"),
        ("forward", "--crc32c"),
        ("intercept", "--ca=/tmp"),
        ("intercept", "--passthrough=a.test"),
    ] {
        let path = scratch.write("all.toml", listen);
        let output = run(&[command, "--config", &path, option]);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
        assert!(text(&output).contains("--config"), "{option}: {output:?}");
    }
}

/// It would be ambiguous to which table of the file an option of a listener belongs.
#[test]
fn listener_options_exclude_a_file() {
    let scratch = Scratch::new();
    let path = scratch.write(
        "proxy.toml",
        "[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n",
    );
    for option in ["--trust=any", "--listen=127.0.0.1:80", "--udp-header=spp"] {
        let output = run(&["proxy", "--config", &path, option]);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
        assert!(text(&output).contains("--config"), "{option}: {output:?}");
    }
}

/// An error that may pass by itself exits with 1, so that a service manager tries again; an invalid target exits with 2.
#[test]
fn unresolved_name_exits_1_and_invalid_target_2() {
    let scratch = Scratch::new();
    for (target, code) in [
        ("later.invalid:22", 1),
        ("127.0.0.1", 2),
        ("[::1]:22", 2),
        ("127.0.0.300:22", 2),
        ("http://later.invalid:80", 2),
        ("later.invalid:ssh", 2),
    ] {
        let output = run(&[
            "proxy",
            "--listen=127.0.0.1:8443",
            "--trust=any",
            "--target-v4",
            target,
        ]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        let table = format!(
            "[[listen]]\naddress = [\"127.0.0.1:8443\"]\ntrust = [\"any\"]\ntarget-v4 = \"{target}\"\n"
        );
        let output = run(&["proxy", "--config", &scratch.write("proxy.toml", &table)]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    }
    let output = run(&words(
        "forward --listen=127.0.0.1:8443 --to=later.invalid:22",
    ));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn published_schema_is_current() {
    let output = run(&["config", "schema"]);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.schema.json");
    let published = fs::read_to_string(path).expect("the published schema");
    assert_eq!(
        stdout_text(&output),
        published,
        "run: peername config schema >docs/config.schema.json"
    );
}

fn run(args: &[&str]) -> Output {
    Peername::run(&Host::new(), args)
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat()
}

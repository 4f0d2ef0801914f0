//! Golden tests: an old command line on the left, the native one on the right.

mod cloudflare;
mod go_mmproxy;
mod mmproxy_rs;
mod udppp;

use clap::Parser;

use super::program::OPTIONS;
use super::*;
use crate::Args;

#[test]
fn mmproxy_is_identified_by_its_command_line() {
    let table = [
        ("", Program::MmproxyRs),
        ("-h", Program::MmproxyRs),
        ("-l 0.0.0.0:1 -4 127.0.0.1:2", Program::MmproxyRs),
        ("-l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2", Program::MmproxyRs),
        (
            "-a /n -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -p tcp",
            Program::MmproxyRs,
        ),
        ("--listen-addr 0.0.0.0:1", Program::MmproxyRs),
        ("-nonsense", Program::MmproxyRs),
        (
            "-a /n -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2",
            Program::Cloudflare,
        ),
        ("--listen 0.0.0.0:1", Program::Cloudflare),
        ("-qP", Program::Cloudflare),
        ("-v", Program::Cloudflare),
    ];
    for (old, program) in table {
        let called = called_as(OsStr::new("/usr/local/bin/mmproxy"), &words(old));
        assert_eq!(called, Some(program), "{old}");
    }
}

/// The user has given none of the native options that an error names. A command between backticks is native as a whole.
#[test]
fn native_options_of_an_error_are_explained() {
    let translation = super::translate(&words("udppp -m 2 -l 1 -r 2 -h 127.0.0.1"));
    let translation = translation.unwrap().unwrap();
    let error = "--target 127.0.0.1:2 and --source-port any: run `peername routes add --listen x`";
    assert_eq!(
        translation.explain_options(error),
        "peername: --source-port is an option of peername proxy\n\
         peername: --target stands for udppp's -h and -r\n"
    );
    assert_eq!(
        translation.explain_options("bind(2): EADDRINUSE -- try '--help'"),
        ""
    );
}

/// The usual command line of mmproxy-rs is one of cloudflare/mmproxy, too: neither the port nor the mark may be lost.
#[test]
fn ambiguous_command_line_keeps_port_and_mark_and_is_reported() {
    let line = "mmproxy -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -a /n";
    let translation = super::translate(&words(line)).unwrap().unwrap();
    let native = native_line(&translation);
    assert!(native.contains("--mark 123"), "{native}");
    assert!(!native.contains("--source-port"), "{native}");
    let notes = translation.notes.concat();
    assert!(
        notes.contains("`mmproxy-rs` or `cloudflare-mmproxy`"),
        "{notes}"
    );
    for line in [
        "cloudflare-mmproxy -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -a /n",
        "mmproxy -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 --allowed-networks /n",
    ] {
        let native = native_line(&super::translate(&words(line)).unwrap().unwrap());
        assert!(native.contains("--source-port any"), "{native}");
    }
}

#[test]
fn program_is_selected_by_name_or_option() {
    let native = translated("go-mmproxy", "-v 1");
    for argv in [
        ["peername", "--compat", "go-mmproxy", "-v", "1"].as_slice(),
        &["peername", "--compat=go-mmproxy", "-v", "1"],
        &["mmproxy", "--compat=go-mmproxy", "-v", "1"],
        &["/opt/go-mmproxy", "-v", "1"],
    ] {
        let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let words = super::translate(&argv)
            .unwrap()
            .map(|translation| native_line(&translation));
        assert_eq!(words, native, "{argv:?}");
    }
    for argv in [
        "peername proxy",
        "peername proxy --compat=udppp",
        "peername",
    ] {
        assert!(super::translate(&words(argv)).is_none(), "{argv}");
    }
    for argv in ["peername --compat", "peername --compat squid -h"] {
        let exit = super::translate(&words(argv)).unwrap().unwrap_err();
        assert!(exit.code == 2 && exit.text.contains("udppp"), "{exit:?}");
    }
}

#[test]
fn command_lines_are_translated_into_valid_native_ones() {
    for (names, table, ending) in [
        (
            &["go-mmproxy"][..],
            go_mmproxy::TABLE,
            " --log-format go-mmproxy",
        ),
        (
            &["mmproxy", "mmproxy-rs"],
            mmproxy_rs::TABLE,
            " --log-format text -v",
        ),
        (
            &["mmproxy", "cloudflare-mmproxy"],
            cloudflare::TABLE,
            " --workers 1 --log-format text -v",
        ),
        (&["udppp"], udppp::TABLE, ""),
    ] {
        for (old, native) in table {
            for name in names {
                let native = format!("{native}{ending}");
                assert_eq!(translated(name, old), Ok(native), "{name} {old}");
            }
            // Names need a resolver.
            let old = old.replace("db.example", "127.0.0.1");
            let old = old.replace("game.example", "127.0.0.1");
            let translation = as_program(names[0], &old).unwrap();
            let line = [vec!["peername".into()], translation.words].concat();
            let parsed = Args::try_parse_from(&line);
            assert!(parsed.is_ok(), "{line:?}: {parsed:?}");
        }
    }
}

#[test]
fn wrong_usage_has_the_exit_codes_of_the_old_program() {
    for (name, table) in [
        ("go-mmproxy", go_mmproxy::EARLY_EXITS),
        ("mmproxy-rs", mmproxy_rs::EARLY_EXITS),
        ("cloudflare-mmproxy", cloudflare::EARLY_EXITS),
        ("udppp", udppp::EARLY_EXITS),
    ] {
        for (old, code, text) in table {
            let exit = as_program(name, old).unwrap_err();
            assert_eq!(exit.code, *code, "{name} {old}: {exit:?}");
            assert!(exit.text.contains(text), "{name} {old}: {exit:?}");
        }
    }
}

/// An option that is parsed and not translated would be accepted and ignored. Errors name it in place of its translation.
#[test]
fn each_option_has_an_effect_and_is_in_the_usage() {
    // Two without effect, and one that needs -dynamic-destination.
    let exempt = ["table", "quiet", "allow-destination"];
    // Without a long native option of their own.
    let unnamed = ["help", "v", "verbose", "force-real-client-port"];
    let required = "-l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -a /n";
    for (program, line, opts, usage) in [
        (
            "go-mmproxy",
            "",
            super::go_mmproxy::FLAGS,
            super::go_mmproxy::USAGE,
        ),
        (
            "mmproxy-rs",
            "",
            super::mmproxy_rs::OPTIONS,
            super::mmproxy_rs::USAGE,
        ),
        (
            "cloudflare-mmproxy",
            required,
            super::cloudflare::OPTIONS,
            super::cloudflare::USAGE,
        ),
    ] {
        let without = translated(program, line);
        let predecessor = Program::from_name(OsStr::new(program)).unwrap();
        let named: Vec<_> = OPTIONS
            .iter()
            .filter_map(|(native, _)| predecessor.own_option(native))
            .flat_map(in_usage)
            .collect();
        for opt in opts {
            let name = opt.name();
            let value = if opt.has_value() { "2" } else { "" };
            let with = translated(program, &format!("{line} --{name} {value}"));
            assert!(
                with != without || exempt.contains(&name),
                "{program} {name}"
            );
            assert!(in_usage(usage).any(|word| word == name), "{program} {name}");
            let is_named = opt.words.iter().any(|word| named.contains(word));
            let is_exempt = exempt.contains(&name) || unnamed.contains(&name);
            assert!(is_named || is_exempt, "{program} {name}");
        }
        for word in in_usage(usage) {
            let is_known = opts.iter().any(|opt| opt.words.contains(&word));
            assert!(is_known, "{program} {word}");
        }
    }
}

/// The options in a usage text, without dashes.
fn in_usage(usage: &str) -> impl Iterator<Item = &str> {
    usage
        .split([' ', ',', '\n'])
        .filter(|word| word.starts_with('-'))
        .map(|word| word.trim_start_matches('-'))
}

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn as_program(name: &str, old: &str) -> Result<Translation, EarlyExit> {
    let args = words(old);
    let environment = Environment {
        rust_log: None,
        cores: 2,
    };
    let program = called_as(OsStr::new(name), &args).unwrap();
    translate_for(program, &args, environment)
}

fn native_line(translation: &Translation) -> String {
    let words: Vec<_> = translation
        .words
        .iter()
        .map(|word| word.to_str().unwrap())
        .collect();
    words.join(" ")
}

fn translated(name: &str, old: &str) -> Result<String, EarlyExit> {
    as_program(name, old).map(|translation| native_line(&translation))
}

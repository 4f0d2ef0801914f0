//! A row for each command line: the words, and the options that result, or the error.

use super::*;
use ParserRules::{Argwerk, GetoptLong, GoFlag};

const OPTS: &[Opt] = &[
    Opt::with_value(&["mark", "m"]),
    Opt::with_value(&["target-v4", "to-v4", "4"]),
    Opt::with_value(&["target-v6", "6"]),
    Opt::with_optional_value(&["listen-addr", "l"]),
    Opt::switch(&["quiet", "q"]),
    Opt::switch(&["verbose", "v"]),
];

/// Parses command lines, and compares the options and the number of other words: `mark=7 quiet= +1`.
#[track_caller]
fn assert_parsed(rules: ParserRules, table: &[(&str, &str)]) {
    for (line, expected) in table {
        let args: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        let parsed = match parse(rules, OPTS, &args) {
            Ok(parsed) => parsed.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(parsed, *expected, "{rules:?} {line}");
    }
}

#[test]
fn go_flags_are_parsed() {
    assert_parsed(
        GoFlag,
        &[
            ("-mark x", "mark=x"),
            ("-mark=x", "mark=x"),
            ("--mark x", "mark=x"),
            ("--mark=x", "mark=x"),
            // A value may look like a flag.
            ("-mark -v", "mark=-v"),
            ("-mark=a=b", "mark=a=b"),
            ("-mark=", "mark="),
            // The first other word ends the flags.
            ("-q other -m x", "quiet="),
            ("-q - -m x", "quiet="),
            ("-q -- -m x", "quiet="),
            ("-q=t", "quiet="),
            ("-q -q=false", ""),
            ("-q=0", ""),
            ("-q true -m x", "quiet="),
            (
                "-q=yes",
                r#"invalid boolean value "yes" for -quiet: parse error"#,
            ),
            // There are no clusters.
            ("-m2", "flag provided but not defined: -m2"),
            ("-mark", "flag needs an argument: -mark"),
            ("---mark x", "bad flag syntax: ---mark"),
            ("-=x", "bad flag syntax: -=x"),
            ("-h", "flag: help requested"),
            ("--help", "flag: help requested"),
            ("-help=x", "flag: help requested"),
        ],
    );
}

#[test]
fn getopt_long_options_are_parsed() {
    assert_parsed(
        GetoptLong,
        &[
            ("-m123", "mark=123"),
            ("-m 123", "mark=123"),
            ("--mark=123", "mark=123"),
            ("--mark 123", "mark=123"),
            ("--ma=123", "mark=123"),
            ("--m 123", "mark=123"),
            // The value of a letter has no equals sign.
            ("-m=1", "mark==1"),
            ("-m -q", "mark=-q"),
            ("-qvm7", "quiet= verbose= mark=7"),
            ("-qvm 7", "quiet= verbose= mark=7"),
            ("a -q b", "quiet= +2"),
            ("-q -- -v", "quiet= +1"),
            ("-", "+1"),
            ("--target 1", "option '--target' is ambiguous"),
            ("--to=1", "target-v4=1"),
            ("--target-v4 1", "target-v4=1"),
            ("--4 1", "unrecognized option '--4'"),
            ("--nothing", "unrecognized option '--nothing'"),
            ("--quiet=1", "option '--quiet' doesn't allow an argument"),
            ("--mark", "option '--mark' requires an argument"),
            ("-x", "invalid option -- 'x'"),
            ("-qm", "option requires an argument -- 'm'"),
        ],
    );
}

#[test]
fn argwerk_options_are_parsed() {
    assert_parsed(
        Argwerk,
        &[
            ("-m 7", "mark=7"),
            ("--mark 7", "mark=7"),
            ("-mark 7", "mark=7"),
            ("--mark=7", "mark=7"),
            ("-mark=7", "mark=7"),
            ("-m=7", "mark=7"),
            // An optional value is no switch.
            ("-l -q", "quiet="),
            ("-l x -q", "listen-addr=x quiet="),
            ("-m -q", "mark=-q"),
            ("x", "unsupported argument: x"),
            ("-x", "unsupported switch: -x"),
            ("-m7", "unsupported switch: -m7"),
            ("--quiet=x", "unsupported switch: --quiet=x"),
            ("-m", "switch -m: missing its value"),
        ],
    );
}

#[test]
fn last_value_counts() {
    let args = ["-m", "x", "-m", "y"].map(OsString::from);
    let parsed = parse(GoFlag, OPTS, &args).unwrap();
    assert_eq!(parsed.last("mark"), Some(OsStr::new("y")));
}

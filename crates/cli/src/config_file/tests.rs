use std::any::TypeId;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, Command};

use super::*;

/// Valid values by the name of the value in help texts, for options that have neither a default nor a list of values.
const SAMPLES: [(&str, &str); 18] = [
    ("ADDR", "127.0.0.1:80"),
    ("ADDR|unix:PATH", "127.0.0.1:9300"),
    ("DIR", "/tmp"),
    ("DURATION", "5s"),
    ("FILE", "/dev/null"),
    ("HEADER", "x-user"),
    ("HOST", "example.com"),
    ("HOST:PORT|@FILE", "example.com:22"),
    ("HOST=DURATION", "example.com=5s"),
    ("HOST=HEADER@FILE", "example.com=x-key@/dev/null"),
    ("NAME", "localhost"),
    ("NAME=VALUE", "authority=example.com"),
    ("NETWORK", "10.0.0.0/8"),
    ("PATH", "/tmp"),
    ("RULE", "allow example.com"),
    ("TYPE", "application/grpc"),
    ("TYPE=VALUE", "authority=example.com"),
    ("WHERE", "10.0.0.0/8:443"),
];

/// Valid values of options for which the sample of their kind is not valid.
const SAMPLES_BY_OPTION: [(&str, &str); 8] = [
    ("target-v6", "[::1]:80"),
    ("check", "http://127.0.0.1:1/"),
    ("upstream-proxy", "http://127.0.0.1:1"),
    ("otlp", "http://127.0.0.1:1"),
    ("check-body", "5"),
    ("log-tlv", "authority"),
    ("allow", "example.com"),
    ("deny", "example.com"),
];

/// A valid value of the option.
fn sample(arg: &Arg) -> String {
    let option = arg.get_long().unwrap();
    if let Some((_, value)) = SAMPLES_BY_OPTION.iter().find(|(name, _)| *name == option) {
        return (*value).to_owned();
    }
    if let Some(possible) = arg.get_possible_values().first() {
        return possible.get_name().to_owned();
    }
    if let Some(default) = arg.get_default_values().first() {
        return default.to_str().unwrap().to_owned();
    }
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.first().map_or("", |name| name.as_str());
    SAMPLES
        .iter()
        .find(|(kind, _)| *kind == name)
        .map_or("5", |(_, value)| *value)
        .to_owned()
}

/// The option with this value, as a word of a command line and as a line of a table.
fn as_word_and_line(arg: &Arg, value: &str) -> (String, String) {
    let name = arg.get_long().unwrap();
    match arg.get_action() {
        ArgAction::SetTrue => (format!("--{name}"), format!("{name} = true\n")),
        ArgAction::Count => (format!("--{name}"), format!("{name} = 1\n")),
        // A number of the file has no quotes.
        _ if arg.get_value_parser().type_id() == TypeId::of::<usize>()
            && value.parse::<usize>().is_ok() =>
        {
            (format!("--{name}={value}"), format!("{name} = {value}\n"))
        }
        _ => (format!("--{name}={value}"), format!("{name} = {value:?}\n")),
    }
}

/// Whether the command line and the file accept these options.
fn verdicts<T: Args>(options: &[(String, String)]) -> (bool, bool) {
    let command = Command::new("peername").no_binary_name(true);
    let words = options.iter().map(|(word, _)| word);
    let matches = T::augment_args(command).try_get_matches_from(words);
    let text: String = options.iter().map(|(_, line)| line.as_str()).collect();
    let mut tables = Tables::new(Path::new("file"), &text, Vec::new());
    let table = tables.parse();
    tables.read_top::<T>(table);
    (matches.is_ok(), tables.errors().is_empty())
}

/// Asserts that the command line and the file have the same verdict on each option, on each pair of options, and on each option
/// with a value that most options refuse.
fn assert_same_verdicts<T: Args>() {
    let command = T::augment_args(Command::new("peername"));
    let args: Vec<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .collect();
    for arg in &args {
        let wrong = [as_word_and_line(arg, "no such value")];
        let (line, file) = verdicts::<T>(&wrong);
        assert_eq!(line, file, "{wrong:?}");
        let valid = as_word_and_line(arg, &sample(arg));
        assert_accepts_value::<T>(&valid.0);
        for other in &args {
            let mut pair = vec![valid.clone()];
            if arg.get_id() != other.get_id() {
                pair.push(as_word_and_line(other, &sample(other)));
            }
            let (line, file) = verdicts::<T>(&pair);
            assert_eq!(line, file, "{pair:?}");
        }
    }
}

/// Asserts that the option's value is valid; the option may require others.
fn assert_accepts_value<T: Args>(word: &str) {
    let command = Command::new("peername").no_binary_name(true);
    if let Err(error) = T::augment_args(command).try_get_matches_from([word]) {
        let is_value_refused = matches!(
            error.kind(),
            ErrorKind::InvalidValue | ErrorKind::ValueValidation
        );
        assert!(!is_value_refused, "{word}: {error}");
    }
}

#[test]
fn file_and_command_line_have_the_same_verdict() {
    assert_same_verdicts::<Top>();
    assert_same_verdicts::<Listener>();
    assert_same_verdicts::<Forward>();
    assert_same_verdicts::<Intercept>();
    assert_same_verdicts::<Jail>();
    assert_same_verdicts::<Policy>();
}

/// Names of values that are a path, or have one in some forms.
const NAMES_WITH_PATHS: [&str; 9] = [
    "ADDR|unix:PATH",
    "DIR",
    "FILE",
    "HOST:PORT|@FILE",
    "HOST=HEADER@FILE",
    "NETWORK",
    "PATH",
    "RULE",
    "URL",
];
/// Names of values that never have a path.
const NAMES_WITHOUT_PATHS: [&str; 23] = [
    "ADDR",
    "ADDR:PORT",
    "BYTES",
    "DIALECT",
    "DURATION",
    "FORMAT",
    "HEADER",
    "HOST",
    "HOST=DURATION",
    "HOW",
    "IP",
    "LIST",
    "N",
    "NAME",
    "NAME=VALUE",
    "POLICY",
    "PORT",
    "TEXT",
    "TYPE",
    "TYPE=VALUE",
    "VERSION",
    "WHAT",
    "WHERE",
];

/// Asserts that the name of each option's value tells whether the value is a path or has one.
fn assert_paths_are_named<T: Args>() {
    let path = TypeId::of::<std::path::PathBuf>();
    for arg in T::augment_args(Command::new("peername")).get_arguments() {
        let name = arg.get_value_names().map(|names| names[0].as_str());
        let is_path = arg.get_value_parser().type_id() == path;
        let is_named = matches!(name, Some("FILE" | "PATH" | "DIR"));
        assert_eq!(is_path, is_named, "--{}", arg.get_id());
        // A new name belongs into one of the lists, and into `file_path.rs` of crates/daemon if it has a path. A value without
        // a name has the option's.
        let unnamed = arg.get_id().as_str().to_uppercase();
        let is_known = name.is_none_or(|name| {
            name == unnamed
                || NAMES_WITH_PATHS.contains(&name)
                || NAMES_WITHOUT_PATHS.contains(&name)
        });
        assert!(is_known, "--{} {name:?}", arg.get_id());
    }
}

#[test]
fn names_of_values_tell_whether_they_have_a_path() {
    assert_paths_are_named::<Top>();
    assert_paths_are_named::<Listener>();
    assert_paths_are_named::<Forward>();
    assert_paths_are_named::<Intercept>();
    assert_paths_are_named::<Jail>();
    assert_paths_are_named::<Policy>();
}

/// A value that looks like an option is reported as it was written.
#[test]
fn values_are_reported_unchanged() {
    let text = "trust = [\"@/etc/my--lists/x\"]\naddress = [\"127.0.0.1:1\"]\n";
    let mut tables = Tables::new(Path::new("file"), text, Vec::new());
    let table = tables.parse();
    let origin = {
        let value = toml::Spanned::new(0..0, toml::de::DeValue::Table(table));
        let table = tables.read_table::<Listener>("[[listen]]", Some(value));
        table.unwrap().origin
    };
    assert_eq!(
        origin.locate("--trust @/etc/my--lists/x: No such file"),
        "file, line 1, [[listen]]: trust @/etc/my--lists/x: No such file"
    );
    assert_eq!(
        origin.locate("--listen 127.0.0.1:1 is given twice"),
        "file, line 2, [[listen]]: address 127.0.0.1:1 is given twice"
    );
}

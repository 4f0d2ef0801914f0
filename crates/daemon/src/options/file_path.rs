//! Relative paths in a configuration file are relative to its directory: the list that it names is the same wherever the command is
//! run.

use std::ffi::OsString;
use std::path::Path;

use clap::Arg;

/// The value of an option in this file. A relative path in it begins with the directory of the file.
pub(super) fn with_path_of(file: &Path, arg: &Arg, value: String) -> OsString {
    let directory = file.parent();
    match path_start(arg, &value).and_then(|start| value.split_at_checked(start)) {
        Some((before, path)) if !path.is_empty() => {
            let mut value = OsString::from(before);
            value.push(directory.map_or_else(|| path.into(), |directory| directory.join(path)));
            value
        }
        _ => value.into(),
    }
}

/// The offset of the path in a value; `None` if it has none. Its form is that of the option's value name.
fn path_start(arg: &Arg, value: &str) -> Option<usize> {
    let named = arg.get_value_names().and_then(|names| names.first());
    let rest = match named.map_or("", |name| name.as_str()) {
        "FILE" | "PATH" | "DIR" => Some(value),
        "NETWORK" | "HOST:PORT|@FILE" => value.strip_prefix('@'),
        // `allow @FILE`; the option `allow` has the rest only.
        "RULE" if arg.get_id() == "rules" => {
            let (_, rule) = value.split_once(' ').unwrap_or_default();
            rule.trim_start().strip_prefix('@')
        }
        "RULE" => value.trim_start().strip_prefix('@'),
        "HOST=HEADER@FILE" => value.split_once('@').map(|(_, path)| path),
        "URL" => value
            .split_once(':')
            .and_then(|(scheme, rest)| match scheme {
                "rego" => Some(rest),
                _ => rest.trim_start_matches("//").strip_prefix("unix:"),
            }),
        "ADDR|unix:PATH" => value.strip_prefix("unix:"),
        _ => None,
    };
    rest.map(|rest| value.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_below_the_directory_of_the_file() {
        for (named, value, expected) in [
            ("FILE", "a.log", "conf/a.log"),
            ("FILE", "../a.log", "conf/../a.log"),
            ("DIR", "/srv", "/srv"),
            ("NETWORK", "@trusted", "conf/trusted"),
            ("NETWORK", "10.0.0.0/8", "10.0.0.0/8"),
            ("HOST:PORT|@FILE", "@list", "conf/list"),
            ("RULE", "@my hosts.txt", "conf/my hosts.txt"),
            ("RULE", "npm.example/@scope/x", "npm.example/@scope/x"),
            ("HOST=HEADER@FILE", "a.example=X-Key@key", "conf/key"),
            ("URL", "rego:policy", "conf/policy"),
            ("URL", "grpc:unix:check.sock", "conf/check.sock"),
            ("URL", "grpc://unix:check.sock", "conf/check.sock"),
            ("URL", "http://a.example/unix:x", "http://a.example/unix:x"),
            ("ADDR|unix:PATH", "unix:admin.sock", "conf/admin.sock"),
            ("ADDR|unix:PATH", "unix:", "unix:"),
            ("TEXT", "unix:a", "unix:a"),
        ] {
            let arg = Arg::new("x").value_name(named);
            let found = with_path_of(Path::new("conf/file.toml"), &arg, value.to_owned());
            let found = found.into_string().unwrap();
            assert!(found.ends_with(expected), "{named} {value}: {found}");
            let prefix = found.strip_suffix(expected).unwrap();
            assert!(value.starts_with(prefix), "{named} {value}: {found}");
        }
    }

    #[test]
    fn action_of_a_rule_comes_before_its_path() {
        let arg = Arg::new("rules").value_name("RULE");
        for (value, expected) in [
            ("allow @hosts.txt", "allow @conf/hosts.txt"),
            ("allow npm.example/@scope/x", "allow npm.example/@scope/x"),
        ] {
            let found = with_path_of(Path::new("conf/file.toml"), &arg, value.to_owned());
            assert_eq!(found, expected);
        }
    }
}

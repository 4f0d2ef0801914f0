//! Relative paths in a configuration file are relative to its directory, so that they name the same files wherever the command
//! is run. `~/` is the home directory of the user who runs it, as in a shell: a file that several users share can name files of
//! each.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Arg;

/// Returns the value of an option of this file, in which a relative path was joined to the file's directory, or to the home
/// directory.
pub(super) fn resolve_relative_path(file: &Path, arg: &Arg, value: String) -> OsString {
    match path_start(arg, &value).and_then(|start| value.split_at_checked(start)) {
        Some((before, path)) if !path.is_empty() => {
            let mut value = OsString::from(before);
            value.push(resolve(file, path));
            value
        }
        _ => value.into(),
    }
}

fn resolve(file: &Path, path: &str) -> PathBuf {
    // Without HOME, std's home_dir() asks the name service, whose modules make system calls that a confined process may not.
    if let Some(below_home) = path.strip_prefix("~/")
        && let Some(home) = env::var_os("HOME")
    {
        return PathBuf::from(home).join(below_home);
    }
    match file.parent() {
        Some(directory) => directory.join(path),
        None => path.into(),
    }
}

/// Returns the offset of the path in a value, or `None` if the value has none. The option's value name tells the form of the
/// value.
fn path_start(arg: &Arg, value: &str) -> Option<usize> {
    let value_name = arg.get_value_names().and_then(|names| names.first());
    let path = match value_name.map_or("", |name| name.as_str()) {
        "FILE" | "PATH" | "DIR" => Some(value),
        "NETWORK" | "HOST:PORT|@FILE" => value.strip_prefix('@'),
        // `rules` has an action before the rule, as in `allow @FILE`; the option `allow` has the rule only.
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
    path.map(|path| value.len() - path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_path_is_joined_to_the_directory_of_the_file() {
        for (value_name, value, expected) in [
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
            let arg = Arg::new("x").value_name(value_name);
            let found = resolve_relative_path(Path::new("conf/file.toml"), &arg, value.to_owned());
            let found = found.into_string().unwrap();
            assert!(found.ends_with(expected), "{value_name} {value}: {found}");
            let prefix = found.strip_suffix(expected).unwrap();
            assert!(value.starts_with(prefix), "{value_name} {value}: {found}");
        }
    }

    #[test]
    fn tilde_is_the_home_directory() {
        let arg = Arg::new("hide").value_name("PATH");
        let found = resolve_relative_path(Path::new("conf/file.toml"), &arg, "~/.ssh".to_owned());
        assert_eq!(
            found,
            PathBuf::from(env::var_os("HOME").unwrap()).join(".ssh")
        );
    }

    #[test]
    fn action_of_a_rule_comes_before_its_path() {
        let arg = Arg::new("rules").value_name("RULE");
        for (value, expected) in [
            ("allow @hosts.txt", "allow @conf/hosts.txt"),
            ("allow npm.example/@scope/x", "allow npm.example/@scope/x"),
        ] {
            let found = resolve_relative_path(Path::new("conf/file.toml"), &arg, value.to_owned());
            assert_eq!(found, expected);
        }
    }
}

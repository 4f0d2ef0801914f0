//! Files of access rules (`@FILE`): one rule a line. `#` and `;` begin a comment, and blank lines are skipped.

use std::env;
use std::fmt::Display;
use std::path::Path;

use peername_daemon::usage::Usage;
use peername_observe::shell::quote;
use peername_sys::fs::text_file;

/// Reads a file, and parses each entry. `name`: the option as it was given, such as `--allow @FILE`.
///
/// # Errors
///
/// It can't be read, or an entry is invalid. Nothing of the file is quoted: it may be the wrong one.
pub(super) fn read<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Usage> {
    let text = text_file::read(path).map_err(|error| Usage(format!("{name}: {error}")))?;
    (1_u32..)
        .zip(without_mark(&text).lines().map(entry))
        .filter(|(_, entry)| !entry.is_empty())
        .map(|(number, entry)| {
            parse(entry).map_err(|error| match entry.starts_with('+') {
                true => Usage(format!(
                    "{name}, line {number}: it begins with +, as a line of a diff: leave that out"
                )),
                false => Usage(format!("{name}, line {number}: {error}")),
            })
        })
        .collect()
}

/// The text without the byte order mark with which some editors begin a file.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The same for a file that has to list something: no rule at all would allow everything.
///
/// # Errors
///
/// As [`read`]; or it lists nothing.
pub(super) fn read_some<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Usage> {
    let parsed = read(name, path, parse)?;
    match parsed.is_empty() {
        true => Err(Usage(format!(
            "{name}: the file lists no rule: lines that begin with # are comments"
        ))),
        false => Ok(parsed),
    }
}

/// The same for a list of what is allowed, which a jail can write.
pub(super) fn read_allowed<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Usage> {
    require_file(name, path)?;
    read_some(name, path, parse)
}

/// Verifies that a list of what is allowed exists.
///
/// # Errors
///
/// It does not: with the command that makes one.
pub(super) fn require_file(name: &str, path: &Path) -> Result<(), Usage> {
    if !matches!(path.try_exists(), Ok(false)) {
        return Ok(());
    }
    let place = match env::current_dir() {
        Ok(directory) if path.is_relative() => format!(" in {}", directory.display()),
        _ => String::new(),
    };
    Err(Usage(format!(
        "{name}: no such file{place}; make it: peername jail --learn {} -- CMD",
        quote(path)
    )))
}

/// A line without its comment, which begins at the start or after a space: in a word, `;` and `#` are of a path.
pub(super) fn entry(line: &str) -> &str {
    line.match_indices(['#', ';'])
        .filter_map(|(at, _)| line.get(..at))
        .find(|before| before.is_empty() || before.ends_with(char::is_whitespace))
        .unwrap_or(line)
        .trim()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use peername_intercept::authz::Rule;

    use super::*;

    #[test]
    fn file_has_one_rule_a_line_and_at_least_one() {
        let name = format!(
            "peername-rules-{:016x}",
            peername_sys::random::words::<1>().unwrap()[0]
        );
        let path = std::env::temp_dir().join(name);
        let read_text = |text: &str| {
            fs::write(&path, text).unwrap();
            read_some("--allow @FILE", &path, Rule::allow)
        };
        let rules = read_text("# hosts\n\n a.test ; the first\n*.b.test:443/x # the second\n");
        let rules: Vec<_> = rules.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["allow a.test", "allow *.b.test:443/x"]);
        let rules = read_text("\u{feff}a.test\n").unwrap();
        assert_eq!(
            rules.first().map(ToString::to_string).as_deref(),
            Some("allow a.test")
        );
        let error = read_text("a.test\n+b.test\n").unwrap_err().0;
        assert!(error.contains("line 2: it begins with +"), "{error}");
        // A path with it would be cut to one that allows more.
        assert!(read_text("a.test/x;y\n").is_err());
        let error = read_text("a.test\nsecret word\n").unwrap_err().0;
        assert!(
            error.contains("line 2") && !error.contains("secret"),
            "{error}"
        );
        let error = read_text("# none yet\n").unwrap_err().0;
        assert!(
            error.contains("no rule: lines that begin with # are comments"),
            "{error}"
        );
        fs::remove_file(&path).unwrap();
        let error = read_allowed("--check-list", Path::new("/no list"), Rule::allow);
        let expected =
            "--check-list: no such file; make it: peername jail --learn '/no list' -- CMD";
        assert_eq!(error.unwrap_err().0, expected);
    }
}

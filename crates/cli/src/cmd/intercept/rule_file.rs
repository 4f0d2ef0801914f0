//! Files of access rules (`@FILE`): one rule a line. `#` and `;` begin a comment, and blank lines are skipped.

use std::env;
use std::fmt::Display;
use std::path::Path;

use peername_daemon::usage::UsageError;
use peername_observe::shell::quote;
use peername_sys::fs::text_file;

/// Reads a file and parses each entry. `name` is the option with its value, such as `--allow @FILE`. An error quotes nothing of
/// the file: it may be the wrong one.
pub(super) fn read<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, UsageError> {
    let text = text_file::read(path).map_err(|error| UsageError(format!("{name}: {error}")))?;
    (1_u32..)
        .zip(strip_byte_order_mark(&text).lines().map(strip_comment))
        .filter(|(_, entry)| !entry.is_empty())
        .map(|(number, entry)| {
            parse(entry).map_err(|error| {
                UsageError(if entry.starts_with('+') {
                    format!(
                        "{name}, line {number}: it begins with +, as a line of a diff: leave that out"
                    )
                } else {
                    format!("{name}, line {number}: {error}")
                })
            })
        })
        .collect()
}

/// Reads a file as [`read`] does, and refuses one without entries: a list without rules would allow everything.
pub(super) fn read_nonempty<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, UsageError> {
    let parsed = read(name, path, parse)?;
    if parsed.is_empty() {
        return Err(UsageError(format!(
            "{name}: the file lists no rule: lines that begin with # are comments"
        )));
    }
    Ok(parsed)
}

/// Reads a list of what is allowed as [`read_nonempty`] does. If the list is missing, the error has the command that writes it.
pub(super) fn read_allowed<T, E: Display>(
    name: &str,
    path: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, UsageError> {
    require_file(name, path)?;
    read_nonempty(name, path, parse)
}

/// Refuses a missing list of what is allowed. The error has the command that writes the list.
pub(super) fn require_file(name: &str, path: &Path) -> Result<(), UsageError> {
    if !matches!(path.try_exists(), Ok(false)) {
        return Ok(());
    }
    let directory = match env::current_dir() {
        Ok(current) if path.is_relative() => format!(" in {}", current.display()),
        _ => String::new(),
    };
    Err(UsageError(format!(
        "{name}: no such file{directory}; make it: peername jail --learn {} -- CMD",
        quote(path)
    )))
}

/// Removes the byte order mark with which some editors begin a file.
pub(super) fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Removes a comment, which begins at the start of a line or after a space: in a word, `;` and `#` are part of a path.
pub(super) fn strip_comment(line: &str) -> &str {
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
    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn file_has_one_rule_a_line_and_at_least_one() {
        let file = NamedTempFile::new().unwrap();
        let read_text = |text: &str| {
            fs::write(&file, text).unwrap();
            read_nonempty("--allow @FILE", file.path(), Rule::allow)
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
        // In a path, `;` begins no comment: without what follows, the rule would allow more.
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
    }

    #[test]
    fn missing_list_is_reported_with_the_command_that_writes_it() {
        let error = read_allowed("--check-list", Path::new("/no list"), Rule::allow);
        let expected =
            "--check-list: no such file; make it: peername jail --learn '/no list' -- CMD";
        assert_eq!(error.unwrap_err().0, expected);
    }
}

//! The program accepts every command of the pages: its options exist, and their values are valid. What commands do is tested
//! page by page.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::lab::{Host, stderr_text};
use crate::harness::page::{Page, commands};
use crate::harness::peername::{BINARY, Peername};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn every_command_of_the_pages_is_valid() {
    let mut tried = 0;
    let mut wrong = Vec::new();
    let host = Host::new();
    for path in pages() {
        let text = fs::read_to_string(&path).expect("a page");
        let page = Page::new(text.leak());
        let fenced = ["sh", "console"]
            .into_iter()
            .flat_map(|language| page.fenced(language))
            .flat_map(commands);
        for command in page
            .commands()
            .into_iter()
            .chain(fenced)
            .chain(page.inline())
        {
            let Some(arguments) = peername_arguments(&command) else {
                continue;
            };
            tried += 1;
            // The arguments before --help are parsed before the help is printed.
            let arguments: Vec<_> = arguments
                .iter()
                .map(String::as_str)
                .chain(["--help"])
                .collect();
            let output = Peername::run(&host, &arguments);
            if !output.status.success() {
                let printed = stderr_text(&output);
                wrong.push(format!("{}: {command}: {printed}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 100, "{tried}");
}

/// Those of the commands that keep running, by their long names.
#[test]
fn pages_name_every_option() {
    let host = Host::new();
    let pages: String = pages()
        .iter()
        .map(|path| fs::read_to_string(path).expect("a page"))
        .collect();
    let named: HashSet<_> = pages
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .collect();
    for command in ["proxy", "forward", "exec", "agent", "intercept", "jail"] {
        let help = host.run(BINARY, &[command, "--help"]);
        let options: Vec<_> = help.lines().filter_map(long_option).collect();
        assert!(options.len() > 20, "{command}: {options:?}");
        let missing: Vec<_> = options
            .iter()
            .filter(|option| !named.contains(*option))
            .collect();
        assert!(missing.is_empty(), "{command}: {missing:?}");
    }
}

/// The option that a line of a help describes: `  -l, --listen <ADDR>` or `      --workers <N>`, less far to the right than the
/// descriptions.
fn long_option(line: &str) -> Option<&str> {
    let option = line.get(6..).filter(|text| text.starts_with("--"))?;
    option.split([' ', '[', '=', '.']).next()
}

/// README.md and the pages in docs/.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(format!("{REPOSITORY}/docs")).expect("the pages");
    docs.map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain([Path::new(REPOSITORY).join("README.md")])
        .collect()
}

/// The arguments of a peername command, without those of the program that it starts, and without what follows in the shell.
/// None for other commands, and for those that the page shortens.
fn peername_arguments(command: &str) -> Option<Vec<String>> {
    let command = command.strip_prefix("sudo ").unwrap_or(command);
    let command = command.strip_prefix("target/release/").unwrap_or(command);
    let arguments = command.strip_prefix("peername ")?;
    let words: Vec<_> = shell_words(arguments)
        .into_iter()
        .take_while(|word| !matches!(&**word, "--" | "|" | "&&" | "#") && !word.starts_with('>'))
        .collect();
    let is_shortened = words
        .iter()
        .any(|word| word.contains('…') || word.ends_with("..."));
    (!is_shortened).then(|| words.iter().map(|word| replace_placeholder(word)).collect())
}

/// Splits at blanks outside of quotes.
fn shell_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '\'' | '"') => quote = Some(c),
            None if c == ' ' => words.push(String::new()),
            _ => words.last_mut().expect("a word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Replaces a placeholder, such as PID, by a valid value.
fn replace_placeholder(word: &str) -> String {
    let value = match word {
        "PID" | "N" | "$MAINPID" => "1",
        "FILE" | "DIR" | "PATH" => "/nonexistent",
        "URL" => "http://127.0.0.1:9191",
        "ADDR" => "127.0.0.1:80",
        "CIDR" => "192.0.2.0/24",
        "COMMAND" => "proxy",
        other => other,
    };
    value.to_owned()
}

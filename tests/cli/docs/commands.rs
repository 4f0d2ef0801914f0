//! Every command of the pages is one that the program takes: its options exist, and their values are valid. What commands do is
//! tested page by page.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::lab::Host;
use crate::harness::page::{Page, commands};
use crate::harness::peername::Peername;

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
            .flat_map(|language| page.fenced(language));
        let fenced = fenced.flat_map(commands);
        for command in page
            .commands()
            .into_iter()
            .chain(fenced)
            .chain(page.inline())
        {
            let Some(words) = words_of_peername(&command) else {
                continue;
            };
            tried += 1;
            // What precedes this option is parsed before it is obeyed.
            let words: Vec<_> = words.iter().map(String::as_str).chain(["--help"]).collect();
            let output = Peername::run(&host, &words);
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!("{}: {command}: {said}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 100, "{tried}");
}

/// README.md and what is in docs/.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(format!("{REPOSITORY}/docs")).expect("the pages");
    docs.map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain([Path::new(REPOSITORY).join("README.md")])
        .collect()
}

/// The arguments of a command of this program, up to those of another program and to what belongs to the shell; none for other
/// commands, and for those that the page shortens.
fn words_of_peername(command: &str) -> Option<Vec<String>> {
    let command = command.strip_prefix("sudo ").unwrap_or(command);
    let command = command.strip_prefix("target/release/").unwrap_or(command);
    let arguments = command.strip_prefix("peername ")?;
    let is_ours =
        |word: &String| !matches!(&**word, "--" | "|" | "&&" | "#") && !word.starts_with('>');
    let words: Vec<_> = shell_words(arguments)
        .into_iter()
        .take_while(is_ours)
        .collect();
    let is_shortened = words
        .iter()
        .any(|word| word.contains('…') || word.ends_with("..."));
    (!is_shortened).then(|| words.iter().map(|word| filled_in(word)).collect())
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

/// A value in place of the name of one.
fn filled_in(word: &str) -> String {
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

//! The predecessors' files of networks that may send headers.
//!
//! All of them can be read natively (`--trust @FILE`): a line holds a network, comments and blank lines
//! don't count, and host bits are ignored. The programs differ in how they treat a list that is empty or
//! has malformed lines.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;

use ipnet::IpNet;
use peername_server::trust_list::{TrustError, TrustList};
use peername_sys::fs::text_file;

use super::translation::TRUST_ANY_WARNING;

/// For programs that trusted every peer where the list was empty. A file that can't be read or parsed is left to the
/// native option, which refuses it.
pub(super) fn trust_or_any(
    path: Option<&OsStr>,
    option: &str,
    notes: &mut Vec<String>,
) -> Vec<OsString> {
    match path {
        Some(path) if !is_empty_list(path) => vec![at(path)],
        Some(path) => {
            let path = path.to_string_lossy();
            notes.push(format!("{TRUST_ANY_WARNING}: {path} names no network"));
            vec!["any".into()]
        }
        None => {
            notes.push(format!(
                "{TRUST_ANY_WARNING}: name the balancers' networks with {option} FILE"
            ));
            vec!["any".into()]
        }
    }
}

/// For cloudflare/mmproxy, which skipped malformed lines: the file if all its lines are valid, else the valid lines one by
/// one. A list without any is left to the native option, which refuses it.
pub(super) fn valid_lines(path: &OsStr, notes: &mut Vec<String>) -> Vec<OsString> {
    let Ok(text) = text_file::read(path.as_ref()) else {
        return vec![at(path)];
    };
    let mut good = Vec::new();
    let mut all = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        match line.split_ascii_whitespace().next() {
            Some(entry) if is_network(entry) => {
                // Behind a blank anything may stand, where natively only a comment does.
                let rest = line.get(entry.len()..).unwrap_or_default().trim_start();
                all &= rest.is_empty() || rest.starts_with([';', '#']);
                good.push(entry.into());
            }
            _ => {
                let path = path.to_string_lossy();
                notes.push(format!("{path}, line {number}: no network, ignored"));
                all = false;
            }
        }
    }
    if all || good.is_empty() {
        vec![at(path)]
    } else {
        good
    }
}

fn is_network(entry: &str) -> bool {
    entry.parse::<IpNet>().is_ok() || entry.parse::<IpAddr>().is_ok()
}

fn is_empty_list(path: &OsStr) -> bool {
    let list = TrustList::parse(&[at(path).to_string_lossy()]);
    matches!(list, Err(TrustError::EmptyFile { .. }))
}

fn at(path: &OsStr) -> OsString {
    let mut word = OsString::from("@");
    word.push(path);
    word
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file that is there while `look` is at it.
    fn with_file<T>(name: &str, text: &str, look: impl FnOnce(&OsStr) -> T) -> T {
        let name = format!("peername-allow-list-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        let seen = look(path.as_os_str());
        fs::remove_file(&path).unwrap();
        seen
    }

    fn trusts(words: &[OsString], peer: &str) -> bool {
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        TrustList::parse(&words)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn files_as_they_are_handed_out() {
        let example = "# This is a comment\n192.168.0.0/24 # allow local\n";
        let prefixes = "205.220.224.0/21";
        for (text, inside) in [(example, "192.168.0.9"), (prefixes, "205.220.231.1")] {
            with_file("example", text, |path| {
                let mut notes = Vec::new();
                let words = trust_or_any(Some(path), "-a", &mut notes);
                assert_eq!((words.as_slice(), notes.len()), (&[at(path)][..], 0));
                assert!(trusts(&words, inside) && !trusts(&words, "192.0.2.1"));
            });
        }
    }

    #[test]
    fn no_list_and_an_empty_one_mean_everybody_and_say_so() {
        let mut notes = Vec::new();
        assert_eq!(trust_or_any(None, "-a", &mut notes), ["any"]);
        with_file("empty", "# nobody yet\n\n", |path| {
            assert_eq!(trust_or_any(Some(path), "-a", &mut notes), ["any"]);
        });
        assert!(notes.len() == 2 && notes.iter().all(|note| note.starts_with(TRUST_ANY_WARNING)));
    }

    #[test]
    fn a_list_that_is_not_there_or_not_understood_is_not_everybody() {
        let mut notes = Vec::new();
        let words = trust_or_any(Some(OsStr::new("/nonexistent")), "-a", &mut notes);
        assert_eq!(words, ["@/nonexistent"]);
        with_file("bad", "lb.example\n", |path| {
            let words = trust_or_any(Some(path), "-a", &mut notes);
            assert!(TrustList::parse(&[words[0].to_str().unwrap()]).is_err());
        });
        assert!(notes.is_empty());
    }

    #[test]
    fn bad_lines_are_skipped_where_they_were() {
        let mut notes = Vec::new();
        let text = "; networks\n10.1.2.3/8\nlb.example\n192.0.2.0/24 office\n";
        with_file("lenient", text, |path| {
            let words = valid_lines(path, &mut notes);
            assert_eq!(words, ["10.1.2.3/8", "192.0.2.0/24"]);
            assert!(trusts(&words, "10.9.9.9"));
        });
        assert!(notes.len() == 1 && notes[0].ends_with(", line 3: no network, ignored"));
        with_file("strict", "0.0.0.0/0\n::/0\n", |path| {
            assert_eq!(valid_lines(path, &mut notes), [at(path)]);
        });
        with_file("nobody", "any\n", |path| {
            let words = valid_lines(path, &mut notes);
            assert_eq!(words, [at(path)]);
        });
    }
}

//! Translates the predecessors' trust lists: files of networks that may send headers.
//!
//! The native option reads them, too (`--trust @FILE`): a line is a network, comments and blank lines are skipped, and host
//! bits are ignored. The programs differ in how they treat a list that is empty or has malformed lines.

use std::ffi::{OsStr, OsString};

use peername_proto::{ParseNetworkError, parse_network};
use peername_server::access::network_set::{NetworkListError, NetworkSet};
use peername_sys::fs::text_file;

use super::translation::TRUST_ANY_WARNING;

/// The values of `--trust` for programs that trusted every peer if the list was empty or absent. A file that can't be read or
/// parsed is left to the native option, which refuses it.
pub(super) fn trust_or_any(
    path: Option<&OsStr>,
    option: &str,
    notes: &mut Vec<String>,
) -> Vec<OsString> {
    match path {
        Some(path) if !is_empty_list(path) => vec![file_value(path)],
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

/// The values of `--trust` for cloudflare/mmproxy, which skipped malformed lines: the file if all its lines are valid, else
/// each valid line. A list without a valid line is left to the native option, which refuses it.
pub(super) fn trust_valid_lines(path: &OsStr, notes: &mut Vec<String>) -> Vec<OsString> {
    let Ok(text) = text_file::read(path.as_ref()) else {
        return vec![file_value(path)];
    };
    let mut valid = Vec::new();
    let mut is_valid_natively = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        match line.split_ascii_whitespace().next() {
            Some(entry) if let Some(value) = network_value(entry) => {
                // The old program ignored everything after a blank; the native option takes only a comment there.
                let rest = line.get(entry.len()..).unwrap_or_default().trim_start();
                is_valid_natively &= rest.is_empty() || rest.starts_with([';', '#']);
                valid.push(value.into());
            }
            _ => {
                let path = path.to_string_lossy();
                notes.push(format!("{path}, line {number}: not a network, ignored"));
                is_valid_natively = false;
            }
        }
    }
    if is_valid_natively || valid.is_empty() {
        vec![file_value(path)]
    } else {
        valid
    }
}

/// The value of `--trust` for a network or an address; `None` for anything else. Host bits, which only files may have, are
/// cleared.
fn network_value(entry: &str) -> Option<String> {
    match parse_network(entry) {
        Ok(_) => Some(entry.to_owned()),
        Err(ParseNetworkError::HostBits { network, .. }) => Some(network.to_string()),
        Err(ParseNetworkError::Form) => None,
    }
}

fn is_empty_list(path: &OsStr) -> bool {
    let list = NetworkSet::read_required("--trust", &[file_value(path).to_string_lossy()]);
    matches!(list, Err(NetworkListError::EmptyFile { .. }))
}

/// The value of `--trust` that names a file.
fn file_value(path: &OsStr) -> OsString {
    let mut word = OsString::from("@");
    word.push(path);
    word
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Calls `test` with a file that has this text.
    fn with_file(text: &str, test: impl FnOnce(&OsStr)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        test(file.path().as_os_str());
    }

    fn trusts(words: &[OsString], peer: &str) -> bool {
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        NetworkSet::read_required("--trust", &words)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn published_files_are_accepted() {
        let example = "# This is a comment\n192.168.0.0/24 # allow local\n";
        let prefixes = "205.220.224.0/21";
        for (text, inside) in [(example, "192.168.0.9"), (prefixes, "205.220.231.1")] {
            with_file(text, |path| {
                let mut notes = Vec::new();
                let words = trust_or_any(Some(path), "-a", &mut notes);
                assert_eq!(
                    (words.as_slice(), notes.len()),
                    (&[file_value(path)][..], 0)
                );
                assert!(trusts(&words, inside) && !trusts(&words, "192.0.2.1"));
            });
        }
    }

    #[test]
    fn absent_and_empty_lists_trust_every_peer_with_a_warning() {
        let mut notes = Vec::new();
        assert_eq!(trust_or_any(None, "-a", &mut notes), ["any"]);
        with_file("# none yet\n\n", |path| {
            assert_eq!(trust_or_any(Some(path), "-a", &mut notes), ["any"]);
        });
        assert!(notes.len() == 2 && notes.iter().all(|note| note.starts_with(TRUST_ANY_WARNING)));
    }

    #[test]
    fn unreadable_and_malformed_lists_do_not_trust_every_peer() {
        let mut notes = Vec::new();
        let words = trust_or_any(Some(OsStr::new("/nonexistent")), "-a", &mut notes);
        assert_eq!(words, ["@/nonexistent"]);
        with_file("lb.example\n", |path| {
            let words = trust_or_any(Some(path), "-a", &mut notes);
            assert!(NetworkSet::read_required("--trust", &[words[0].to_str().unwrap()]).is_err());
        });
        assert!(notes.is_empty());
    }

    #[test]
    fn cloudflare_list_skips_malformed_lines() {
        let mut notes = Vec::new();
        let text = "; networks\n10.1.2.3/8\nlb.example\n192.0.2.0/24 office\n";
        with_file(text, |path| {
            let words = trust_valid_lines(path, &mut notes);
            assert_eq!(words, ["10.0.0.0/8", "192.0.2.0/24"]);
            assert!(trusts(&words, "10.9.9.9"));
        });
        assert!(notes.len() == 1 && notes[0].ends_with(", line 3: not a network, ignored"));
        with_file("0.0.0.0/0\n::/0\n", |path| {
            assert_eq!(trust_valid_lines(path, &mut notes), [file_value(path)]);
        });
        with_file("any\n", |path| {
            let words = trust_valid_lines(path, &mut notes);
            assert_eq!(words, [file_value(path)]);
        });
    }
}

//! The interpreter line of a script (`#!`, execve(2)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The interpreter that a file names in its first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// The file is no script.
    None,
    /// The file at this path.
    File(PathBuf),
    /// The program of this name, searched for in PATH: `#!/usr/bin/env NAME`.
    Searched(OsString),
}

/// Reads the interpreter from the first line of a file, and no more of that line than the kernel reads.
pub(super) fn interpreter(file: &File) -> io::Result<Interpreter> {
    let mut start = [0; FIRST_LINE];
    let n = file.read_at(&mut start, 0)?;
    Ok(parse(start.get(..n).unwrap_or_default()))
}

fn parse(start: &[u8]) -> Interpreter {
    let Some(line) = start.strip_prefix(b"#!") else {
        return Interpreter::None;
    };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| b" \t\r".contains(byte))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let Some(path) = words.next().map(PathBuf::from) else {
        return Interpreter::None;
    };
    if path.file_name() != Some(OsStr::new("env")) {
        return Interpreter::File(path);
    }
    // The program follows the options of env(1), such as -S, and its assignments.
    let is_program =
        |word: &&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
    match words.find(is_program) {
        Some(name) => Interpreter::Searched(name.to_owned()),
        None => Interpreter::File(path),
    }
}

/// BINPRM_BUF_SIZE of the kernel (`linux/binfmts.h`), which ignores the rest of the line.
const FIRST_LINE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_line_names_a_file_or_by_env_a_program() {
        let file = |path: &str| Interpreter::File(path.into());
        let searched = |name: &str| Interpreter::Searched(name.into());
        assert_eq!(parse(b"#!/bin/sh\necho"), file("/bin/sh"));
        assert_eq!(parse(b"#! /usr/bin/awk -f\n"), file("/usr/bin/awk"));
        assert_eq!(parse(b"#!/usr/bin/env python3\n"), searched("python3"));
        assert_eq!(
            parse(b"#!/usr/bin/env -S A=1 node --x\r\n"),
            searched("node")
        );
        assert_eq!(parse(b"#!/usr/bin/env\n"), file("/usr/bin/env"));
        assert_eq!(parse(b"#!/no/newline"), file("/no/newline"));
        for no_script in [&b""[..], b"#", b"#!", b"#!\n/bin/sh", b"\x7fELF"] {
            assert_eq!(parse(no_script), Interpreter::None, "{no_script:?}");
        }
    }
}

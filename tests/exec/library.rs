//! The libraries as files: what they require of a program, and that they can't panic.

mod libproxyproto;

use std::path::Path;
use std::process::Command;

use crate::harness::lab::assert_succeeds;
use crate::harness::rig::exec::{built_connect_library, built_library};

/// Runs a tool on a library, and returns what it prints.
fn inspect(program: &str, args: &[&str], library: &Path) -> String {
    let path = library.to_str().expect("text");
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (make setup)"));
    assert_succeeds(&output)
}

#[test]
fn libraries_need_no_other_library() {
    for library in [built_library(), built_connect_library()] {
        let dynamic = inspect("readelf", &["--dynamic", "--wide"], library);
        assert!(dynamic.contains("(SYMTAB)"), "{dynamic}");
        assert!(!dynamic.contains("NEEDED"), "{dynamic}");
    }
}

/// glibc and musl both have these; weak symbols may be missing.
#[test]
fn libraries_import_only_what_every_c_library_has() {
    let allowed = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
    for library in [built_library(), built_connect_library()] {
        let symbols = inspect("nm", &["--dynamic", "--undefined-only"], library);
        for line in symbols.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                ["w", _] => {}
                ["U", name] => assert!(allowed.contains(&name), "{symbols}"),
                _ => panic!("{line}"),
            }
        }
    }
}

#[test]
fn libraries_export_the_intercepted_functions_and_their_version() {
    let server_symbols = [
        "accept",
        "accept4",
        "execl",
        "execle",
        "execlp",
        "execv",
        "execve",
        "execveat",
        "execvp",
        "execvpe",
        "fexecve",
        "getpeername",
        "getsockname",
        "getsockopt",
        "listen",
        "peername_preload_7",
        "posix_spawn",
        "posix_spawnp",
    ];
    let client_symbols = [
        "connect",
        "peername_connect_1",
        "sendmmsg",
        "sendmsg",
        "sendto",
    ];
    assert_eq!(exported(built_library()), server_symbols);
    assert_eq!(exported(built_connect_library()), client_symbols);
}

fn exported(library: &Path) -> Vec<String> {
    let symbols = inspect("nm", &["--dynamic", "--defined-only"], library);
    let mut names: Vec<String> = symbols
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().last())
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names
}

/// The panic handler's message is in the file only if some code path leads to the handler.
#[test]
fn libraries_cannot_panic() {
    for library in [built_library(), built_connect_library()] {
        let text = std::fs::read(library).expect("the library");
        let handler = b"preloaded library panicked";
        let source = include_bytes!("../../crates/preload/common/src/lib.rs");
        assert!(source.windows(handler.len()).any(|part| part == handler));
        assert!(!text.windows(handler.len()).any(|part| part == handler));
    }
}

//! The libraries as files: what they require of a program, and that they can't panic.

mod libproxyproto;

use std::path::Path;
use std::process::Command;

use crate::harness::rig::exec::{built_connect_library, built_library};

fn look(program: &str, args: &[&str], library: &Path) -> String {
    let path = library.to_str().expect("text");
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (make setup)"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn libraries_need_no_other_library() {
    for library in [built_library(), built_connect_library()] {
        let dynamic = look("readelf", &["--dynamic", "--wide"], library);
        assert!(!dynamic.contains("NEEDED"), "{dynamic}");
    }
}

/// glibc and musl both have these; weak symbols may be missing.
#[test]
fn libraries_import_only_what_every_c_library_has() {
    let allowed = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
    for library in [built_library(), built_connect_library()] {
        let symbols = look("nm", &["--dynamic", "--undefined-only"], library);
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
fn libraries_export_the_calls_and_their_marks() {
    let servers = [
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
        "peername_preload_5",
        "posix_spawn",
        "posix_spawnp",
    ];
    let clients = [
        "connect",
        "peername_connect_1",
        "sendmmsg",
        "sendmsg",
        "sendto",
    ];
    assert_eq!(exported(built_library()), servers);
    assert_eq!(exported(built_connect_library()), clients);
}

fn exported(library: &Path) -> Vec<String> {
    let symbols = look("nm", &["--dynamic", "--defined-only"], library);
    let names = symbols
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().last());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// The text of the panic handler is present only if some path leads to it.
#[test]
fn libraries_cannot_panic() {
    for library in [built_library(), built_connect_library()] {
        let text = std::fs::read(library).expect("the library");
        let handler = b"preloaded library panicked";
        assert!(!text.windows(handler.len()).any(|part| part == handler));
    }
}

//! The library as a file: what it needs of a program, and that it can't panic.

use std::process::Command;

use super::rig::library;

fn look(program: &str, args: &[&str]) -> String {
    let path = library().to_str().expect("text");
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (make setup)"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn needs_no_other_library() {
    let dynamic = look("readelf", &["--dynamic", "--wide"]);
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
}

/// glibc and musl both have these; what is weak may be missing.
#[test]
fn imports_what_every_c_library_has() {
    let allowed = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
    let symbols = look("nm", &["--dynamic", "--undefined-only"]);
    for line in symbols.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["w", _] => {}
            ["U", name] => assert!(allowed.contains(&name), "{symbols}"),
            _ => panic!("{line}"),
        }
    }
}

#[test]
fn exports_the_calls_and_its_mark() {
    let symbols = look("nm", &["--dynamic", "--defined-only"]);
    let mut names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().last())
        .collect();
    names.sort_unstable();
    let expected = [
        "accept",
        "accept4",
        "getpeername",
        "getsockname",
        "listen",
        "peername_preload_1",
    ];
    assert_eq!(names, expected);
}

/// The text of the panic handler is there only if some path leads to it.
#[test]
fn has_no_path_to_a_panic() {
    let text = std::fs::read(library()).expect("the library");
    let handler = b"preloaded library panicked";
    assert!(!text.windows(handler.len()).any(|part| part == handler));
}

//! `checks/`, the scripts of `make check`.

use std::fs;
use std::process::{Command, Output};

use crate::harness::lab::{Scratch, assert_contains};

const MODULE_CYCLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../checks/module_cycles.py");

/// A reader of one module has to know the other one even if it only re-exports it.
#[test]
fn cycle_through_a_reexport_fails_the_check() {
    let krate = Scratch::new();
    fs::create_dir(krate.path("src")).expect("a folder");
    krate.write("src/lib.rs", "mod a;\nmod b;\n");
    krate.write("src/a.rs", "pub use crate::b::B;\n\npub struct A;\n");
    krate.write("src/b.rs", "pub struct B;\n");
    let output = check_cycles(&krate);
    assert!(output.status.success(), "{output:?}");
    krate.write("src/b.rs", "use crate::a::A;\n\npub struct B(A);\n");
    let output = check_cycles(&krate);
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_contains(&text, &["an import cycle of 2 modules"]);
}

fn check_cycles(krate: &Scratch) -> Output {
    let mut check = Command::new(MODULE_CYCLES);
    check.arg(krate.path("")).output().expect("the check")
}

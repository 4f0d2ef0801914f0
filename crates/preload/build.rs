//! How the library is linked when it is built to be shipped.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_FREESTANDING").is_some() {
        // No start-up objects: they belong to a C library, and the program may have another one.
        println!("cargo::rustc-cdylib-link-arg=-nostartfiles");
        // Every import is looked up when the library is loaded, not in the middle of accept(2).
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-z,noexecstack");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed,-soname,libpeername.so");
    }
}

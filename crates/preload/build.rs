//! Linker arguments of the shipped libraries (feature `freestanding`).

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_FREESTANDING").is_some() {
        // Neither start-up objects nor a C library: the program may have another one.
        println!("cargo::rustc-cdylib-link-arg=-nostdlib");
        // Bind every import when the library is loaded (-z now), not in the middle of accept(2).
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-z,noexecstack");
        let name = match env::var("CARGO_PKG_NAME").as_deref() {
            Ok("peername-preload-connect") => "libpeername_connect.so",
            _ => "libpeername.so",
        };
        println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed,-soname,{name}");
    }
}

//! Compiles the program of `bpf/` with clang, which alone of the common compilers makes eBPF everywhere.
//!
//! Where it can't be compiled, all else is built: what is in its place is empty, and says so when it is asked for.

use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = format!("{}/udp.o", variable("OUT_DIR"));
    // Debian keeps asm/types.h apart for each architecture.
    let asm = format!(
        "-I/usr/include/{}-linux-gnu",
        variable("CARGO_CFG_TARGET_ARCH")
    );
    // The byte order of all that peername is built for.
    let compiled = Command::new(&clang)
        .args([
            "-target", "bpfel", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", &asm,
        ])
        .args(["-c", "bpf/udp.c", "-o", &object])
        .output();
    let why = match compiled {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    for line in why.lines() {
        println!("cargo::warning={clang}: {line}");
    }
    println!(
        "cargo::warning=built without --data-path kernel, which needs clang and the headers of libbpf and the \
         kernel (Debian: clang, libbpf-dev, linux-libc-dev; `make setup` installs them)"
    );
    // What does not exist counts as changed: the next build tries again.
    println!("cargo::rerun-if-changed={object}.missing");
    fs::write(&object, "").unwrap_or_else(|error| panic!("{object}: {error}"));
}

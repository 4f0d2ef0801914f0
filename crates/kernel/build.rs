//! Compiles the program of `bpf/` with clang, the only common compiler with an eBPF target on every distribution.
//!
//! Where it can't be compiled, the rest is still built: the object is empty, and loading it fails with `Error::NotBuilt`.

use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = format!("{}/udp.o", variable("OUT_DIR"));
    // Debian has a separate asm/types.h for each architecture.
    let asm = format!(
        "-I/usr/include/{}-linux-gnu",
        variable("CARGO_CFG_TARGET_ARCH")
    );
    // Little-endian, like all targets of peername.
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
    // A missing file counts as changed: the next build retries.
    println!("cargo::rerun-if-changed={object}.missing");
    fs::write(&object, "").unwrap_or_else(|error| panic!("{object}: {error}"));
}

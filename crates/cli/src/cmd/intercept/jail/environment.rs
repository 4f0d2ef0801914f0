//! The environment of the program.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use peername_jail::files::{Covered, PrivateDir};

use crate::cmd::ca::trust_store::{BUNDLE_VARIABLES, EXTRA_CA_VARIABLES, java_options};

/// Sets the variables by which programs trust the interceptor, and removes those by which they would go elsewhere than to the
/// destination itself.
///
/// # Errors
///
/// The path of the system's directory for temporary files is not UTF-8.
pub(super) fn prepare(
    command: &mut Command,
    dir: &PrivateDir,
    covered: Covered,
) -> anyhow::Result<()> {
    for name in BUNDLE_VARIABLES {
        command.env(name, dir.bundle());
    }
    for name in EXTRA_CA_VARIABLES {
        command.env(name, dir.certificates());
    }
    // With the variable each Java writes a line to standard error.
    if !covered.java {
        command.env("JAVA_TOOL_OPTIONS", java_tool_options(&dir.truststore())?);
    }
    for name in PROXIES {
        command
            .env_remove(name)
            .env_remove(name.to_ascii_uppercase());
    }
    for name in RESOLVER {
        command.env_remove(name);
    }
    Ok(())
}

fn java_tool_options(keystore: &Path) -> anyhow::Result<String> {
    let own = java_options(keystore.to_str().context("TMPDIR is not UTF-8")?);
    Ok(match env::var("JAVA_TOOL_OPTIONS") {
        Ok(given) if !given.is_empty() => format!("{given} {own}"),
        _ => own,
    })
}

/// Proxies that the jail does not reach, and does not need.
const PROXIES: [&str; 5] = [
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
];
/// Search lists (resolv.conf(5), hostname(7)): in the jail every name that they make resolves.
const RESOLVER: [&str; 3] = ["LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES"];

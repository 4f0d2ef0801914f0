//! HAProxy: TCP mode, a header from every client, connections to the backend from the client's address and port.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::matrix::contestants::setup::ProxySetup;

/// Writes the configuration, and returns the command that runs HAProxy in the foreground.
pub(super) fn command(program: &Path, setup: &ProxySetup) -> Result<Command> {
    let path = setup.directory.join("haproxy.cfg");
    fs::write(&path, configuration(setup)).context("write haproxy.cfg")?;
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(path);
    Ok(command)
}

/// One thread per core is HAProxy's default. maxconn would follow from the descriptor limit, and
/// is set so that it does not differ between machines; the timeouts are those that HAProxy warns about
/// if missing; those of client and server are longer than any run.
fn configuration(setup: &ProxySetup) -> String {
    let ProxySetup {
        listen, backend, ..
    } = setup;
    format!(
        "global
    maxconn 9000
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
listen bench
    bind {listen} accept-proxy
    source 0.0.0.0 usesrc client
    server backend {backend}
"
    )
}

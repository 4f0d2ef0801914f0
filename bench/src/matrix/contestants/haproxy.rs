//! HAProxy: TCP mode, a header from every client, connections to the backend from the client's address and port.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::matrix::contestants::program::{ProxyProgram, ProxySetup};

/// HAProxy's binary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Haproxy {
    pub(crate) program: PathBuf,
}

impl ProxyProgram for Haproxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn path(&self) -> &Path {
        &self.program
    }

    fn version_flag(&self) -> &str {
        "-v"
    }

    fn command(&self, setup: &ProxySetup) -> Result<Command> {
        let path = setup.directory.join("haproxy.cfg");
        fs::write(&path, configuration(setup)).context("write haproxy.cfg")?;
        let mut command = Command::new(&self.program);
        command.arg("-db").arg("-f").arg(path);
        Ok(command)
    }
}

/// One thread per core is HAProxy's default. maxconn would follow from the descriptor limit, and
/// is set so that it does not differ between machines; the timeouts are those that HAProxy warns about
/// if missing, and longer than any run.
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

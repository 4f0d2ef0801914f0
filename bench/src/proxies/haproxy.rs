//! HAProxy: TCP mode, header from everyone, the client's address and port towards the backend.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::proxies::{Proxy, Site};

/// HAProxy's binary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Haproxy {
    pub(crate) program: PathBuf,
}

impl Proxy for Haproxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn version_flag(&self) -> &str {
        "-v"
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let path = site.directory.join("haproxy.cfg");
        fs::write(&path, configuration(site)).context("write haproxy.cfg")?;
        let mut command = Command::new(&self.program);
        command.arg("-db").arg("-f").arg(path);
        Ok(command)
    }
}

/// One thread per core is HAProxy's default. maxconn would follow from the descriptor limit, and
/// is said so that it does not differ between machines; the timeouts are those that HAProxy warns
/// about if missing, longer than any run.
fn configuration(site: &Site) -> String {
    let Site {
        listen, backend, ..
    } = site;
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

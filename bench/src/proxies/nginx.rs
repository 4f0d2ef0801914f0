//! nginx with its stream module: header from everyone, the client's address and port towards the
//! backend.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::proxies::{Proxy, Site, output};

/// nginx's binary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Nginx {
    pub(crate) program: PathBuf,
}

/// How this build came by its stream module.
enum Stream {
    BuiltIn,
    Loadable(PathBuf),
    Missing(String),
}

impl Nginx {
    /// Read from the build's configure arguments.
    fn stream(&self) -> Stream {
        let text = output(&self.program, &["-V"]).unwrap_or_default();
        let arguments: Vec<&str> = text.split_whitespace().collect();
        if arguments.contains(&"--with-stream") {
            return Stream::BuiltIn;
        }
        if !arguments.contains(&"--with-stream=dynamic") {
            return Stream::Missing(String::from("built without the stream module"));
        }
        let directory = arguments
            .iter()
            .find_map(|word| word.strip_prefix("--modules-path="));
        let module = Path::new(directory.unwrap_or("modules")).join("ngx_stream_module.so");
        if module.is_file() {
            Stream::Loadable(module)
        } else {
            Stream::Missing(format!("{} is not there", module.display()))
        }
    }
}

impl Proxy for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn version_flag(&self) -> &str {
        "-v"
    }

    fn obstacle(&self) -> Option<String> {
        match self.stream() {
            Stream::Missing(why) => Some(why),
            _ => None,
        }
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let load = match self.stream() {
            Stream::Loadable(module) => format!("load_module {};", module.display()),
            _ => String::new(),
        };
        let path = site.directory.join("nginx.conf");
        fs::write(&path, configuration(&load, site)).context("write nginx.conf")?;
        let mut command = Command::new(&self.program);
        command
            .arg("-p")
            .arg(&site.directory)
            .args(["-e", "stderr", "-c"])
            .arg(path);
        Ok(command)
    }
}

/// One worker per core. worker_connections is 512 by default, too few for `idle`; nginx lays the
/// table out at start, so its size counts as memory of the empty proxy. The workers stay root: in
/// a user namespace there is nobody else to become.
fn configuration(load: &str, site: &Site) -> String {
    let Site {
        listen,
        backend,
        directory,
        ..
    } = site;
    let directory = directory.display();
    format!(
        "{load}
daemon off;
user root;
pid {directory}/nginx.pid;
worker_processes auto;
events {{
    worker_connections 16384;
}}
stream {{
    access_log off;
    server {{
        listen {listen} proxy_protocol;
        proxy_pass {backend};
        proxy_bind $proxy_protocol_addr:$proxy_protocol_port transparent;
    }}
}}
"
    )
}

//! nginx with its stream module: a header from every client, connections to the backend from the client's address
//! and port.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::program::run_for_output;
use crate::matrix::contestants::setup::ProxySetup;

/// How a build provides its stream module.
enum StreamModule {
    BuiltIn,
    Loadable(PathBuf),
    Missing(String),
}

impl StreamModule {
    /// Detects the module by the build's configure arguments.
    fn detect(program: &Path) -> Self {
        let text = run_for_output(program, &["-V"]).unwrap_or_default();
        let arguments: Vec<&str> = text.split_whitespace().collect();
        if arguments.contains(&"--with-stream") {
            return Self::BuiltIn;
        }
        if !arguments.contains(&"--with-stream=dynamic") {
            return Self::Missing(String::from("built without the stream module"));
        }
        let directory = arguments
            .iter()
            .find_map(|word| word.strip_prefix("--modules-path="));
        let module = Path::new(directory.unwrap_or("modules")).join("ngx_stream_module.so");
        if module.is_file() {
            Self::Loadable(module)
        } else {
            Self::Missing(format!("{} is not there", module.display()))
        }
    }
}

/// The reason why this build can't take part. None if it can.
pub(super) fn skip_reason(program: &Path) -> Option<String> {
    match StreamModule::detect(program) {
        StreamModule::Missing(reason) => Some(reason),
        _ => None,
    }
}

/// Writes the configuration, and returns the command that runs nginx in the foreground.
pub(super) fn command(program: &Path, setup: &ProxySetup) -> Result<Command> {
    let load_module = match StreamModule::detect(program) {
        StreamModule::Loadable(module) => format!("load_module {};", module.display()),
        _ => String::new(),
    };
    let path = setup.directory.join("nginx.conf");
    fs::write(&path, configuration(&load_module, setup)).context("write nginx.conf")?;
    let mut command = Command::new(program);
    command
        .arg("-p")
        .arg(&setup.directory)
        .args(["-e", "stderr", "-c"])
        .arg(path);
    Ok(command)
}

/// One worker per core. worker_connections is 512 by default, too few for `idle`; nginx
/// allocates the table at start, so its size counts as memory of the empty proxy. The workers stay root: a user
/// namespace has no other user.
fn configuration(load_module: &str, setup: &ProxySetup) -> String {
    let ProxySetup {
        listen,
        backend,
        directory,
        ..
    } = setup;
    let directory = directory.display();
    format!(
        "{load_module}
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

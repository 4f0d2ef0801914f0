//! Values of the options that the agent and its profiles have.

use std::path::PathBuf;

use peername_exec::agent::is_policy_name;

/// The value of an option that takes the path of a Unix socket, with or without `unix:`.
///
/// # Errors
///
/// The path is not absolute: runtimes have other working directories.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix:").unwrap_or(text));
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("use an absolute path, such as unix:{SOCKET}")),
    }
}

/// The value of an option that takes the name of a policy.
///
/// # Errors
///
/// No container could name it.
pub(crate) fn policy_name(text: &str) -> Result<String, String> {
    match is_policy_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use at most 128 ASCII letters, digits and _+-.".to_owned()),
    }
}

/// Where agent and profile have the socket, unless they are told otherwise.
pub(super) const SOCKET: &str = "/run/peername-agent/agent.sock";

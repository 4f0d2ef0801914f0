//! Values of the options that the agent and its profiles have.

use std::path::PathBuf;

use peername_exec::agent::is_policy_name;

/// Parses the path of a Unix socket, with or without `unix:`.
///
/// # Errors
///
/// The path is not absolute: runtimes have other working directories.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix:").unwrap_or(text));
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("use an absolute path, such as unix:{SOCKET}"))
    }
}

/// Parses the name of a policy.
///
/// # Errors
///
/// The agent would refuse a container that names the policy.
pub(crate) fn policy_name(text: &str) -> Result<String, String> {
    if is_policy_name(text) {
        Ok(text.to_owned())
    } else {
        Err("use at most 128 ASCII letters, digits and _+-.".to_owned())
    }
}

/// The default of the agent's socket, and of the socket that a profile names.
pub(super) const SOCKET: &str = "/run/peername-agent/agent.sock";

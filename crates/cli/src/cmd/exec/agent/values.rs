//! Values of the options that the agent and its profiles have.

use std::path::PathBuf;

use peername_exec::agent::is_policy_name;
use peername_observe::shell::quote;

/// Parses the path of a Unix socket, with or without `unix:`.
///
/// # Errors
///
/// The path is not absolute: runtimes have other working directories. Or it is too long for a socket.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix:").unwrap_or(text));
    if !path.is_absolute() {
        return Err(format!("use an absolute path, such as unix:{SOCKET}"));
    }
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(format!("use a path of at most {MAX_SOCKET_PATH} bytes"));
    }
    Ok(path)
}

/// Parses the number of a user.
///
/// # Errors
///
/// The text is no number. Names are refused, because a container need not know the user's name.
pub(super) fn user_id(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("use a number: id -u {}", quote(text)))
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
/// The kernel takes 107 bytes (unix(7)), and the agent binds its socket under a name that is up to 8 longer: a dot and a
/// process id.
const MAX_SOCKET_PATH: usize = 99;

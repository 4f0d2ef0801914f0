//! The message of a container runtime to a seccomp agent: `ContainerProcessState` in JSON (OCI runtime specification 1.1,
//! config-linux.md, "The Container Process State").

use serde::Deserialize;

/// The fields of the message that the agent uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerState {
    /// The container's id, which the runtime has chosen: ASCII letters, digits and `_+-.`.
    pub(super) id: String,
    /// The name of the policy: `listenerMetadata` of the seccomp profile, or `default`.
    pub(super) policy: String,
    /// The position of the seccomp listener among the descriptors of the message.
    pub(super) listener: usize,
}

/// An error returned by [`parse`].
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    /// The message is no `ContainerProcessState`.
    #[error("no container process state of the OCI runtime specification 1.1: {0}")]
    Json(#[from] serde_json::Error),
    /// The message names no seccomp listener.
    #[error("it has no descriptor named {SECCOMP_FD}")]
    NoListener,
    /// The id of the container is empty or too long, or has characters that are not allowed.
    #[error(
        "the container's id is none of a runtime: 1 to {MAX_ID} ASCII letters, digits and _+-."
    )]
    Id,
    /// The name of the policy is too long, or has characters that are not allowed.
    #[error(
        "listenerMetadata is no name of a policy: at most {MAX_POLICY} ASCII letters, digits and _+-."
    )]
    Policy,
}

/// Parses a message.
pub(super) fn parse(message: &[u8]) -> Result<ContainerState, StateError> {
    let message: Message = serde_json::from_slice(message)?;
    let listener = message.fds.iter().position(|name| name == SECCOMP_FD);
    let policy = if message.metadata.is_empty() {
        DEFAULT_POLICY.to_owned()
    } else {
        message.metadata
    };
    if !is_name(&message.state.id, MAX_ID) {
        return Err(StateError::Id);
    }
    if !is_policy_name(&policy) {
        return Err(StateError::Policy);
    }
    Ok(ContainerState {
        id: message.state.id,
        policy,
        listener: listener.ok_or(StateError::NoListener)?,
    })
}

/// Whether a policy can have this name: at most 128 ASCII letters, digits and `_+-.`.
pub fn is_policy_name(name: &str) -> bool {
    is_name(name, MAX_POLICY)
}

fn is_name(text: &str, max: usize) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    (1..=max).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    fds: Vec<String>,
    #[serde(default)]
    metadata: String,
    state: State,
}

#[derive(Deserialize)]
struct State {
    id: String,
}

/// The policy of containers whose profile names none.
pub const DEFAULT_POLICY: &str = "default";
/// The name of the seccomp listener among the descriptors (specification: `SeccompFdName`).
const SECCOMP_FD: &str = "seccompFd";
/// The maximum length of an id. Those of Kubernetes and Docker have 64 characters.
const MAX_ID: usize = 1024;
const MAX_POLICY: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, metadata: &str, fds: &str) -> String {
        format!(
            r#"{{"ociVersion":"1.0.2","fds":{fds},"pid":4711,"metadata":"{metadata}","state":
               {{"ociVersion":"1.0.2","id":"{id}","status":"creating","pid":4711,"bundle":"/b","annotations":{{"a":"b"}}}}}}"#
        )
    }

    #[test]
    fn message_names_container_policy_and_listener() {
        let state = parse(message("web-1", "mail", r#"["pidFd","seccompFd"]"#).as_bytes()).unwrap();
        assert_eq!(
            (state.id.as_str(), state.policy.as_str()),
            ("web-1", "mail")
        );
        assert_eq!(state.listener, 1);
        let state = parse(message("web-1", "", r#"["seccompFd"]"#).as_bytes()).unwrap();
        assert_eq!(state.policy, DEFAULT_POLICY);
    }

    #[test]
    fn messages_that_announce_no_container_are_refused() {
        let refused = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
        assert!(refused("").starts_with("no container process state"));
        assert!(refused("{}").contains("state"));
        assert!(refused(&message("web", "", "[]")).contains("seccompFd"));
        assert!(refused(&message("a b", "", r#"["seccompFd"]"#)).contains("id"));
        assert!(refused(&message("", "", r#"["seccompFd"]"#)).contains("id"));
        let escape = message("web", "\\u001b[31m", r#"["seccompFd"]"#);
        assert!(refused(&escape).contains("listenerMetadata"));
    }
}

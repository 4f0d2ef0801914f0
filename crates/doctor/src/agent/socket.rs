//! The agent's socket: whether it is there, who may connect, and whether an agent answers.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use peername_observe::shell::quote;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::confinement::is_peername;
use crate::finding::Finding;

/// What is known of the socket.
pub struct AgentSocket {
    /// Whether the agent answers.
    pub finding: Finding,
    /// The process id of the agent, where it is known.
    pub agent: Option<u32>,
}

impl AgentSocket {
    /// Connects as a container runtime does, but announces no container.
    pub async fn check(path: &Path) -> Self {
        let access = match access(path) {
            Ok(access) => access,
            Err(finding) => return Self::without_agent(finding),
        };
        let shown = path.display();
        match timeout(ANSWERS_WITHIN, find_agent(path)).await {
            Ok(Ok(agent)) => Self {
                finding: Finding::ok(SOCKET, format!("an agent answers at {shown}; {access}")),
                agent,
            },
            Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                Self::without_agent(refused_to_user(format!(
                    "{shown}: this user may not connect; {access}"
                )))
            }
            // The backlog is full; a container runtime's connect(2) would wait instead.
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Self::without_agent(Finding::fail(
                    SOCKET,
                    format!(
                        "{shown}: no agent accepts connections, and its backlog is full, so containers whose profile names it wait \
                         for their start"
                    ),
                    how_to_start(path),
                ))
            }
            Ok(Err(error)) => Self::without_agent(Finding::fail(
                SOCKET,
                format!("{shown}: {error}, so containers whose profile names it don't start"),
                how_to_start(path),
            )),
            Err(_) => Self::without_agent(Finding::fail(
                SOCKET,
                format!("{shown}: no agent answers, so accept(2) of the containers waits"),
                how_to_start(path),
            )),
        }
    }

    fn without_agent(finding: Finding) -> Self {
        Self {
            finding,
            agent: None,
        }
    }
}

/// Describes which users may connect.
///
/// # Errors
///
/// The finding that there is no socket, or that this user may not search its folder (EACCES).
fn access(path: &Path) -> Result<String, Finding> {
    let shown = path.display();
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            refused_to_user(format!("{shown}: this user may not connect: {error}"))
        }
        _ => Finding::fail(
            SOCKET,
            format!("{shown}: {error}, so containers whose profile names it don't start"),
            how_to_start(path),
        ),
    })?;
    if !found.file_type().is_socket() {
        return Err(Finding::fail(
            SOCKET,
            format!("{shown} is no socket"),
            "name that of the agent's --listen by --socket",
        ));
    }
    let users = match found.uid() {
        0 => "root".to_owned(),
        owner => format!("root and user {owner}"),
    };
    Ok(match found.mode() & WRITABLE_BY_OTHERS {
        0 => format!("{users} may connect"),
        _ => format!("every user may connect, and it serves {users} and those of --runtime-uid"),
    })
}

fn refused_to_user(seen: String) -> Finding {
    Finding::fail(
        SOCKET,
        seen,
        "run `peername doctor agent` as the user of the container runtime; `--runtime-uid` of the agent adds one",
    )
}

/// Connects, announces no container, and returns the agent's process id once the agent has closed the connection. This never
/// happens if the agent has exited and its holder keeps the socket.
async fn find_agent(path: &Path) -> io::Result<Option<u32>> {
    let mut stream = UnixStream::connect(path).await?;
    let pid = stream.peer_cred()?.pid();
    stream.shutdown().await?;
    // A reset is an answer, too.
    let _ = stream.read(&mut [0]).await;
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    // The id is of the process that bound the socket, which may have exited, and the id may be another process's now.
    Ok(pid.filter(|pid| is_peername(*pid) == Some(true)))
}

fn how_to_start(path: &Path) -> String {
    let listen = format!("unix:{}", path.display());
    format!(
        "start the agent: `systemctl start peername-agent`, or `peername agent --listen {} --trust BALANCER`",
        quote(&listen)
    )
}

const SOCKET: &str = "agent's socket";
const WRITABLE_BY_OTHERS: u32 = 0o002;
/// The agent immediately closes a connection on which no container is announced.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

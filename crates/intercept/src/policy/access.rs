//! Access to the proxy: by address, and by name and password.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use moka::future::Cache;
use peername_server::access::client_limit::client_prefix;
use peername_server::access::network_set::NetworkSet;
use peername_server::threads::spawn_request_call;
use peername_sys::fs::text_file;

use super::hash_queue::HashQueue;
use crate::request::refusal::Refusal;

/// The clients that may use the proxy. By default all may.
#[derive(Debug, Default)]
pub struct Access {
    /// The networks of allowed clients (`--allow-client`); `None` for all.
    pub clients: Option<NetworkSet>,
    /// The networks of peers that begin their connections with a PROXY header (`--accept-proxy`).
    pub accept_proxy: Option<NetworkSet>,
    /// Names and passwords (`--proxy-auth`). Clients of an explicit listener send them with each CONNECT, and with each request
    /// outside of a tunnel.
    pub users: Option<Users>,
}

/// User names, and the bcrypt hashes of their passwords.
pub struct Users {
    hashes: HashMap<String, Arc<str>>,
    /// The names of verified credentials: bcrypt is slow on purpose, and clients send credentials with each request. Single
    /// flight: concurrent equal credentials of a client are hashed once.
    verified: Cache<VerifiedKey, Arc<str>>,
    key: hmac::Key,
    queue: HashQueue,
}

/// Why credentials are not accepted.
#[derive(Clone, Copy, Debug)]
enum AuthenticationError {
    /// The request has none.
    Missing,
    /// The credentials are wrong.
    Wrong,
    /// Too many other credentials of this client wait to be verified.
    Busy,
}

/// Why a file of users is refused. Nothing of the file is quoted.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file can't be read.
    #[error("--proxy-auth {}: {source}{}", path.display(), advice(source))]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A line is not `NAME:HASH`.
    #[error(
        "--proxy-auth {}, line {number}: not NAME:HASH with a bcrypt hash ($2y$…), as `htpasswd -B` writes it",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        number: usize,
    },
    /// The file has no user.
    #[error("--proxy-auth {}: the file has no user, so no client could connect", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The host provides no random numbers for the key of the digests.
    #[error("--proxy-auth: this host provides no random numbers")]
    Random,
}

type Digest = [u8; 32];

/// Credentials, by a keyed digest of them, that are verified for all clients, or are being verified for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VerifiedKey {
    digest: Digest,
    client: Option<IpAddr>,
}

impl Access {
    /// Whether a connection of this peer begins with a PROXY header.
    pub(crate) fn expects_header(&self, peer: IpAddr) -> bool {
        self.accept_proxy
            .as_ref()
            .is_some_and(|trusted| trusted.contains(peer))
    }

    /// Whether a client at this address may use the proxy.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        self.clients
            .as_ref()
            .is_none_or(|clients| clients.contains(client))
    }

    /// Authenticates a request to the proxy itself, and returns the user; `None` if no authentication is required.
    ///
    /// # Errors
    ///
    /// Status 407, which asks for name and password, if these are missing or wrong; 429 if too many credentials of this client
    /// wait to be verified.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let Some(users) = &self.users else {
            return Ok(None);
        };
        let user = match headers.get(header::PROXY_AUTHORIZATION) {
            Some(value) => users.verify(value, client).await,
            None => Err(AuthenticationError::Missing),
        };
        user.map(Some).map_err(Refusal::from)
    }
}

impl From<AuthenticationError> for Refusal {
    fn from(error: AuthenticationError) -> Self {
        let ask = |detail: &'static str| {
            let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            Self::new(status, PROXY_AUTH_REQUIRED, detail)
        };
        match error {
            AuthenticationError::Missing => {
                ask("this proxy wants a name and a password, by Proxy-Authorization: Basic")
            }
            AuthenticationError::Wrong => ask(
                "the name or the password is wrong, or is not sent by Proxy-Authorization: Basic",
            ),
            AuthenticationError::Busy => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let detail = "too many passwords of this client wait to be verified";
                Self::new(status, "too_many_passwords", detail)
            }
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; `htpasswd -cB FILE USER` writes one",
        _ => "",
    }
}

impl Users {
    /// Reads lines of `NAME:HASH`. Blank lines and those that begin with `#` are skipped; any other line makes the whole file
    /// invalid.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let text = text_file::read(path).map_err(|source| UsersError::File {
            path: path.to_owned(),
            source,
        })?;
        let mut hashes = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, hash) = line
                .split_once(':')
                .filter(|(name, hash)| is_user_name(name) && is_bcrypt_hash(hash))
                .ok_or_else(|| UsersError::Line {
                    path: path.to_owned(),
                    number,
                })?;
            hashes.insert(name.to_owned(), hash.into());
        }
        if hashes.is_empty() {
            return Err(UsersError::Empty {
                path: path.to_owned(),
            });
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| UsersError::Random)?;
        Ok(Self {
            hashes,
            verified: Cache::builder()
                .max_capacity(MAX_VERIFIED)
                .time_to_live(VERIFIED_LIFETIME)
                .build(),
            key,
            queue: HashQueue::new(),
        })
    }

    /// Verifies the value of Proxy-Authorization, and returns the name. A wrong password and an unknown name take the same time, if
    /// all hashes have the same cost.
    async fn verify(
        &self,
        value: &HeaderValue,
        client: IpAddr,
    ) -> Result<Arc<str>, AuthenticationError> {
        let credentials = decode_basic(value).ok_or(AuthenticationError::Wrong)?;
        let digest = hmac::sign(&self.key, &credentials);
        let digest = Digest::try_from(digest.as_ref()).map_err(|_| AuthenticationError::Wrong)?;
        let for_all = VerifiedKey {
            digest,
            client: None,
        };
        if let Some(name) = self.verified.get(&for_all).await {
            return Ok(name);
        }
        // A flight waits in the line of the client that began it, so no other client takes part in it.
        let for_client = VerifiedKey {
            digest,
            client: Some(client_prefix(client)),
        };
        let name = self
            .verified
            .try_get_with(for_client, self.verify_by_hash(&credentials, client))
            .await
            .map_err(|error| *error)?;
        self.verified.insert(for_all, Arc::clone(&name)).await;
        Ok(name)
    }

    /// Verifies `NAME:PASSWORD` when it is the client's turn in the queue.
    async fn verify_by_hash(
        &self,
        credentials: &[u8],
        client: IpAddr,
    ) -> Result<Arc<str>, AuthenticationError> {
        let (name, password) = split_credentials(credentials).ok_or(AuthenticationError::Wrong)?;
        let user_hash = self.hashes.get(name);
        // For an unknown name another user's hash is computed, to take the same time.
        let hash = user_hash
            .or_else(|| self.hashes.values().next())
            .cloned()
            .ok_or(AuthenticationError::Wrong)?;
        let password = password.to_vec();
        let permit = self
            .queue
            .acquire(client)
            .await
            .ok_or(AuthenticationError::Busy)?;
        let is_right = spawn_request_call(move || {
            let is_right = bcrypt::verify(password, &hash).unwrap_or(false);
            // Released only here, even if the client has closed its connection: the thread is busy until now.
            drop(permit);
            is_right
        })
        .await
        .unwrap_or(false);
        match is_right && user_hash.is_some() {
            true => Ok(name.into()),
            false => Err(AuthenticationError::Wrong),
        }
    }
}

fn is_user_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_bcrypt_hash(hash: &str) -> bool {
    hash.parse::<bcrypt::HashParts>().is_ok()
}

/// Decodes `NAME:PASSWORD` from credentials of the scheme Basic.
fn decode_basic(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    let credentials = BASE64.decode(encoded.trim().as_bytes()).ok()?;
    (scheme.eq_ignore_ascii_case("basic") && credentials.len() <= MAX_CREDENTIALS)
        .then_some(credentials)
}

/// The code of a request without a valid password.
const PROXY_AUTH_REQUIRED: &str = "proxy_auth_required";

/// The name in a client's credentials, if the code of the refusal says that they were verified and are wrong.
pub(crate) fn tried_user(code: &str, headers: &HeaderMap) -> Option<String> {
    if code != PROXY_AUTH_REQUIRED {
        return None;
    }
    let credentials = decode_basic(headers.get(header::PROXY_AUTHORIZATION)?)?;
    let (name, _) = split_credentials(&credentials)?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn split_credentials(credentials: &[u8]) -> Option<(&str, &[u8])> {
    let colon = credentials.iter().position(|&byte| byte == b':')?;
    let (name, password) = credentials.split_at_checked(colon)?;
    Some((std::str::from_utf8(name).ok()?, password.get(1..)?))
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Users({})", self.hashes.len())
    }
}

/// The maximum number of bytes of a name and a password. bcrypt reads 72 bytes of a password.
const MAX_CREDENTIALS: usize = 1024;
/// The maximum number of verified credentials that are kept.
const MAX_VERIFIED: u64 = 4096;
/// The time after which credentials are hashed again.
const VERIFIED_LIFETIME: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;
    use tokio::time::timeout;

    use super::*;

    /// A user `ann` with the password `pw`, at the lowest cost of bcrypt.
    fn users() -> Users {
        let mut file = NamedTempFile::new().unwrap();
        writeln!(file, "ann:{}", bcrypt::hash("pw", 4).unwrap()).unwrap();
        Users::read(file.path()).unwrap()
    }

    #[tokio::test]
    async fn line_of_wrong_passwords_delays_no_other_client_with_the_same_credentials() {
        let users = users();
        let [flooding, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let right = HeaderValue::from_static("Basic YW5uOnB3");
        let held = users.queue.acquire(flooding).await.unwrap();
        tokio::select! {
            biased;
            _ = users.verify(&right, flooding) => panic!("it does not wait in its line"),
            verified = timeout(Duration::from_secs(10), users.verify(&right, other)) => {
                assert_eq!(verified.unwrap().ok().as_deref(), Some("ann"));
            }
        }
        drop(held);
        let name = users.verify(&right, flooding).await;
        assert_eq!(name.ok().as_deref(), Some("ann"));
    }
}

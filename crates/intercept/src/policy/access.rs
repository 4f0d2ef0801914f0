//! Access to the proxy: by address, and by name and password.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use moka::future::Cache;
use peername_server::access::network_set::NetworkSet;
use peername_sys::fs::text_file;
use tokio::task::spawn_blocking;

use super::hash_queue::HashQueue;
use crate::request::refusal::Refusal;

/// The clients that may use the proxy; all by default.
#[derive(Debug, Default)]
pub struct Access {
    /// Networks of allowed clients (`--allow-client`).
    pub clients: Option<NetworkSet>,
    /// Networks of peers that begin their connections with a PROXY header (`--accept-proxy`).
    pub accept_proxy: Option<NetworkSet>,
    /// Names and passwords (`--proxy-auth`), which clients of an explicit listener send with each CONNECT and each request
    /// outside of a tunnel.
    pub users: Option<Users>,
}

/// User names, and the bcrypt hashes of their passwords.
pub struct Users {
    hashes: HashMap<String, Arc<str>>,
    /// Verified credentials, by a keyed digest: bcrypt is slow on purpose, and clients send them with each request. Equal ones
    /// at the same time are hashed once (single flight).
    verified: Cache<Digest, Arc<str>>,
    key: hmac::Key,
    queue: HashQueue,
}

/// Why credentials are not accepted.
#[derive(Clone, Copy, Debug)]
enum Unverified {
    /// They are missing or wrong.
    Wrong,
    /// Too many others of this client wait to be verified.
    Busy,
}

/// Why a file of users is refused. Nothing of the file is quoted.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file can't be read.
    #[error("--proxy-auth {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line has another form.
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
    /// The host has no random numbers for the key of the digests.
    #[error("--proxy-auth: this host gives no random numbers")]
    Random,
}

type Digest = [u8; 32];

impl Access {
    /// Whether a connection of this peer begins with a PROXY header.
    pub(crate) fn expects_header(&self, peer: IpAddr) -> bool {
        let trusted = self.accept_proxy.as_ref();
        trusted.is_some_and(|trusted| trusted.contains(peer))
    }

    /// Whether a client at this address may use the proxy.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        let clients = self.clients.as_ref();
        clients.is_none_or(|clients| clients.contains(client))
    }

    /// Authenticates a request to the proxy itself, and returns the user; `None` where no authentication is required.
    ///
    /// # Errors
    ///
    /// The refusal (407) that asks for name and password, if these are missing or wrong; 429 if too many of this client wait to be
    /// verified.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let Some(users) = &self.users else {
            return Ok(None);
        };
        let given = match headers.get(header::PROXY_AUTHORIZATION) {
            Some(value) => users.verify(value, client).await,
            None => Err(Unverified::Wrong),
        };
        given.map(Some).map_err(Refusal::from)
    }
}

impl From<Unverified> for Refusal {
    fn from(why: Unverified) -> Self {
        match why {
            Unverified::Wrong => {
                let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
                let detail =
                    "this proxy wants a name and a password, by Proxy-Authorization: Basic";
                Self::new(status, "proxy_auth_required", detail)
            }
            Unverified::Busy => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let detail = "too many passwords of this client wait to be verified";
                Self::new(status, "too_many_passwords", detail)
            }
        }
    }
}

impl Users {
    /// Reads lines of `NAME:HASH`; blank lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// [`UsersError`]; one invalid line refuses the file.
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
            let entry = line.split_once(':').filter(|(name, hash)| {
                let is_hash = hash.parse::<bcrypt::HashParts>().is_ok();
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) && is_hash
            });
            let (name, hash) = entry.ok_or_else(|| UsersError::Line {
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
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        Ok(Self {
            hashes,
            verified: Cache::builder()
                .max_capacity(MAX_VERIFIED)
                .time_to_live(VERIFIED_LIFETIME)
                .build(),
            key: key.map_err(|_| UsersError::Random)?,
            queue: HashQueue::new(),
        })
    }

    /// Returns the name if the password is right. A wrong password and an unknown name take the same time.
    async fn verify(&self, value: &HeaderValue, client: IpAddr) -> Result<Arc<str>, Unverified> {
        let credentials = decode_basic(value).ok_or(Unverified::Wrong)?;
        let digest = hmac::sign(&self.key, &credentials);
        let digest = Digest::try_from(digest.as_ref()).map_err(|_| Unverified::Wrong)?;
        let verified = self.hash(&credentials, client);
        let name = self.verified.try_get_with(digest, verified).await;
        name.map_err(|why| *why)
    }

    /// Verifies `NAME:PASSWORD` in the client's turn.
    async fn hash(&self, credentials: &[u8], client: IpAddr) -> Result<Arc<str>, Unverified> {
        let (name, password) = split_credentials(credentials).ok_or(Unverified::Wrong)?;
        let known = self.hashes.get(name);
        let hash = known.or_else(|| self.hashes.values().next()).cloned();
        let hash = hash.ok_or(Unverified::Wrong)?;
        let password = password.to_vec();
        let permit = self.queue.acquire(client).await.ok_or(Unverified::Busy)?;
        // The permit is held until it is hashed, even if the client is gone by then.
        let is_right = spawn_blocking(move || {
            let is_right = bcrypt::verify(password, &hash).unwrap_or(false);
            drop(permit);
            is_right
        });
        match is_right.await.is_ok_and(|is_right| is_right) && known.is_some() {
            true => Ok(name.into()),
            false => Err(Unverified::Wrong),
        }
    }
}

/// The credentials of the scheme Basic.
fn decode_basic(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    let credentials = BASE64.decode(encoded.trim().as_bytes()).ok()?;
    (scheme.eq_ignore_ascii_case("basic") && credentials.len() <= MAX_CREDENTIALS)
        .then_some(credentials)
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

/// Bytes of a name and a password. bcrypt reads 72 of the latter.
const MAX_CREDENTIALS: usize = 1024;
/// Credentials that need not be hashed again, and for how long.
const MAX_VERIFIED: u64 = 4096;
const VERIFIED_LIFETIME: Duration = Duration::from_secs(600);

//! Who may use the proxy: by address, and by name and password.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use moka::sync::Cache;
use peername_server::trust_list::TrustList;
use peername_sys::fs::text_file;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::request::refusal::Refusal;

/// Who may use the proxy; everybody, unless something is said.
#[derive(Debug, Default)]
pub struct Access {
    /// Clients' addresses (`--allow-client`).
    pub clients: Option<TrustList>,
    /// Who says on whose behalf it connects (`--accept-proxy`).
    pub accept_proxy: Option<TrustList>,
    /// Their names and passwords (`--proxy-auth`), which clients that know of the proxy send with each CONNECT and
    /// each request outside of a tunnel.
    pub users: Option<Users>,
}

/// Names, and the bcrypt hashes of their passwords.
pub struct Users {
    hashes: HashMap<String, Arc<str>>,
    /// Credentials that were right, by a keyed digest: bcrypt is slow on purpose, and clients send them with each request.
    right: Cache<Digest, Arc<str>>,
    key: hmac::Key,
    /// Passwords that are hashed at once.
    hashing: Semaphore,
}

/// Why a file of users is none. Nothing of it is quoted.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It can't be read.
    #[error("--proxy-auth {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of another form.
    #[error(
        "--proxy-auth {}, line {number}: not NAME:HASH with a bcrypt hash ($2y$…), as `htpasswd -B` writes it",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        number: usize,
    },
    /// Nobody is in it.
    #[error("--proxy-auth {}: the file names nobody, so nobody could connect", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// There is no randomness for the key of the digests.
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

    /// The name that a request to the proxy itself gives; `None` where none is asked for.
    ///
    /// # Errors
    ///
    /// The answer that asks for name and password (407), if there are none, or wrong ones.
    pub(crate) async fn user(&self, headers: &HeaderMap) -> Result<Option<Arc<str>>, Refusal> {
        let Some(users) = &self.users else {
            return Ok(None);
        };
        let given = match headers.get(header::PROXY_AUTHORIZATION) {
            Some(value) => users.verify(value).await,
            None => None,
        };
        given.map(Some).ok_or_else(|| {
            let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            let detail = "this proxy wants a name and a password, by Proxy-Authorization: Basic";
            Refusal::new(status, "proxy_auth_required", detail)
        })
    }
}

impl Users {
    /// Reads lines of `NAME:HASH`; blank lines and those that begin with `#` don't count.
    ///
    /// # Errors
    ///
    /// [`UsersError`]; one bad line refuses the file.
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
                !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic()) && is_hash
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
            right: Cache::builder()
                .max_capacity(REMEMBERED)
                .time_to_live(REMEMBERED_FOR)
                .build(),
            key: key.map_err(|_| UsersError::Random)?,
            hashing: Semaphore::new(AT_ONCE),
        })
    }

    /// The name, if the password is its. A wrong password and an unknown name take the same time.
    async fn verify(&self, value: &HeaderValue) -> Option<Arc<str>> {
        let encoded = value.to_str().ok()?;
        let (scheme, encoded) = encoded.split_once(' ')?;
        let credentials = STANDARD.decode(encoded.trim()).ok()?;
        if !scheme.eq_ignore_ascii_case("basic") || credentials.len() > LONGEST {
            return None;
        }
        let digest: Digest = hmac::sign(&self.key, &credentials)
            .as_ref()
            .try_into()
            .ok()?;
        if let Some(name) = self.right.get(&digest) {
            return Some(name);
        }
        let colon = credentials.iter().position(|&octet| octet == b':')?;
        let (name, password) = credentials.split_at_checked(colon)?;
        let name = std::str::from_utf8(name).ok()?;
        let password = password.get(1..)?.to_vec();
        let known = self.hashes.get(name).cloned();
        let hash = known
            .clone()
            .or_else(|| self.hashes.values().next().cloned())?;
        let _place = self.hashing.acquire().await.ok()?;
        let verified = spawn_blocking(move || bcrypt::verify(password, &hash).unwrap_or(false));
        if !verified.await.ok()? || known.is_none() {
            return None;
        }
        let name: Arc<str> = name.into();
        self.right.insert(digest, Arc::clone(&name));
        Some(name)
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Users({})", self.hashes.len())
    }
}

/// Octets of a name and a password. bcrypt looks at 72 of the latter.
const LONGEST: usize = 1024;
/// Credentials that need not be hashed again, and for how long.
const REMEMBERED: u64 = 4096;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// A flood of wrong passwords takes two threads, and no more.
const AT_ONCE: usize = 2;

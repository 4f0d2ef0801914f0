//! Unmodified clients, senders of headers and servers, and the helpers that drive them.

pub(crate) mod browser;
pub(crate) mod collector;
pub(crate) mod sender;
pub(crate) mod server;
pub(crate) mod stranger;
pub(crate) mod terminal;

use crate::harness::lab::Host;
use crate::harness::peername::words;

/// Makes the key and the self-signed certificate of a frontend, in these files.
pub(crate) fn create_self_signed(host: &Host, key: &str, certificate: &str) {
    let line = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 \
         -subj /CN=front.example -keyout {key} -out {certificate}"
    );
    host.run("openssl", &words(&line));
}

/// Executes the program in its arguments with an activated TCP and an activated UDP socket.
pub(crate) const BECOME_ACTIVATED: &str = include_str!("programs/become_activated.py");

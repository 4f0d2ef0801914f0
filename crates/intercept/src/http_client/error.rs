//! The error of a request to a check service or collector.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy;
use peername_observe::escape::printable;

use super::connector::TlsFailed;

/// Why there is no complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpClientError {
    /// No complete response within the timeout.
    Timeout(Duration),
    /// The connection was refused, or the name doesn't resolve.
    Connect(Arc<str>),
    /// The TLS handshake failed.
    Tls(Arc<str>),
    /// The connection was closed during the response, or the server speaks another protocol.
    Broken(Arc<str>),
    /// The response is longer than this limit, in bytes.
    TooLong(usize),
}

impl HttpClientError {
    /// Classifies an error of hyper's client.
    pub(crate) fn new(error: &(dyn Error + 'static)) -> Self {
        let is_connect = |error: &(dyn Error + 'static)| {
            error
                .downcast_ref::<legacy::Error>()
                .is_some_and(legacy::Error::is_connect)
        };
        if causes(error).any(is_connect) {
            Self::connect(error)
        } else {
            Self::Broken(innermost(error))
        }
    }

    /// Classifies an error of a connection that could not be opened.
    pub(super) fn connect(error: &(dyn Error + 'static)) -> Self {
        let is_tls = |error: &(dyn Error + 'static)| {
            error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref)
                .is_some_and(<dyn Error + Send + Sync>::is::<TlsFailed>)
        };
        if causes(error).any(is_tls) {
            Self::Tls(innermost(error))
        } else {
            Self::Connect(innermost(error))
        }
    }
}

/// An error and its sources.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn innermost(error: &(dyn Error + 'static)) -> Arc<str> {
    let last = causes(error).last().unwrap_or(error);
    printable(&last.to_string())
}

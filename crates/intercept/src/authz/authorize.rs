//! Asking the check, where there is one: about a tunnel, and about each request.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};

use crate::audit::Record;
use crate::authz::{Authority, Changes, Decision, Denial, How, Kind, Prefix, Question};
use crate::http::client_connection::Client;
use crate::request::buffered_body::Beginning;
use crate::request::target::Named;
use crate::state::Site;

/// A no.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    /// What the client is told.
    pub(crate) denial: Arc<Denial>,
    /// Whether that is only because the check failed.
    pub(crate) failed: bool,
}

impl Denied {
    /// As the answer to a CONNECT: nobody follows a redirection for a tunnel.
    pub(crate) fn of_tunnel(mut self) -> Self {
        if self.denial.status.is_redirection() {
            Arc::make_mut(&mut self.denial).status = StatusCode::FORBIDDEN;
        }
        self
    }
}

/// What is known of a request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AboutBody<'a> {
    /// Octets.
    pub(crate) size: Option<u64>,
    /// As far as the check wants to see it.
    pub(crate) begins: Option<&'a Beginning>,
}

/// There is none.
pub(crate) const NO_BODY: AboutBody<'static> = AboutBody {
    size: Some(0),
    begins: None,
};

/// Who asks, and for which place.
pub(crate) struct Asking<'a> {
    pub(crate) site: &'a Site,
    pub(crate) client: &'a Client,
    pub(crate) named: &'a Named,
}

impl Asking<'_> {
    /// Asks about a tunnel, which `parts` is the CONNECT for, or about a request as it will be sent. What comes
    /// back are the changes that a request takes on.
    ///
    /// # Errors
    ///
    /// It is denied.
    pub(crate) async fn ask(
        self,
        kind: Kind,
        parts: &Parts,
        body: AboutBody<'_>,
        record: &mut Record,
    ) -> Result<Option<Arc<Changes>>, Denied> {
        let Some(check) = self.site.check() else {
            record.unchecked();
            return Ok(None);
        };
        let named = self.named;
        let (scheme, path) = match kind {
            Kind::Connect => ("", String::new()),
            Kind::Request => (named.scheme(), path(parts)),
        };
        let id = record.id.to_string();
        let sni = named.sni.as_ref().map(ToString::to_string);
        let connect = named.connect.as_ref();
        let connect = connect.map(|connect| (connect.host.to_string(), connect.port));
        let verdict = check
            .ask(&Question {
                kind,
                request_id: &id,
                client: self.client.client,
                peer: self.client.peer.0,
                connect: connect
                    .as_ref()
                    .map(|(host, port)| Authority { host, port: *port }),
                sni: sni.as_deref(),
                alpn: named.alpn,
                version: parts.version,
                method: &parts.method,
                scheme,
                to: named.authority(),
                path_and_query: &path,
                headers: &parts.headers,
                body_size: body.size,
                body: body.begins.map(|begins| Prefix {
                    bytes: &begins.octets,
                    truncated: begins.truncated,
                }),
            })
            .await;
        record.verdict(&verdict);
        match verdict.decision {
            Decision::Allow(changes) => Ok(Some(changes)),
            Decision::Deny(denial) => Err(Denied {
                denial,
                failed: matches!(verdict.how, How::Failed(_)),
            }),
        }
    }
}

/// A CONNECT, as far as it is asked about.
pub(crate) fn connect(version: Version, headers: HeaderMap) -> Parts {
    let (mut connect, ()) = Request::new(()).into_parts();
    (connect.method, connect.version, connect.headers) = (Method::CONNECT, version, headers);
    connect
}

/// As it is written to the origin: an absolute URL may have a query and no path.
fn path(parts: &Parts) -> String {
    let path = parts.uri.path_and_query();
    path.map_or_else(|| "/".to_owned(), ToString::to_string)
}

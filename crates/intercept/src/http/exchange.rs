//! One request: named, asked about, sent, answered.
//!
//! Each step takes what only the one before makes, so that nothing is sent that was not asked about, and
//! nothing is asked about under another name than it is sent to.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::timeout;

use crate::http::error_response::Form;
use crate::authz::authorize::{AboutBody, Asking, NO_BODY};
use crate::audit::Record;
use crate::http::response_body::{Answer, Outgoing};
use crate::authz::{Changes, Kind};
use crate::http::client_connection::Client;
use crate::http::framing;
use crate::http::hop_by_hop;
use crate::request::buffered_body::{Beginning, Held};
use crate::request::target::Named;
use crate::request::refusal::Refusal;
use crate::state::Site;
use crate::upstream::{Fault, Sent};
use crate::http::websocket::Handshake;

/// A request as it came, on a connection for one place.
pub(crate) struct Exchange<'a> {
    pub(crate) site: &'a Arc<Site>,
    pub(crate) client: &'a Arc<Client>,
    pub(crate) named: &'a Arc<Named>,
}

/// A request that may be sent.
struct Allowed {
    parts: Parts,
    changes: Option<Arc<Changes>>,
    handshake: Option<Handshake>,
}

/// What is left to be done once the client has its answer.
pub(crate) struct Switched {
    /// The origin's side.
    pub(crate) upstream: OnUpgrade,
    pub(crate) record: Box<Record>,
    /// How long both sides may say nothing.
    pub(crate) silence: Duration,
}

impl Exchange<'_> {
    /// Answers a request, whatever becomes of it. Where the protocol is switched, what comes then is put
    /// into `switched`.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let size = body.size_hint().exact();
        let body = Held::new(body);
        let mut answer = self.decide(parts, (body.clone(), size), switched).await;
        answer.body_mut().hold(body);
        answer
    }

    async fn decide(
        &self,
        mut parts: Parts,
        (body, size): (Option<Held>, Option<u64>),
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let mut record = Record::begin(&self.site.metrics, self.client, parts.method.as_str());
        record.path(&parts.uri);
        record.named(self.named);
        let form = Form::of(&parts.headers);
        if let Some(refusal) = &self.named.barred {
            return form.refuse(refusal, record);
        }
        if let Some(connect) = &self.named.denied {
            let asked = self
                .asking()
                .ask(Kind::Connect, connect, NO_BODY, &mut record);
            if let Err(denied) = asked.await {
                record.denied(denied.failed);
                return form.deny(&denied, record);
            }
        }
        let handshake = match self.prepare(&mut parts) {
            Ok(handshake) => handshake,
            Err(refusal) => return form.refuse(&refusal, record),
        };
        let begins = match self.begin(body.as_ref()).await {
            Ok(begins) => begins,
            Err(refusal) => return form.refuse(&refusal, record),
        };
        // Not an octet has left for the origin until the check has agreed.
        let about = AboutBody {
            size,
            begins: begins.as_ref(),
        };
        let asked = self.asking().ask(Kind::Request, &parts, about, &mut record);
        match asked.await {
            Ok(changes) => {
                let allowed = Allowed {
                    parts,
                    changes,
                    handshake,
                };
                self.send((allowed, record), body, form, switched).await
            }
            Err(denied) => form.deny(&denied, record),
        }
    }

    fn asking(&self) -> Asking<'_> {
        Asking {
            site: self.site,
            client: self.client,
            named: self.named,
        }
    }

    /// Makes of a request what the origin will get, so that the check sees that and nothing else.
    fn prepare(&self, parts: &mut Parts) -> Result<Option<Handshake>, Refusal> {
        if parts.version == Version::HTTP_2 {
            framing::of_http2(&parts.headers).map_err(Refusal::bad_request)?;
        }
        self.named.agrees(parts)?;
        let handshake = Handshake::of(parts)?;
        hop_by_hop::end_request_hop(&mut parts.headers);
        if let Some(handshake) = &handshake {
            handshake.write(parts);
        }
        Ok(handshake)
    }

    /// Reads as much of the body as the check is told.
    async fn begin(&self, body: Option<&Held>) -> Result<Option<Beginning>, Refusal> {
        let most = self.site.asked_about_bodies();
        let Some(body) = body.filter(|_| most > 0) else {
            return Ok(None);
        };
        match timeout(self.site.rules.opening_timeout, body.begin(most)).await {
            Ok(Ok(begins)) => Ok(Some(begins)),
            Ok(Err(_)) => Err(Fault::RequestCut.into()),
            Err(_) => {
                let detail = "the beginning of the body, which the check is to see, has not come";
                let status = StatusCode::REQUEST_TIMEOUT;
                Err(Refusal::new(status, "client_late", detail).closing())
            }
        }
    }

    async fn send(
        &self,
        (allowed, mut record): (Allowed, Box<Record>),
        body: Option<Held>,
        form: Form,
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let Allowed {
            mut parts,
            changes,
            handshake,
        } = allowed;
        if let Some(changes) = &changes {
            changes.apply_to_request(&mut parts.headers);
        }
        let body = Outgoing::new(body, Arc::clone(&record.sent));
        let http2 = parts.version == Version::HTTP_2 && handshake.is_none();
        let named = self.named;
        let upstream = &self.site.upstream;
        let client = self.client;
        let key = upstream.key(named.to.clone(), named.tls, http2, named.via, client.client);
        let request = Request::from_parts(parts, body);
        let sent = Arc::clone(&record.sent);
        match upstream.send(&client.own, key, request, &sent).await {
            Ok(sent) => self.pass_on(sent, (handshake, changes), form, record, switched),
            Err(failed) => {
                record.failed(&failed);
                form.refuse(&Refusal::from(failed), record)
            }
        }
    }

    fn pass_on(
        &self,
        sent: Sent,
        (handshake, changes): (Option<Handshake>, Option<Arc<Changes>>),
        form: Form,
        mut record: Box<Record>,
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let Sent {
            mut response,
            lease,
            about,
            reused,
        } = sent;
        record.upstream(about, reused);
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upgrade = switches.then(|| hyper::upgrade::on(&mut response));
        let (mut parts, body) = response.into_parts();
        hop_by_hop::end_response_hop(&mut parts.headers);
        if let Some(changes) = &changes {
            changes.apply_to_response(&mut parts.headers);
        }
        parts.version = Version::HTTP_11;
        record.answered(parts.status);
        let Some(upstream) = upgrade else {
            // To a CONNECT that would say that the origin has agreed.
            if matches!(handshake, Some(Handshake::Http2(_))) && parts.status.is_success() {
                let why = format!("{} to a WebSocket handshake", parts.status);
                return form.refuse(&Refusal::from(Fault::BadAnswer(why)), record);
            }
            let silence = match hop_by_hop::is_long_lived(&parts.headers) {
                true => self.site.rules.tunnel_timeout,
                false => self.site.rules.idle_timeout,
            };
            return Response::from_parts(parts, Answer::origins(body, lease, record, silence));
        };
        let switch = Switched {
            upstream,
            record,
            silence: self.site.rules.tunnel_timeout,
        };
        match handshake {
            Some(handshake) => handshake.agree(parts, switch, switched),
            None => {
                let fault = Fault::BadAnswer("101 to a request that asked for nothing".to_owned());
                form.refuse(&Refusal::from(fault), switch.record)
            }
        }
    }
}

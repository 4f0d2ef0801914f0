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

use crate::answer::Form;
use crate::audit::Record;
use crate::body::{Answer, Held, Outgoing};
use crate::check::{Authority, Changes, Decision, How, Kind, Question, Verdict};
use crate::client::Client;
use crate::headers;
use crate::named::{Barred, Named};
use crate::refusal::Refusal;
use crate::site::Site;
use crate::upstream::{Fault, Sent};
use crate::websocket::Handshake;

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
        parts: Parts,
        (body, size): (Option<Held>, Option<u64>),
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let mut record = Record::begin(&self.site.metrics, self.client, parts.method.as_str());
        record.path(&parts.uri);
        record.named(self.named);
        let form = Form::of(&parts.headers);
        match &self.named.barred {
            Some(Barred::Rule(refusal)) => return form.refuse(refusal, record),
            Some(Barred::Denied(denial, failed)) => {
                record.denied(*failed);
                return form.deny(denial, *failed, record);
            }
            None => {}
        }
        if let Err(refusal) = self.named.agrees(&parts) {
            return form.refuse(&refusal, record);
        }
        match self.ask(parts, size, form, record).await {
            Ok((allowed, record)) => self.send((allowed, record), body, form, switched).await,
            Err(denied) => *denied,
        }
    }

    /// Asks the check, if there is one. Not an octet has left for the origin until then.
    async fn ask(
        &self,
        parts: Parts,
        size: Option<u64>,
        form: Form,
        mut record: Box<Record>,
    ) -> Result<(Allowed, Box<Record>), Box<Response<Answer>>> {
        let verdict = self.verdict(&parts, size, &record).await;
        let mut allowed = Allowed {
            parts,
            changes: None,
        };
        let Some(verdict) = verdict else {
            record.unchecked();
            return Ok((allowed, record));
        };
        record.verdict(&verdict);
        match verdict.decision {
            Decision::Allow(changes) => allowed.changes = Some(changes),
            Decision::Deny(denial) => {
                let failed = matches!(verdict.how, How::Failed(_));
                return Err(Box::new(form.deny(&denial, failed, record)));
            }
        }
        Ok((allowed, record))
    }

    /// `None` where there is no check.
    async fn verdict(&self, parts: &Parts, size: Option<u64>, record: &Record) -> Option<Verdict> {
        let check = self.site.check()?;
        let (id, named) = (record.id.to_string(), self.named);
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let sni = named.sni.as_ref().map(ToString::to_string);
        let connect = named.connect.as_ref();
        let connect_host = connect.map(|connect| connect.host.to_string());
        let verdict = check
            .ask(&Question {
                kind: Kind::Request,
                request_id: &id,
                client: self.client.client,
                peer: self.client.peer.0,
                connect: connect
                    .zip(connect_host.as_deref())
                    .map(|(connect, host)| Authority {
                        host,
                        port: connect.port,
                    }),
                sni: sni.as_deref(),
                alpn: named.alpn,
                version: parts.version,
                method: &parts.method,
                scheme: named.scheme(),
                to: named.authority(),
                path_and_query: path,
                headers: &parts.headers,
                body_size: size,
                body: None,
                user: None,
            })
            .await;
        Some(verdict)
    }

    async fn send(
        &self,
        (allowed, mut record): (Allowed, Box<Record>),
        body: Option<Held>,
        form: Form,
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        let Allowed { mut parts, changes } = allowed;
        let handshake = match Handshake::of(&mut parts) {
            Ok(handshake) => handshake,
            Err(refusal) => return form.refuse(&refusal, record),
        };
        headers::end_request_hop(&mut parts.headers);
        if let Some(changes) = &changes {
            changes.apply_to_request(&mut parts.headers);
        }
        if let Some(handshake) = &handshake {
            handshake.write(&mut parts);
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
            Err(fault) => {
                record.fault(&fault);
                form.refuse(&Refusal::from(fault), record)
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
        headers::end_response_hop(&mut parts.headers);
        if let Some(changes) = &changes {
            changes.apply_to_response(&mut parts.headers);
        }
        parts.version = Version::HTTP_11;
        record.answered(parts.status);
        let Some(upstream) = upgrade else {
            let silence = match headers::is_long_lived(&parts.headers) {
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

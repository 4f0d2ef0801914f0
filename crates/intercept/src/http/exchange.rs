//! One exchange: a request is prepared, authorized, sent and answered.
//!
//! A request goes `Prepared`, `Allowed`, `Sent`; each step takes a value that only the previous step makes. So only an
//! authorized request is sent, and only to the name for which it was authorized.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use super::client_connection::ClientConnection;
use super::error_response::ErrorFormat;
use super::framing;
use super::hop_by_hop;
use super::in_flight::InFlightRecord;
use super::response_body::{OriginBody, ResponseBody, StallLimits};
use super::websocket::{Handshake, Switched};
use crate::authz::authorize::{Authorizer, BodyInfo, Denied};
use crate::authz::{Allowed, CheckedBody, HeaderMutations, Prepared};
use crate::request::buffered_body::{BodyPrefix, BufferedBody};
use crate::request::received_body::ReceivedBody;
use crate::request::refusal::Refusal;
use crate::request::target::RequestTarget;
use crate::state::InterceptState;
use crate::upstream::{RequestBody, Sent, UpstreamError, is_streaming};

/// The context of an exchange: a request on a connection with one target.
pub(crate) struct Exchange<'a> {
    pub(crate) state: &'a Arc<InterceptState>,
    pub(crate) connection: &'a Arc<ClientConnection>,
    pub(crate) target: &'a Arc<RequestTarget>,
    /// The user of `--proxy-auth`, if the request is not in a tunnel.
    pub(crate) user: Option<Arc<str>>,
}

/// The state of a request that was sent to its origin, for handling the response.
struct ResponseContext<'a> {
    record: Box<InFlightRecord>,
    format: ErrorFormat,
    handshake: Option<Handshake>,
    /// Set if the protocol is switched and the caller has to relay it.
    switched: &'a mut Option<Switched>,
}

impl Exchange<'_> {
    /// Answers a request; every failure has a response, too. If the protocol is switched and the caller has to relay
    /// it, `switched` is set.
    pub(crate) async fn respond(
        &self,
        request: Request<Incoming>,
        switched: &mut Option<Switched>,
    ) -> Response<ResponseBody> {
        let version = request.version();
        let (parts, body) = request.into_parts();
        let size = body.size_hint().exact();
        let body = BufferedBody::new(ReceivedBody::new(body, version));
        if let Some(body) = &body
            && hop_by_hop::expects_continue(&parts)
        {
            body.await_continue();
        }
        let mut response = self.decide(parts, body.clone(), size, switched).await;
        response.body_mut().hold_request(body.clone());
        if version == Version::HTTP_10 {
            // Without chunks, a response of unknown length ends with its connection.
            response.body_mut().reset_if_cut(&self.connection.cut);
        }
        // Without 100 (Continue), the next bytes may be the body all the same, or another request.
        let lacks_body = body.is_some_and(|body| body.lock().awaits_continue());
        // After a graceful shutdown, hyper announces the close only in responses that begin later.
        let is_last = self.state.is_draining() && !response.status().is_informational();
        if version != Version::HTTP_2 && (lacks_body || is_last) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    async fn decide(
        &self,
        parts: Parts,
        body: Option<BufferedBody>,
        size: Option<u64>,
        switched: &mut Option<Switched>,
    ) -> Response<ResponseBody> {
        let method = parts.method.as_str();
        let mut record = InFlightRecord::begin(self.state, self.connection, method);
        record.set_head(&parts);
        record.set_target(self.target);
        if self.user.is_some() {
            record.user.clone_from(&self.user);
        }
        let format = ErrorFormat::from_request(&parts.headers);
        if let Some(refusal) = &self.target.refusal {
            return format.refuse(refusal, record);
        }
        if let Some(connect) = &self.target.denied_connect
            && let Err(denied) = self.reauthorize_connect(connect, &mut record).await
        {
            record.set_tunnel_denied(denied.is_check_failed());
            return format.deny(&denied, record);
        }
        let (prepared, handshake) = match self.prepare(parts) {
            Ok(prepared) => prepared,
            Err(refusal) => return format.refuse(&refusal, record),
        };
        // One authorizer for both calls, so that a reload between them does not change how much of the body is read.
        let authorizer = self.authorizer();
        let checked = authorizer.checked_body(prepared.headers());
        let prefix = match self
            .read_body_prefix(checked, body.as_ref(), &mut record)
            .await
        {
            Ok(prefix) => prefix,
            Err(refusal) => return format.refuse(&refusal, record),
        };
        let info = BodyInfo {
            size,
            prefix: prefix.as_ref(),
        };
        match authorizer.authorize(prepared, info, &mut record).await {
            Ok(allowed) => {
                let context = ResponseContext {
                    record,
                    format,
                    handshake,
                    switched,
                };
                self.send(allowed, body, context).await
            }
            Err(denied) => format.deny(&denied, record),
        }
    }

    fn authorizer(&self) -> Authorizer<'_> {
        self.state.authorizer(&self.connection.info, self.target)
    }

    /// Authorizes again a CONNECT that was denied, and whose TLS was opened only to deliver the denial: the lists may have
    /// changed since.
    async fn reauthorize_connect(
        &self,
        connect: &Parts,
        record: &mut InFlightRecord,
    ) -> Result<(), Denied> {
        let mut authorizer = self.authorizer();
        let client = self.connection.info.addr.ip();
        let config = &self.state.config;
        authorizer.relays_tunnel = config.passes_through(client, &self.target.to.host);
        authorizer.authorize_tunnel(connect, record).await?;
        Ok(())
    }

    /// Turns a request into what the origin will get, so that the check sees that and nothing else.
    fn prepare(&self, mut parts: Parts) -> Result<(Prepared, Option<Handshake>), Refusal> {
        if parts.version == Version::HTTP_2 {
            framing::check_http2(&parts.headers)?;
        }
        self.target.check_agreement(&parts)?;
        let handshake = Handshake::read(&mut parts)?;
        hop_by_hop::strip_request(&mut parts.headers);
        if let Some(handshake) = &handshake {
            handshake.write(&mut parts);
        }
        let http2 = parts.version == Version::HTTP_2 && handshake.is_none();
        Ok((Prepared::new(parts, http2), handshake))
    }

    /// Reads as much of the body as the check service is to see.
    async fn read_body_prefix(
        &self,
        checked: CheckedBody,
        body: Option<&BufferedBody>,
        record: &mut InFlightRecord,
    ) -> Result<Option<BodyPrefix>, Refusal> {
        let Some(body) = body else {
            return Ok(None);
        };
        let max = match checked {
            CheckedBody::None => return Ok(None),
            CheckedBody::Exempt => {
                record.checked_body = Some("exempt");
                return Ok(None);
            }
            CheckedBody::Prefix(max) => max,
        };
        body.continue_now();
        let read = body.read_prefix(max, BODY_PAUSE);
        match timeout(self.state.config.opening_timeout, read).await {
            Ok(Ok(prefix)) => {
                record.checked_body = Some(if prefix.truncated { "partial" } else { "whole" });
                Ok(Some(prefix))
            }
            Ok(Err(_)) => Err(UpstreamError::RequestCut.into()),
            Err(_) => {
                let detail = "the client did not send the beginning of the body, which --check-body needs, in time";
                let status = StatusCode::REQUEST_TIMEOUT;
                Err(Refusal::new(status, "client_late", detail).with_close())
            }
        }
    }

    async fn send(
        &self,
        allowed: Allowed,
        body: Option<BufferedBody>,
        mut context: ResponseContext<'_>,
    ) -> Response<ResponseBody> {
        let changes = allowed.changes();
        let body = RequestBody::new(body, Arc::clone(&context.record.to_upstream));
        let upstream = &self.state.upstream;
        match upstream.send(&self.connection.leases, allowed, body).await {
            Ok(sent) => self.forward_response(sent, changes.as_deref(), context),
            Err(failed) => {
                let may_suggest_rule = self.state.may_suggest_rule(&self.target.to.host);
                failed.record_in(&mut context.record, may_suggest_rule);
                context
                    .format
                    .refuse(&Refusal::from(failed), context.record)
            }
        }
    }

    fn forward_response(
        &self,
        sent: Sent,
        changes: Option<&HeaderMutations>,
        context: ResponseContext<'_>,
    ) -> Response<ResponseBody> {
        let ResponseContext {
            mut record,
            format,
            handshake,
            switched,
        } = context;
        let Sent {
            mut response,
            lease,
            info,
            reused,
        } = sent;
        record.set_upstream(info.fields, reused);
        let has_length = [CONTENT_LENGTH, TRANSFER_ENCODING]
            .iter()
            .any(|name| response.headers().contains_key(name));
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upgrade = switches.then(|| hyper::upgrade::on(&mut response));
        let (mut parts, body) = response.into_parts();
        let body = ReceivedBody::new(body, parts.version);
        hop_by_hop::strip_response(&mut parts.headers);
        if let Some(changes) = changes {
            changes.apply_to_response(&mut parts.headers);
        }
        parts.version = Version::HTTP_11;
        record.set_status(parts.status);
        if let Some(upgrade) = upgrade {
            let switch = Switched {
                upgrade,
                connection: info,
                record,
                idle_timeout: self.state.config.tunnel_timeout,
            };
            let why = match handshake {
                Some(handshake) if handshake.is_confirmed(&parts.headers) => {
                    return handshake.accept(parts, switch, switched);
                }
                Some(_) => "101 without the Sec-WebSocket-Accept of this handshake",
                None => "101 to a request without Upgrade",
            };
            let refusal = Refusal::from(UpstreamError::BadResponse(why.to_owned()));
            return format.refuse(&refusal, switch.record);
        }
        // In response to an extended CONNECT, a 2xx would mean that the origin has switched protocols.
        if matches!(handshake, Some(Handshake::Http2 { .. })) && parts.status.is_success() {
            let why = format!("{} to a WebSocket handshake", parts.status);
            return format.refuse(&Refusal::from(UpstreamError::BadResponse(why)), record);
        }
        let limits = self.stall_limits(&parts.headers);
        let origin = OriginBody {
            body,
            lease,
            lacks_close_notify: (!has_length).then(|| Arc::clone(&info.lacks_close_notify)),
        };
        let body = ResponseBody::from_origin(origin, record, limits);
        Response::from_parts(parts, body)
    }

    fn stall_limits(&self, response: &HeaderMap) -> StallLimits {
        let config = &self.state.config;
        StallLimits {
            client: if is_streaming(response) {
                config.tunnel_timeout
            } else {
                config.idle_timeout
            },
            origin: config.response_idle_timeouts.get(&self.target.to.host),
            upload: config.idle_timeout,
        }
    }
}

/// A pause in a request's body after which the check is asked with what has arrived: the client may wait for the response
/// before it sends more.
const BODY_PAUSE: Duration = Duration::from_secs(1);

//! Authorization of a tunnel and of each request: by the access lists, and then by the check service, where these are configured.
//! Only this module makes an [`Allowed`] and an [`AllowedTunnel`].

pub(crate) mod stages;

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};

use crate::audit::admission::{AdmissionLog, AdmittedRequest};
use crate::audit::{ASKED, AuditRecord, FinalDecision};
use crate::authz::rules::{AccessRules, DeniedBy, Subject};
use crate::authz::{
    self, ApprovalRequest, Approver, AuthzRequest, BodyPrefix, CheckedBody, DecidedBy, Decision,
    Denial, HeaderMutations, HostPortRef, InjectedHeaders, RequestKind, Verdict,
};
use crate::request::buffered_body::BufferedPrefix;
use crate::request::client_info::ClientInfo;
use crate::request::refusal::Refusal;
use crate::request::remedy::Remedy;
use crate::request::target::RequestTarget;
use stages::{Allowed, AllowedTunnel, Prepared};

/// A denial.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    /// The client's response.
    pub(crate) denial: Arc<Denial>,
    /// Whether it is denied only because the check failed.
    pub(crate) failed: bool,
}

impl Denied {
    /// Turns it into a response to CONNECT: clients follow no redirection for a tunnel.
    pub(crate) fn for_tunnel(mut self) -> Self {
        if self.denial.status.is_redirection() {
            Arc::make_mut(&mut self.denial).status = StatusCode::FORBIDDEN;
        }
        self
    }

    /// The denial in the proxy's words.
    pub(crate) fn to_refusal(&self) -> Refusal {
        let Self { denial, failed } = self;
        let detail = match &*denial.reason {
            "" => "the request is not allowed".to_owned(),
            reason => reason.to_owned(),
        };
        if *failed {
            return Refusal::new(denial.status, "check_failed", detail)
                .with_hint("try again; if it lasts, tell those who run the service");
        }
        Refusal::new(denial.status, "denied", detail)
    }
}

/// What is known of a request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyInfo<'a> {
    /// Bytes; `None` where the length is not known beforehand.
    pub(crate) size: Option<u64>,
    /// The beginning, as far as the check service wants to see it.
    pub(crate) prefix: Option<&'a BufferedPrefix>,
}

/// No body.
const NO_BODY: BodyInfo<'static> = BodyInfo {
    size: Some(0),
    prefix: None,
};

/// Asks for the authorization of one client's requests to one target.
pub(crate) struct Authorizer<'a> {
    /// `None` where no access list is configured.
    pub(crate) rules: Option<Arc<AccessRules>>,
    /// Secrets for the requests that are allowed.
    pub(crate) injected: Arc<InjectedHeaders>,
    /// What decides where no rule matches; `None` where that is a denial.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Where an allowed request is recorded before it is sent, if anywhere.
    pub(crate) admissions: Option<Arc<dyn AdmissionLog>>,
    /// `None` where no check service is configured.
    pub(crate) check: Option<authz::CheckClient>,
    /// Whether the request is for a tunnel that is relayed unopened, so that no request in it is decided on.
    pub(crate) relays_tunnel: bool,
    pub(crate) client: &'a ClientInfo,
    pub(crate) target: &'a Arc<RequestTarget>,
}

impl Authorizer<'_> {
    /// What the check service is to see of the body of a request with these headers.
    pub(crate) fn checked_body(&self, headers: &HeaderMap) -> CheckedBody {
        let check = self.check.as_ref();
        check.map_or(CheckedBody::None, |check| check.checked_body(headers))
    }

    /// Authorizes a request. The service is not asked about what the access lists deny: both have to allow it.
    ///
    /// # Errors
    ///
    /// [`Denied`]: a rule or the service denied it, the service gave no answer and `--on-check-failure` denies, or it can't be
    /// recorded.
    pub(crate) async fn authorize(
        self,
        request: Prepared,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Allowed, Denied> {
        let (target, client) = (self.target, self.client.addr);
        let injected = Arc::clone(&self.injected);
        let decided = self.decide(RequestKind::Request, &request.head, body, record);
        let changes = decided.await?;
        let mut allowed = Allowed::new(target, client, request, changes);
        record.injected = allowed.add_secrets(&injected);
        Ok(allowed)
    }

    /// Authorizes a tunnel by its CONNECT, as [`Self::authorize`] does a request.
    pub(crate) async fn authorize_tunnel(
        self,
        connect: &Parts,
        record: &mut AuditRecord,
    ) -> Result<AllowedTunnel, Denied> {
        let (target, client, is_relayed) = (self.target, self.client.addr, self.relays_tunnel);
        let decided = self.decide(RequestKind::Connect, connect, NO_BODY, record);
        decided.await?;
        Ok(AllowedTunnel::new(target, client, is_relayed))
    }

    /// Decides, and records what is admitted. Returns the header changes that the check service wants made; `None` where no check
    /// service is configured.
    async fn decide(
        self,
        kind: RequestKind,
        parts: &Parts,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Option<Arc<HeaderMutations>>, Denied> {
        let (admissions, target) = (self.admissions.clone(), self.target);
        let changes = self.apply_policy(kind, parts, body, record).await?;
        let Some(admissions) = admissions else {
            return Ok(changes);
        };
        let admitted = AdmittedRequest::new(&record.id, kind, target, &parts.method, &record.path);
        match admissions.record(&admitted) {
            Ok(()) => Ok(changes),
            Err(_) => Err(deny_unrecorded(record)),
        }
    }

    async fn apply_policy(
        self,
        kind: RequestKind,
        parts: &Parts,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Option<Arc<HeaderMutations>>, Denied> {
        let allowed_by = self.apply_rules(kind, parts, record).await?;
        let Some(check) = self.check else {
            match allowed_by {
                Some(how) => record.set_decision(FinalDecision::Allowed, how),
                None => record.set_decision(FinalDecision::Unchecked, "no_check"),
            }
            return Ok(None);
        };
        let target = self.target;
        let (scheme, path) = match kind {
            RequestKind::Connect => ("", String::new()),
            RequestKind::Request => (target.scheme(), path_and_query(parts)),
        };
        let id = record.id.to_string();
        let traceparent = record.traceparent();
        let sni = target.sni.as_ref().map(ToString::to_string);
        let connect = target.connect.as_ref();
        let connect = connect.map(|connect| (connect.host.to_string(), connect.port));
        // Boxed, as it is large, and requests without a check would allocate memory for it too.
        let verdict = Box::pin(
            check.ask(&AuthzRequest {
                kind,
                request_id: &id,
                client: self.client.addr,
                peer: self.client.peer.0,
                connect: connect
                    .as_ref()
                    .map(|(host, port)| HostPortRef { host, port: *port }),
                sni: sni.as_deref(),
                alpn: target.alpn,
                version: parts.version,
                method: &parts.method,
                scheme,
                to: HostPortRef {
                    host: &target.host,
                    port: target.to.port,
                },
                path_and_query: &path,
                headers: &parts.headers,
                traceparent: traceparent.as_ref(),
                body_size: body.size,
                body: body.prefix.map(|prefix| BodyPrefix {
                    bytes: &prefix.bytes,
                    truncated: prefix.truncated,
                }),
            }),
        )
        .await;
        note_verdict(&verdict, record);
        match verdict.decision {
            Decision::Allow(mutations) => Ok(Some(mutations)),
            Decision::Deny(denial) => Err(Denied {
                denial,
                failed: matches!(verdict.decided_by, DecidedBy::Failure(_)),
            }),
        }
    }
}

impl Authorizer<'_> {
    /// Denies what the access lists deny, and what they don't decide on unless it is approved. Returns what has allowed it; `None`
    /// where nothing is configured.
    async fn apply_rules(
        &self,
        kind: RequestKind,
        parts: &Parts,
        record: &mut AuditRecord,
    ) -> Result<Option<&'static str>, Denied> {
        let subject = match kind {
            RequestKind::Request => Subject::Request {
                method: parts.method.as_str(),
                path: parts.uri.path(),
            },
            RequestKind::Connect if self.relays_tunnel => Subject::RelayedTunnel,
            RequestKind::Connect => Subject::OpenedTunnel,
        };
        let decided = match (&self.rules, &self.approver) {
            (None, None) => return Ok(None),
            (Some(rules), _) => rules.decide(&self.target.to, subject),
            (None, Some(_)) => Err(DeniedBy::Default),
        };
        let (reason, how) = match (decided, &self.approver) {
            (Ok(rule), _) => {
                record.rule = Some(rule.text());
                return Ok(Some(LIST));
            }
            (Err(DeniedBy::Default | DeniedBy::AmbiguousPath), Some(approver)) => {
                let approval = approver.approve(self.to_be_approved(subject, parts)).await;
                match approval.denied {
                    None => return Ok(Some(approval.how)),
                    Some(reason) => (reason.to_owned(), approval.how),
                }
            }
            (Err(denied), _) => {
                record.rule = denied.rule_text();
                if matches!(denied, DeniedBy::Default)
                    && let Some(rules) = &self.rules
                    && let Some(rule) = rules.missing_rule(&self.target.to, subject)
                {
                    record.remedy = Some(Remedy::Allow(rule));
                }
                (denied.reason(), LIST)
            }
        };
        let denial = Denial::new(StatusCode::FORBIDDEN, &reason);
        record.set_decision(FinalDecision::Denied, how);
        record.set_denial_reason(&denial.reason);
        Err(Denied {
            denial: Arc::new(denial),
            failed: false,
        })
    }

    fn to_be_approved<'a>(&'a self, subject: Subject<'a>, parts: &'a Parts) -> ApprovalRequest<'a> {
        ApprovalRequest {
            to: &self.target.to,
            method: parts.method.as_str(),
            path: match subject {
                Subject::Request { path, .. } => path,
                Subject::OpenedTunnel | Subject::RelayedTunnel => "",
            },
        }
    }
}

fn deny_unrecorded(record: &mut AuditRecord) -> Denied {
    let reason = "the audit log is not writable";
    let denial = Denial::new(StatusCode::SERVICE_UNAVAILABLE, reason);
    record.set_decision(FinalDecision::Denied, "audit_failed");
    record.set_denial_reason(&denial.reason);
    Denied {
        denial: Arc::new(denial),
        failed: false,
    }
}

/// What has decided, in the audit line: the access lists.
const LIST: &str = "list";

fn note_verdict(verdict: &Verdict, record: &mut AuditRecord) {
    record.check_took = Some(verdict.took);
    let answered = match verdict.decision.allows() {
        true => FinalDecision::Allowed,
        false => FinalDecision::Denied,
    };
    let (decision, how) = match &verdict.decided_by {
        DecidedBy::Service => (answered, ASKED),
        DecidedBy::Cache => (answered, "cached"),
        DecidedBy::Failure(failure) => (FinalDecision::CheckFailed, failure.code()),
        DecidedBy::FailOpen(failure) => (FinalDecision::FailedOpen, failure.code()),
    };
    record.set_decision(decision, how);
    if let Decision::Deny(denial) = &verdict.decision {
        record.set_denial_reason(&denial.reason);
    }
}

/// The head of a CONNECT, as far as the check service sees it.
pub(crate) fn connect_head(version: Version, headers: HeaderMap) -> Parts {
    let (mut connect, ()) = Request::new(()).into_parts();
    (connect.method, connect.version, connect.headers) = (Method::CONNECT, version, headers);
    connect
}

/// Path and query as they are written to the origin: an absolute URL may have a query and no path.
fn path_and_query(parts: &Parts) -> String {
    let path = parts.uri.path_and_query();
    path.map_or_else(|| "/".to_owned(), ToString::to_string)
}

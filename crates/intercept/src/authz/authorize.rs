//! Authorization of a tunnel and of each request: by the access lists, then by the check service, if they are configured. Only this
//! module constructs [`Allowed`] and [`AllowedTunnel`].

pub(crate) mod stages;

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};

use crate::audit::admission::{AdmissionLog, AdmittedRequest};
use crate::audit::{ASKED, AuditRecord, FinalDecision, LIST};
use crate::authz::rules::{AccessRules, DeniedBy, Rule, Subject};
use crate::authz::{
    ApprovalRequest, Approver, AuthzRequest, BodyPrefix, CheckClient, CheckedBody, DecidedBy,
    Decision, Denial, HeaderMutations, InjectedHeaders, RequestKind, Unapprovable, Verdict,
};
use crate::host::Host;
use crate::request::client_info::ClientInfo;
use crate::request::refusal::Refusal;
use crate::request::remedy::Remedy;
use crate::request::target::RequestTarget;
use stages::{Allowed, AllowedTunnel, Permission, Prepared};

/// The result of a denied authorization.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    /// The client's response.
    pub(crate) denial: Arc<Denial>,
    /// What denied it: a rule or the service, the failure of the check, or that of the admission log.
    pub(crate) code: &'static str,
}

impl Denied {
    /// Whether the request is denied only because the check failed.
    pub(crate) fn is_check_failed(&self) -> bool {
        self.code == CHECK_FAILED
    }

    /// Converts a redirection to 403: clients don't follow a redirection in response to CONNECT.
    pub(crate) fn for_tunnel(mut self) -> Self {
        if self.denial.status.is_redirection() {
            Arc::make_mut(&mut self.denial).status = StatusCode::FORBIDDEN;
        }
        self
    }

    /// The denial as an error response of the proxy, without the headers and the body of the service.
    pub(crate) fn to_refusal(&self) -> Refusal {
        let Self { denial, code } = self;
        let detail = match &*denial.reason {
            "" => "the request is not allowed".to_owned(),
            reason => reason.to_owned(),
        };
        let hint = match *code {
            CHECK_FAILED => "try again; if it lasts, tell the operator of the service",
            AUDIT_FAILED => "try again; if it lasts, tell the operator of the proxy",
            _ => "",
        };
        Refusal::new(denial.status, code, detail).with_hint(hint)
    }
}

/// The body of a request, as far as it is known before the check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyInfo<'a> {
    /// The length in bytes; `None` if the request does not declare it.
    pub(crate) size: Option<u64>,
    /// The first bytes, if the check service is sent them.
    pub(crate) prefix: Option<&'a BodyPrefix>,
}

const NO_BODY: BodyInfo<'static> = BodyInfo {
    size: Some(0),
    prefix: None,
};

/// What allows a request, before a check service is asked.
#[derive(Clone, Copy, Debug, Default)]
struct AllowedBy {
    /// How it was decided, for the log; `None` if neither access lists nor an approver is configured.
    how: Option<&'static str>,
    /// Whether it is a rule that names the port.
    is_port_named: bool,
}

/// Authorizes one request or tunnel of a client to a target.
pub(crate) struct Authorizer<'a> {
    /// `None` if no access list is configured.
    pub(crate) rules: Option<Arc<AccessRules>>,
    /// Secrets for the requests that are allowed.
    pub(crate) injected: Arc<InjectedHeaders>,
    /// Decides on requests that no rule matches; without one, they are denied.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Why the approver is not asked about the target.
    pub(crate) unapprovable: Option<Unapprovable>,
    /// Records each allowed request before it is sent.
    pub(crate) admissions: Option<Arc<dyn AdmissionLog>>,
    /// `None` if no check service is configured.
    pub(crate) check: Option<CheckClient>,
    /// Whether the tunnel is relayed unopened, so that the requests in it are not decided on.
    pub(crate) relays_tunnel: bool,
    pub(crate) client: &'a ClientInfo,
    pub(crate) target: &'a Arc<RequestTarget>,
}

impl Authorizer<'_> {
    /// How much of the body is sent to the check service, for a request with these headers.
    pub(crate) fn checked_body(&self, headers: &HeaderMap) -> CheckedBody {
        match &self.check {
            Some(check) => check.checked_body(headers),
            None => CheckedBody::None,
        }
    }

    /// Authorizes a request. The access lists and the check service both have to allow it; the service is not asked about a
    /// request that the lists deny.
    ///
    /// # Errors
    ///
    /// [`Denied`]: a rule or the service denied the request, the check failed and `--on-check-failure` denies, or the request can't
    /// be recorded.
    pub(crate) async fn authorize(
        self,
        request: Prepared,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Allowed, Denied> {
        let (target, client) = (self.target, self.client.addr);
        let injected = Arc::clone(&self.injected);
        let permission = self
            .decide(RequestKind::Request, &request.head, body, record)
            .await?;
        let mut allowed = Allowed::new(target, client, request, permission);
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
        self.decide(RequestKind::Connect, connect, NO_BODY, record)
            .await?;
        Ok(AllowedTunnel::new(target, client, is_relayed))
    }

    /// Decides, and logs the admission.
    async fn decide(
        self,
        kind: RequestKind,
        parts: &Parts,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Permission, Denied> {
        let (admissions, target) = (self.admissions.clone(), self.target);
        let permission = self.apply_policy(kind, parts, body, record).await?;
        if let Some(admissions) = admissions {
            let admitted = AdmittedRequest::new(record, kind, target, &parts.method);
            if admissions.record(&admitted).is_err() {
                let reason = "the audit log is not writable";
                let denial = Denial::new(StatusCode::SERVICE_UNAVAILABLE, reason);
                // The rule that matched did not deny the request.
                record.rule = None;
                return Err(Denied {
                    code: AUDIT_FAILED,
                    ..deny(denial, AUDIT_FAILED, record)
                });
            }
        }
        Ok(permission)
    }

    /// Applies the access lists, then asks the check service.
    async fn apply_policy(
        self,
        kind: RequestKind,
        parts: &Parts,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Permission, Denied> {
        let AllowedBy { how, is_port_named } = self.apply_rules(kind, parts, record).await?;
        let mut changes = None;
        if let Some(check) = &self.check {
            changes = Some(self.ask_service(check, kind, parts, body, record).await?);
        } else if let Some(how) = how {
            record.set_decision(FinalDecision::Allowed, how);
        } else {
            record.set_decision(FinalDecision::Unchecked, "no_check");
        }
        Ok(Permission {
            changes,
            is_port_named,
        })
    }

    async fn ask_service(
        &self,
        check: &CheckClient,
        kind: RequestKind,
        parts: &Parts,
        body: BodyInfo<'_>,
        record: &mut AuditRecord,
    ) -> Result<Arc<HeaderMutations>, Denied> {
        let target = self.target;
        let (scheme, path) = match kind {
            RequestKind::Connect => ("", String::new()),
            RequestKind::Request => (target.scheme(), path_and_query(parts)),
        };
        let id = record.id.to_string();
        let traceparent = record.traceparent();
        // The future of a check is large. Boxed, it takes no memory in the futures of requests that are not checked.
        let verdict = Box::pin(check.ask(&AuthzRequest {
            kind,
            request_id: &id,
            client: self.client.addr,
            peer: self.client.peer.0,
            connect: target.connect.as_ref(),
            sni: target.sni.as_ref().and_then(Host::as_name),
            alpn: target.alpn,
            version: parts.version,
            method: &parts.method,
            scheme,
            to: &target.to,
            path_and_query: &path,
            headers: &parts.headers,
            traceparent: traceparent.as_ref(),
            body_size: body.size,
            body: body.prefix,
        }))
        .await;
        record_verdict(&verdict, record);
        match verdict.decision {
            Decision::Allow(mutations) => Ok(mutations),
            Decision::Deny(denial) => Err(Denied {
                denial,
                code: match verdict.decided_by {
                    DecidedBy::Failure(_) => CHECK_FAILED,
                    _ => DENIED,
                },
            }),
        }
    }

    /// Applies the access lists, and asks the approver about what no rule matches.
    async fn apply_rules(
        &self,
        kind: RequestKind,
        parts: &Parts,
        record: &mut AuditRecord,
    ) -> Result<AllowedBy, Denied> {
        let subject = match kind {
            RequestKind::Request => Subject::Request {
                method: parts.method.as_str(),
                path: parts.uri.path(),
            },
            RequestKind::Connect if self.relays_tunnel => Subject::RelayedTunnel,
            RequestKind::Connect => Subject::OpenedTunnel,
        };
        let Some(decided) = self.decide_by_lists(subject) else {
            return Ok(AllowedBy::default());
        };
        let denied = match decided {
            Ok(rule) => {
                record.rule = Some(rule.text());
                return Ok(AllowedBy {
                    how: Some(LIST),
                    is_port_named: rule.names_port(),
                });
            }
            Err(denied) => denied,
        };
        let Some(approver) = self.approver_after(denied) else {
            return Err(self.deny_by_list(denied, subject, record));
        };
        if let Some(unapprovable) = &self.unapprovable {
            return Err(deny_unapprovable(unapprovable, record));
        }
        let request = ApprovalRequest {
            to: &self.target.to,
            method: parts.method.as_str(),
            path: match subject {
                Subject::Request { path, .. } => path,
                Subject::OpenedTunnel | Subject::RelayedTunnel => "",
            },
        };
        let approval = approver.approve(request).await;
        match approval.denial_reason {
            None => Ok(AllowedBy {
                how: Some(approval.how),
                is_port_named: false,
            }),
            Some(reason) => {
                let denial = Denial::new(StatusCode::FORBIDDEN, reason);
                Err(deny(denial, approval.how, record))
            }
        }
    }

    /// The approver, if it is asked about what the lists deny for this reason: it is not where a rule denies.
    fn approver_after(&self, denied: DeniedBy<'_>) -> Option<&dyn Approver> {
        match denied {
            DeniedBy::Rule(_) => None,
            DeniedBy::Default | DeniedBy::AmbiguousPath | DeniedBy::UnknownMethod => {
                self.approver.as_deref()
            }
        }
    }

    /// Records a denial of a tunnel to this target if the access lists deny it and no approver would be asked. This is for a
    /// connection that ended without a request, and for a request that was refused before it was decided on.
    pub(crate) fn record_denied_tunnel(&self, record: &mut AuditRecord) {
        let subject = Subject::OpenedTunnel;
        let Some(Err(denied)) = self.decide_by_lists(subject) else {
            return;
        };
        if self.approver_after(denied).is_none() {
            self.deny_by_list(denied, subject, record);
        } else if let Some(unapprovable) = &self.unapprovable {
            deny_unapprovable(unapprovable, record);
        }
    }

    /// Decides by the access lists; `None` if neither lists nor an approver is configured. Without lists, everything is left to
    /// the approver.
    fn decide_by_lists(&self, subject: Subject<'_>) -> Option<Result<&Rule, DeniedBy<'_>>> {
        match (&self.rules, &self.approver) {
            (None, None) => None,
            (Some(rules), _) => Some(rules.decide(&self.target.to, subject)),
            (None, Some(_)) => Some(Err(DeniedBy::Default)),
        }
    }

    /// Records a denial by the access lists, and the rule that would allow the subject.
    fn deny_by_list(
        &self,
        denied: DeniedBy<'_>,
        subject: Subject<'_>,
        record: &mut AuditRecord,
    ) -> Denied {
        record.rule = denied.rule_text();
        if matches!(denied, DeniedBy::Default)
            && let Some(rules) = &self.rules
            && let Some(rule) = rules.missing_rule(&self.target.to, subject)
        {
            record.remedy = Some(Remedy::Allow(rule));
        }
        let denial = Denial::new(StatusCode::FORBIDDEN, &denied.reason());
        deny(denial, LIST, record)
    }
}

/// Records a denial about which the approver is not asked.
fn deny_unapprovable(unapprovable: &Unapprovable, record: &mut AuditRecord) -> Denied {
    record.remedy.clone_from(&unapprovable.remedy);
    let denial = Denial::new(StatusCode::FORBIDDEN, &unapprovable.reason);
    deny(denial, LIST, record)
}

/// Records a denial that did not come from the check service, and `how` it was decided.
fn deny(denial: Denial, how: &'static str, record: &mut AuditRecord) -> Denied {
    record.set_decision(FinalDecision::Denied, how);
    record.set_denial_reason(&denial.reason);
    Denied {
        denial: Arc::new(denial),
        code: DENIED,
    }
}

const DENIED: &str = "denied";
const CHECK_FAILED: &str = "check_failed";
const AUDIT_FAILED: &str = "audit_failed";

fn record_verdict(verdict: &Verdict, record: &mut AuditRecord) {
    record.check_took = Some(verdict.took);
    let service_decision = match &verdict.decision {
        Decision::Allow(_) => FinalDecision::Allowed,
        Decision::Deny(_) => FinalDecision::Denied,
    };
    let (decision, how) = match &verdict.decided_by {
        DecidedBy::Service => (service_decision, ASKED),
        DecidedBy::Cache => (service_decision, "cached"),
        DecidedBy::Failure(failure) => (FinalDecision::CheckFailed, failure.code()),
        DecidedBy::FailOpen(failure) => (FinalDecision::FailedOpen, failure.code()),
    };
    record.set_decision(decision, how);
    if let Decision::Deny(denial) = &verdict.decision {
        record.set_denial_reason(&denial.reason);
    }
}

/// Builds the head of a CONNECT from the parts that are sent to the check service.
pub(crate) fn connect_head(version: Version, headers: HeaderMap) -> Parts {
    let (mut connect, ()) = Request::new(()).into_parts();
    (connect.method, connect.version, connect.headers) = (Method::CONNECT, version, headers);
    connect
}

/// Path and query as they are written to the origin, with the slash that an absolute URL may lack.
fn path_and_query(parts: &Parts) -> String {
    match parts.uri.path_and_query() {
        Some(path) => path.to_string(),
        None => "/".to_owned(),
    }
}

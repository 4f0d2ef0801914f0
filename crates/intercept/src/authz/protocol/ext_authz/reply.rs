//! What an ext_authz service said.

use envoy_types::pb::envoy::config::core::v3::HeaderValueOption;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{
    CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
use envoy_types::pb::google::protobuf::{Struct, value};
use http::StatusCode;

use crate::authz::header_mutations::{Changes, Mode, Of};
use crate::authz::response::{Answer, Keep};
use crate::authz::verdict::{Denial, Failure};

/// The decision in a reply.
///
/// Stricter than Envoy where a reply says nothing or two things: to Envoy an empty message is a yes, because 0
/// is OK.
///
/// # Errors
///
/// [`Failure::Malformed`] for such replies, for one that the service itself calls an error, and for a yes to
/// another query than the one that would be sent.
pub fn read(reply: CheckResponse) -> Result<Answer, Failure> {
    let code = reply.status.as_ref().map(|status| status.code);
    let reason = reply
        .status
        .map(|status| status.message)
        .unwrap_or_default();
    let answer = match (code, reply.http_response) {
        (_, Some(HttpResponse::ErrorResponse(_))) => Err(Failure::Malformed("an error response")),
        (None, None) => Err(Failure::Malformed("neither a status nor a response")),
        (Some(0), Some(HttpResponse::DeniedResponse(_))) => {
            Err(Failure::Malformed("status OK with a denied response"))
        }
        (Some(0), None) => Ok(Answer::allow(Changes::default())),
        (Some(0) | None, Some(HttpResponse::OkResponse(ok))) => changes(ok).map(Answer::allow),
        (_, Some(HttpResponse::DeniedResponse(denied))) => {
            Ok(Answer::deny(denial(denied, &reason)))
        }
        (_, _) => Ok(Answer::deny(Denial::new(StatusCode::FORBIDDEN, &reason))),
    }?;
    Ok(answer.kept(keep(reply.dynamic_metadata.as_ref())))
}

fn changes(ok: OkHttpResponse) -> Result<Changes, Failure> {
    if !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty() {
        return Err(Failure::Malformed(
            "a yes to a changed query, and queries are not changed here",
        ));
    }
    let mut changes = Changes::default();
    for name in &ok.headers_to_remove {
        changes.remove(name.as_bytes());
    }
    for (of, options) in [
        (Of::Request, &ok.headers),
        (Of::Response, &ok.response_headers_to_add),
    ] {
        for option in options {
            let (name, value) = header(option);
            changes.put(of, name, value, mode(option, of));
        }
    }
    Ok(changes)
}

/// As Envoy reads them: `append` is older than the action, whose default can't be told from its absence. On a
/// request that means to set, on a response to add.
fn mode(option: &HeaderValueOption, of: Of) -> Mode {
    #[expect(deprecated, reason = "most services there are set this one")]
    let append = option.append.is_some_and(|append| append.value);
    match option.append_action() {
        _ if append => Mode::Append,
        HeaderAppendAction::AddIfAbsent => Mode::IfAbsent,
        HeaderAppendAction::OverwriteIfExists => Mode::IfPresent,
        HeaderAppendAction::AppendIfExistsOrAdd if of == Of::Response => Mode::Append,
        HeaderAppendAction::AppendIfExistsOrAdd | HeaderAppendAction::OverwriteIfExistsOrAdd => {
            Mode::Set
        }
    }
}

fn header(option: &HeaderValueOption) -> (&[u8], &[u8]) {
    let Some(header) = &option.header else {
        return (b"", b"");
    };
    match header.raw_value.is_empty() {
        true => (header.key.as_bytes(), header.value.as_bytes()),
        false => (header.key.as_bytes(), &header.raw_value),
    }
}

fn denial(denied: DeniedHttpResponse, reason: &str) -> Denial {
    let code = denied.status.map(|status| status.code).unwrap_or_default();
    let status = u16::try_from(code)
        .ok()
        .and_then(|code| StatusCode::from_u16(code).ok());
    let mut denial = Denial::new(status.unwrap_or(StatusCode::FORBIDDEN), reason);
    for option in &denied.headers {
        let (name, value) = header(option);
        denial.add(name, value);
    }
    denial.body = denied.body.into();
    denial
}

/// There is no field for it; `cache_control` in the metadata is ours.
fn keep(metadata: Option<&Struct>) -> Keep {
    let field = metadata.and_then(|metadata| metadata.fields.get("cache_control"));
    match field.and_then(|field| field.kind.as_ref()) {
        Some(value::Kind::StringValue(written)) => Keep::of(written),
        Some(_) => Keep::of("no-store"),
        None => Keep::AsConfigured,
    }
}

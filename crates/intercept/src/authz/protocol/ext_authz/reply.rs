//! Decoding of an ext_authz service's response.

use http::StatusCode;

use super::messages::{
    AppendAction, CheckResponse, DeniedHttpResponse, HeaderValueOption, Metadata, OkHttpResponse,
};
use crate::authz::header_mutations::{HeaderMutations, MessageKind, MutationMode};
use crate::authz::response::{AuthzResponse, CacheLifetime};
use crate::authz::verdict::{AuthzError, Denial};

/// The HTTP part of a response: changes of an allowed request, or the client's response to a denied one.
enum HttpResponse {
    Denied(DeniedHttpResponse),
    Ok(OkHttpResponse),
}

/// Decodes a response.
///
/// Stricter than Envoy: an empty message allows a request in Envoy, because status 0 is OK, and of a field that occurs twice a
/// protobuf decoder takes the last. Here both are errors.
///
/// # Errors
///
/// [`AuthzError::Malformed`]: the response is empty, contradicts itself, has a field or result twice, is an error response, or asks
/// for another query.
pub fn decode(reply: CheckResponse) -> Result<AuthzResponse, AuthzError> {
    let metadata = reply.dynamic_metadata;
    let (code, reason) = match at_most_one(reply.status)? {
        Some(status) => (
            Some(at_most_one(status.code)?.unwrap_or_default()),
            status.message,
        ),
        None => (None, String::new()),
    };
    let denied = reply.denied_response.into_iter().map(HttpResponse::Denied);
    let ok = reply.ok_response.into_iter().map(HttpResponse::Ok);
    let response = match (code, at_most_one(denied.chain(ok).collect())?) {
        _ if !reply.error_response.is_empty() => Err(AuthzError::Malformed("an error response")),
        (None, None) => Err(AuthzError::Malformed("neither a status nor a response")),
        (Some(0), Some(HttpResponse::Denied(_))) => {
            Err(AuthzError::Malformed("status OK with a denied response"))
        }
        (Some(0), None) => AuthzResponse::allow(HeaderMutations::default()),
        (Some(0) | None, Some(HttpResponse::Ok(ok))) => {
            header_mutations(ok).and_then(AuthzResponse::allow)
        }
        (_, Some(HttpResponse::Denied(denied))) => Ok(AuthzResponse::deny(denial(denied, &reason))),
        (_, _) => Ok(AuthzResponse::deny(Denial::new(
            StatusCode::FORBIDDEN,
            &reason,
        ))),
    }?;
    Ok(response.with_lifetime(cache_lifetime(metadata.as_ref())))
}

fn at_most_one<T>(mut occurrences: Vec<T>) -> Result<Option<T>, AuthzError> {
    match occurrences.len() {
        0 | 1 => Ok(occurrences.pop()),
        _ => Err(AuthzError::Malformed(
            "a status or a result that occurs twice",
        )),
    }
}

fn header_mutations(ok: OkHttpResponse) -> Result<HeaderMutations, AuthzError> {
    if !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty() {
        return Err(AuthzError::Malformed(
            "an OK for a changed query, which is not supported",
        ));
    }
    let mut changes = HeaderMutations::default();
    for name in &ok.headers_to_remove {
        changes.remove(name.as_bytes());
    }
    for (message, options) in [
        (MessageKind::Request, &ok.headers),
        (MessageKind::Response, &ok.response_headers_to_add),
    ] {
        for option in options {
            let (name, value) = header(option);
            changes.add(message, name, value, mode(option, message));
        }
    }
    Ok(changes)
}

/// The mode, from `append`, which is older and decides where it is given, or `append_action`. An absent action can't be told
/// from the default one; either replaces a request header, and appends a response header.
fn mode(option: &HeaderValueOption, message: MessageKind) -> MutationMode {
    match option.append_action() {
        _ if option.append == Some(true) => MutationMode::Append,
        _ if option.append == Some(false) => MutationMode::Set,
        AppendAction::AddIfAbsent => MutationMode::IfAbsent,
        AppendAction::OverwriteIfExists => MutationMode::IfPresent,
        AppendAction::AppendIfExistsOrAdd if message == MessageKind::Response => {
            MutationMode::Append
        }
        AppendAction::AppendIfExistsOrAdd | AppendAction::OverwriteIfExistsOrAdd => {
            MutationMode::Set
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
        denial.add_header(name, value);
    }
    denial.body = denied.body.into();
    denial
}

/// The cache lifetime: `cache_control` in the metadata, an extension of peername.
fn cache_lifetime(metadata: Option<&Metadata>) -> CacheLifetime {
    match metadata.and_then(|metadata| metadata.fields.get("cache_control")) {
        Some(field) => CacheLifetime::parse(field.string.as_deref().unwrap_or("no-store")),
        None => CacheLifetime::AsConfigured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AppendAction as Action;
    use MutationMode as Mode;

    /// As Envoy does it: `append`, where it is given, decides whatever the action is.
    #[test]
    fn append_decides_before_the_action() {
        for (append, action, request, response) in [
            (None, Action::AppendIfExistsOrAdd, Mode::Set, Mode::Append),
            (None, Action::AddIfAbsent, Mode::IfAbsent, Mode::IfAbsent),
            (Some(true), Action::AddIfAbsent, Mode::Append, Mode::Append),
            (
                Some(false),
                Action::AppendIfExistsOrAdd,
                Mode::Set,
                Mode::Set,
            ),
            (Some(false), Action::OverwriteIfExists, Mode::Set, Mode::Set),
        ] {
            let option = HeaderValueOption {
                header: None,
                append,
                append_action: action.into(),
            };
            let modes =
                [MessageKind::Request, MessageKind::Response].map(|kind| mode(&option, kind));
            assert_eq!(modes, [request, response], "{append:?} {action:?}");
        }
    }
}

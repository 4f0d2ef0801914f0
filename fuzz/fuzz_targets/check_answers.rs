//! Any response of a check service: no panic; only an explicit allow permits the request, and a denial is a valid HTTP
//! response.
#![no_main]

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::fuzz_target;
use peername_intercept::authz::ext_authz_messages::CheckResponse;
use peername_intercept::authz::{
    AuthzError, AuthzResponse, Decision, ext_authz_reply, forward_auth_reply, opa_reply,
};
use prost::Message as _;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Some((&protocol, bytes)) = bytes.split_first() else {
        return;
    };
    match protocol % 3 {
        0 => ext_authz(bytes),
        1 => opa(bytes),
        _ => forward_auth(bytes),
    }
});

fn ext_authz(bytes: &[u8]) {
    let Ok(reply) = CheckResponse::decode(bytes) else {
        return;
    };
    let code = reply
        .status
        .first()
        .map(|status| status.code.first().copied().unwrap_or_default());
    let is_ok = reply.ok_response.len() == 1;
    let refusals = reply.denied_response.len() + reply.error_response.len();
    if check_decision(ext_authz_reply(reply)) {
        assert!(refusals == 0 && (code == Some(0) || code.is_none() && is_ok));
    }
}

fn opa(bytes: &[u8]) {
    if check_decision(opa_reply(StatusCode::OK, bytes, "data.egress")) {
        let reply: Value = serde_json::from_slice(bytes).expect("JSON");
        let result = &reply["result"];
        let is_true = |field: &str| result.get(field) == Some(&Value::Bool(true));
        assert!(*result == Value::Bool(true) || is_true("allow") || is_true("allowed"));
    }
}

/// The input is two bytes of status, then lines of headers; all of these lines are also the body.
fn forward_auth(bytes: &[u8]) {
    let Some((status, bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let Ok(status) = StatusCode::from_u16(u16::from_be_bytes(*status)) else {
        return;
    };
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().map(HeaderName::from_bytes);
        let value = parts.next().map(HeaderValue::from_bytes);
        if let (Some(Ok(name)), Some(Ok(value))) = (name, value) {
            headers.append(name, value);
        }
    }
    let copied: Vec<HeaderName> = headers.keys().take(8).cloned().collect();
    let body = Bytes::copy_from_slice(bytes);
    assert_eq!(
        check_decision(forward_auth_reply(status, &headers, body, &copied)),
        status.is_success()
    );
}

/// Checks the invariants of a decision; true if it allows the request.
fn check_decision(answer: Result<AuthzResponse, AuthzError>) -> bool {
    let Ok(AuthzResponse { decision, .. }) = answer else {
        return false;
    };
    match decision {
        Decision::Allow(changes) => {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("origin.test"));
            headers.insert("content-length", HeaderValue::from_static("5"));
            changes.apply_to_request(&mut headers);
            assert_eq!(
                (&headers["host"], &headers["content-length"]),
                (
                    &HeaderValue::from_static("origin.test"),
                    &HeaderValue::from_static("5"),
                )
            );
            assert!(!headers.contains_key("transfer-encoding"));
            assert!(headers.len() <= 2 + MAX_HEADERS);
            changes.apply_to_response(&mut HeaderMap::new());
            true
        }
        Decision::Deny(denial) => {
            // The client gets a redirect or an error.
            assert!(denial.status.as_u16() >= 301 && denial.status != StatusCode::NOT_MODIFIED);
            assert!(
                !denial.headers.contains_key("content-length")
                    && denial.headers.len() <= MAX_HEADERS
            );
            assert!(
                denial.reason.chars().count() <= MAX_REASON
                    && !denial.reason.contains(char::is_control)
            );
            false
        }
    }
}

/// The most headers that a decision may add.
const MAX_HEADERS: usize = 64;
/// The most characters of a reason.
const MAX_REASON: usize = 256;

use super::*;
use crate::{HeaderPolicy, SourcePolicy};

const V1: &str = "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";

fn check(policy: Policy, peer: &str) -> HeaderCheck {
    let peer = peer.parse().unwrap();
    HeaderCheck { policy, peer }
}

fn policy(sources: SourcePolicy, header_required: bool) -> Policy {
    Policy {
        header_required,
        all_ports: true,
        sources,
        max_header: 200,
        ..Policy::default()
    }
}

fn after(policy: Policy, bytes: &[u8]) -> Step {
    check(policy, "192.0.2.1:5").peeked(Peeked::Bytes(bytes))
}

#[test]
fn a_header_is_stored_and_then_discarded() {
    let check = check(policy(SourcePolicy::Strict, true), "192.0.2.1:5");
    let ends = ["192.0.2.7:4711", "198.51.100.1:443"].map(|end| end.parse().unwrap());
    let (len, named) = (V1.len(), Some(ends.into()));
    assert_eq!(
        check.peeked(Peeked::Bytes(V1.as_bytes())),
        Step::Store { len, named }
    );
    assert_eq!(check.stored(len, Ok(())), Step::Discard(len));
    assert_eq!(
        check.stored(len, Err(NotStored::Full)),
        Step::Refuse(Counter::Full)
    );
    assert_eq!(check.discarded(true), Step::Admit);
    assert_eq!(check.discarded(false), Step::Refuse(Counter::Closed));
}

#[test]
fn an_incomplete_header_waits_for_more_than_there_is() {
    for at in 1..V1.len() {
        let step = after(policy(SourcePolicy::Strict, true), &V1.as_bytes()[..at]);
        assert!(matches!(step, Step::Wait(len) if len > at), "{at} {step:?}");
    }
    let check = check(policy(SourcePolicy::Strict, true), "192.0.2.1:5");
    assert_eq!(check.peeked(Peeked::Nothing), Step::Wait(1));
    assert_eq!(check.peeked(Peeked::Closed), Step::Refuse(Counter::Closed));
}

#[test]
fn a_connection_without_a_header_is_refused_unless_headers_are_optional() {
    let sources = SourcePolicy::Strict;
    let text = b"GET / HTTP/1.0\r\n\r\n";
    assert_eq!(
        after(policy(sources, true), text),
        Step::Refuse(Counter::NotAHeader)
    );
    assert_eq!(after(policy(sources, false), text), Step::PassThrough);
    let local = b"PROXY TCP4 127.0.0.1 198.51.100.1 4711 443\r\n";
    assert_eq!(
        after(policy(sources, false), local),
        Step::Refuse(Counter::Source)
    );
    for malformed in [
        &b"PROXY TCP4 junk\r\n"[..],
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x00",
    ] {
        assert_eq!(
            after(policy(sources, false), malformed),
            Step::Refuse(Counter::NotAHeader)
        );
    }
    // The header announces 4 KiB.
    let long = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x10\x00";
    assert_eq!(
        after(policy(sources, false), long),
        Step::Refuse(Counter::NotAHeader)
    );
}

#[test]
fn header_policy_applies_even_where_headers_are_optional() {
    let after = |headers, bytes: &[u8]| {
        let policy = policy(SourcePolicy::Strict, false);
        after(Policy { headers, ..policy }, bytes)
    };
    let lenient = HeaderPolicy::default();
    let strict = HeaderPolicy {
        strict: true,
        require_client: true,
    };
    let refused = Step::Refuse(Counter::HeaderRefused);
    let without_address = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0";
    assert_eq!(after(lenient, without_address), refused);
    for bytes in [
        &b"PROXY TCP6 2001:db8::42 10.0.0.2 1 2\r\n"[..],
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 \r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 0 443\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ] {
        assert!(matches!(after(lenient, bytes), Step::Store { .. }));
        assert_eq!(after(strict, bytes), refused);
    }
}

#[test]
fn a_balancer_that_names_itself_names_no_client() {
    let admitted = |client: &str, peer| {
        let named = client.parse().map(|client| (client, client)).ok();
        let admitted = check(policy(SourcePolicy::Strict, true), peer).admit(named);
        admitted.map(|admitted| admitted == named)
    };
    assert_eq!(admitted("127.0.0.1:5", "127.0.0.1:5"), Ok(false));
    assert_eq!(admitted("192.0.2.1:0", "192.0.2.1:5"), Ok(true));
    let loopback = Err(SourceRefusal::Loopback);
    assert_eq!(admitted("127.0.0.1:5", "192.0.2.1:5"), loopback);
}

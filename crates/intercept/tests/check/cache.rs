//! The decision cache: which answers are cached, and for how long.

use std::time::Duration;

use http::Method;
use peername_intercept::authz::{DecidedBy, Verdict};
use tokio::time::sleep;

use crate::ext_authz;
use crate::forward_auth::{OK, start};
use crate::rig::{CheckInput, ask, check, failure, metric};

const LONG: Duration = Duration::from_secs(60);

fn is_cached(verdict: &Verdict) -> bool {
    matches!(verdict.decided_by, DecidedBy::Cache)
}

#[tokio::test]
async fn cached_decision_is_not_queried_again() {
    let (mut service, url) = start(OK);
    let check = check(&url, |config| config.cache = Some(LONG));
    let client = check.client();
    assert!(!is_cached(&ask(&client).await));
    for port in 50_001..50_010 {
        let from_another_port =
            CheckInput::with(|input| input.client = ([192, 0, 2, 7], port).into());
        let verdict = from_another_port.ask(&client).await;
        assert!(is_cached(&verdict) && verdict.decision.allows());
    }
    assert_eq!(service.count_requests(), 1);
    assert_eq!(
        metric(&check, r#"peername_check_total{outcome="cache_hit"}"#),
        9
    );
    assert_eq!(metric(&check, "peername_check_seconds_count"), 1);
}

#[tokio::test]
async fn request_that_differs_is_queried_separately() {
    let (mut service, url) = start(OK);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    ask(&client).await;
    let others = [
        CheckInput::with(|input| input.client = ([192, 0, 2, 8], 50_000).into()),
        CheckInput::with(|input| input.method = Method::POST),
        CheckInput::with(|input| input.scheme = "http"),
        CheckInput::with(|input| input.host = "other.test"),
        CheckInput::with(|input| input.port = 8443),
        CheckInput::with(|input| input.path = "/a"),
        CheckInput::with(|input| input.path = "/a?b=d"),
        CheckInput::default().header("x-role", b"admin"),
        CheckInput::default().header("x-role", b"user"),
        CheckInput::default().header("x-role", b"\xc3\xa9"),
        CheckInput::default().header("x-role", b"\xe9"),
    ];
    for other in &others {
        assert!(!is_cached(&other.ask(&client).await));
    }
    assert_eq!(service.count_requests(), 1 + others.len());
    // A header that is not sent to the service is not part of the cache key.
    assert!(is_cached(
        &CheckInput::default()
            .header("cookie", b"1")
            .ask(&client)
            .await
    ));
}

#[tokio::test]
async fn request_with_a_body_is_never_cached() {
    let (mut service, url) = ext_authz::start(ext_authz::OK);
    let client = check(&url, |config| {
        (config.cache, config.body) = (Some(LONG), 100);
    })
    .client();
    let input = |bytes: &'static str, truncated| {
        CheckInput::with(|input| input.body = Some((bytes.into(), truncated)))
    };
    // A body that has turned out to be empty.
    assert!(!is_cached(&input("", false).ask(&client).await));
    // No byte of the last body has come yet; it is asked about twice.
    for (bytes, truncated) in [("x", false), ("x", true), ("", true), ("", true)] {
        assert!(!is_cached(&input(bytes, truncated).ask(&client).await));
    }
    assert_eq!(service.count_requests(), 5);
}

#[tokio::test]
async fn service_limits_the_lifetime_by_cache_control() {
    let (mut service, url) = start(OK);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    let answer = |status, control| {
        format!(
            r#"{{"status": {status}, "headers": [["Cache-Control", "{control}"]], "body": ""}}"#
        )
    };
    for status in [200, 403] {
        service.set_answer(&answer(status, "no-store"));
        for _ in 0..3 {
            assert!(!is_cached(&ask(&client).await));
        }
    }
    service.set_answer(&answer(200, "max-age=2"));
    assert!(!is_cached(&ask(&client).await));
    assert!(is_cached(&ask(&client).await));
    sleep(Duration::from_millis(2100)).await;
    assert!(!is_cached(&ask(&client).await));
}

#[tokio::test]
async fn ext_authz_limits_the_lifetime_by_metadata() {
    let answer = r#"{"status": {}, "dynamicMetadata": {"cache_control": "no-store"}}"#;
    let (_service, url) = ext_authz::start(answer);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    for _ in 0..3 {
        assert!(!is_cached(&ask(&client).await));
    }
}

#[tokio::test]
async fn failure_is_not_cached() {
    let (mut service, url) = start(r#"{"status": 500, "headers": [], "body": ""}"#);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    assert!(failure(&ask(&client).await).is_some());
    service.set_answer(OK);
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows() && !is_cached(&verdict));
}

/// Single flight: of many concurrent requests, one queries the service.
#[tokio::test]
async fn concurrent_requests_are_coalesced_into_one_query() {
    let (mut service, url) = start(r#"{"status": 200, "headers": [], "body": "", "delay": 0.1}"#);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    let input = CheckInput::default();
    let verdicts = futures_util::future::join_all((0..200).map(|_| input.ask(&client))).await;
    assert!(verdicts.iter().all(|verdict| verdict.decision.allows()));
    assert_eq!(
        verdicts
            .iter()
            .filter(|verdict| !is_cached(verdict))
            .count(),
        1
    );
    assert_eq!(service.count_requests(), 1);
}

/// An answer that must not be cached is not shared with the other waiting requests either.
#[tokio::test]
async fn uncacheable_answer_is_not_shared() {
    let (mut service, url) = start(
        r#"{"status": 200, "headers": [["Cache-Control", "no-store"]], "body": "", "delay": 0.05}"#,
    );
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    let input = CheckInput::default();
    let verdicts = futures_util::future::join_all((0..5).map(|_| input.ask(&client))).await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.decision.allows() && !is_cached(verdict))
    );
    assert_eq!(service.count_requests(), 5);
}

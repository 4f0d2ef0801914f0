//! Answers that stand for a while, and those that must not.

use std::time::Duration;

use http::Method;
use peername_intercept::authz::{How, Verdict};
use tokio::time::sleep;

use crate::ext_authz;
use crate::forward_auth::{OK, start};
use crate::rig::{Asking, ask, check, counted};
use crate::service::{Service, any_loopback};

const LONG: Duration = Duration::from_secs(60);

fn is_cached(verdict: &Verdict) -> bool {
    matches!(verdict.how, How::Cached)
}

#[tokio::test]
async fn the_same_question_is_asked_once() {
    let (mut service, url) = start(OK);
    let check = check(&url, |config| config.cache = Some(LONG));
    let client = check.client();
    assert!(!is_cached(&ask(&client).await));
    for port in 50_001..50_010 {
        let again = Asking {
            client: ([192, 0, 2, 7], port).into(),
            ..Asking::default()
        };
        let verdict = again.of(&client).await;
        assert!(is_cached(&verdict) && verdict.decision.allows());
    }
    assert_eq!(service.count_requests(), 1);
    assert_eq!(
        counted(&check, r#"peername_check_total{outcome="cache_hit"}"#),
        9
    );
    assert_eq!(counted(&check, "peername_check_seconds_count"), 1);
}

#[tokio::test]
async fn another_question_is_another() {
    let (mut service, url) = start(OK);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    ask(&client).await;
    let others = [
        Asking {
            client: ([192, 0, 2, 8], 50_000).into(),
            ..Asking::default()
        },
        Asking {
            method: Method::POST,
            ..Asking::default()
        },
        Asking {
            scheme: "http",
            ..Asking::default()
        },
        Asking {
            host: "other.test",
            ..Asking::default()
        },
        Asking {
            port: 8443,
            ..Asking::default()
        },
        Asking {
            path: "/a",
            ..Asking::default()
        },
        Asking {
            path: "/a?b=d",
            ..Asking::default()
        },
        Asking::default().header("x-role", b"admin"),
        Asking::default().header("x-role", b"user"),
        Asking::default().header("x-role", b"\xc3\xa9"),
        Asking::default().header("x-role", b"\xe9"),
    ];
    for other in &others {
        assert!(!is_cached(&other.of(&client).await));
    }
    assert_eq!(service.count_requests(), 1 + others.len());
    // What the service isn't told can't matter to it.
    assert!(is_cached(
        &Asking::default().header("cookie", b"1").of(&client).await
    ));
}

#[tokio::test]
async fn a_body_is_never_the_same() {
    let mut service = Service::ext_authz(any_loopback());
    service.set_answer(ext_authz::OK);
    let url = format!("grpc://{}", service.address);
    let client = check(&url, |config| {
        (config.cache, config.body) = (Some(LONG), 100);
    })
    .client();
    for _ in 0..3 {
        let asking = Asking {
            body: Some(("x".into(), false)),
            ..Asking::default()
        };
        assert!(!is_cached(&asking.of(&client).await));
    }
    assert_eq!(service.count_requests(), 3);
}

#[tokio::test]
async fn the_service_bounds_how_long_it_stands() {
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
async fn ext_authz_bounds_it_in_its_metadata() {
    let mut service = Service::ext_authz(any_loopback());
    service.set_answer(r#"{"status": {}, "dynamicMetadata": {"cache_control": "no-store"}}"#);
    let url = format!("grpc://{}", service.address);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    for _ in 0..3 {
        assert!(!is_cached(&ask(&client).await));
    }
}

#[tokio::test]
async fn a_failure_is_not_kept() {
    let (mut service, url) = start(r#"{"status": 500, "headers": [], "body": ""}"#);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    assert!(matches!(ask(&client).await.how, How::Failed(_)));
    service.set_answer(OK);
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows() && !is_cached(&verdict));
}

/// Of many at once one asks.
#[tokio::test]
async fn a_stampede_is_one_question() {
    let (mut service, url) = start(r#"{"status": 200, "headers": [], "body": "", "delay": 0.1}"#);
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    let asking = Asking::default();
    let all = (0..200).map(|_| asking.of(&client));
    let verdicts = futures_util::future::join_all(all).await;
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

/// An answer that is not to be kept is not for the others that wait either.
#[tokio::test]
async fn an_answer_to_one_is_not_for_all() {
    let (mut service, url) = start(
        r#"{"status": 200, "headers": [["Cache-Control", "no-store"]], "body": "", "delay": 0.05}"#,
    );
    let client = check(&url, |config| config.cache = Some(LONG)).client();
    let asking = Asking::default();
    let verdicts = futures_util::future::join_all((0..5).map(|_| asking.of(&client))).await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.decision.allows() && !is_cached(verdict))
    );
    assert_eq!(service.count_requests(), 5);
}

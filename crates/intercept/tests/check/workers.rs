//! Several workers, each with a runtime of its own, share one check.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use peername_intercept::authz::{Failure, How};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::forward_auth::start;
use crate::rig::{ask, check, hasty};

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Whoever asks for all may end in the middle of it: another asks.
#[test]
fn a_worker_that_ends_leaves_its_question_to_the_others() {
    let (mut service, url) = start(VERY_SLOW);
    let check = check(&url, |config| config.cache = Some(Duration::from_secs(60)));
    let (asking, other) = (check.client(), check.client());
    let (end, ends) = oneshot::channel();
    let ending = thread::spawn(move || {
        runtime().block_on(async {
            tokio::select! {
                verdict = ask(&asking) => panic!("answered already: {verdict:?}"),
                _ = ends => {}
            }
        });
    });
    service.next_request();
    let (verdict, ()) = runtime().block_on(async {
        tokio::join!(ask(&other), async {
            sleep(Duration::from_millis(50)).await;
            end.send(()).expect("it still asks");
        })
    });
    ending.join().expect("it ends well");
    assert!(verdict.decision.allows(), "{verdict:?}");
    assert!(matches!(verdict.how, How::Asked));
    assert_eq!(service.count_requests(), 1, "once more");
}

/// And it may be busy with other things: nobody waits for it longer than for the service.
#[test]
fn a_worker_that_is_busy_delays_nobody_beyond_the_timeout() {
    let (_service, url) = start(SLOW);
    let check = hasty(&url, |config| config.cache = Some(Duration::from_secs(60)));
    let (busy, other) = (check.client(), check.client());
    let (sender, receiver) = channel();
    let working = thread::spawn(move || {
        runtime().block_on(async {
            tokio::join!(ask(&busy), async {
                sleep(Duration::from_millis(20)).await;
                sender.send(()).expect("somebody waits");
                thread::sleep(Duration::from_secs(1));
            })
        })
    });
    receiver.recv().expect("it asks");
    let verdict = runtime().block_on(ask(&other));
    assert!(
        matches!(verdict.how, How::Failed(Failure::Timeout(_))),
        "{verdict:?}"
    );
    // The other is busy for a second.
    assert!(verdict.took < Duration::from_millis(900), "{verdict:?}");
    working.join().expect("it ends well");
}

/// Connections are tasks of the runtime that made them; nobody else's depend on them.
#[test]
fn a_worker_that_is_gone_takes_its_own_connections_only() {
    let (_service, url) = start(SLOW);
    let check = check(&url, |_| ());
    let staying = runtime();
    let stays = check.client();
    for _ in 0..3 {
        let goes = check.client();
        assert!(runtime().block_on(ask(&goes)).decision.allows());
        assert!(staying.block_on(ask(&stays)).decision.allows());
    }
}

const SLOW: &str = r#"{"status": 200, "headers": [], "body": "", "delay": 0.2}"#;
/// Slower than a busy machine.
const VERY_SLOW: &str = r#"{"status": 200, "headers": [], "body": "", "delay": 2}"#;

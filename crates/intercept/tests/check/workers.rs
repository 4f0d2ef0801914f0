//! Several workers, each with a runtime of its own, share one check.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use peername_intercept::authz::DecidedBy;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::forward_auth::start;
use crate::rig::{ask, check, check_with_default_timeout, failure};

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// If the worker that queries for all waiting requests exits, another worker repeats the query.
#[test]
fn query_of_an_exited_worker_is_repeated_by_another() {
    let (mut service, url) = start(VERY_SLOW);
    let check = check(&url, |config| config.cache = Some(Duration::from_secs(60)));
    let (exiting, waiting) = (check.client(), check.client());
    let (exit, wait_exit) = oneshot::channel();
    let worker = thread::spawn(move || {
        runtime().block_on(async {
            tokio::select! {
                verdict = ask(&exiting) => panic!("answered already: {verdict:?}"),
                _ = wait_exit => {}
            }
        });
    });
    service.next_request();
    let (verdict, ()) = runtime().block_on(async {
        tokio::join!(ask(&waiting), async {
            sleep(Duration::from_millis(50)).await;
            exit.send(()).expect("the query is in flight");
        })
    });
    worker.join().expect("the worker exits cleanly");
    assert!(verdict.decision.allows(), "{verdict:?}");
    assert!(matches!(verdict.decided_by, DecidedBy::Service));
    assert_eq!(service.count_requests(), 1, "the query is repeated");
}

/// If the worker that queries for all waiting requests is blocked, they still time out on time.
#[test]
fn blocked_worker_delays_no_request_beyond_the_timeout() {
    let (_service, url) = start(SLOW);
    let check =
        check_with_default_timeout(&url, |config| config.cache = Some(Duration::from_secs(60)));
    let (blocked, waiting) = (check.client(), check.client());
    let (sender, receiver) = channel();
    let worker = thread::spawn(move || {
        runtime().block_on(async {
            tokio::join!(ask(&blocked), async {
                sleep(Duration::from_millis(20)).await;
                sender.send(()).expect("the test waits");
                thread::sleep(Duration::from_secs(1));
            })
        })
    });
    receiver.recv().expect("the query begins");
    let verdict = runtime().block_on(ask(&waiting));
    assert_eq!(failure(&verdict), Some("check_timeout"), "{verdict:?}");
    // The worker that queries is blocked for a second.
    assert!(verdict.took < Duration::from_millis(900), "{verdict:?}");
    worker.join().expect("the worker exits cleanly");
}

/// Connections are tasks of the runtime that opened them, and other runtimes use none of them.
#[test]
fn exited_worker_closes_only_its_own_connections() {
    let (_service, url) = start(SLOW);
    let check = check(&url, |_| ());
    let remaining_runtime = runtime();
    let remaining = check.client();
    for _ in 0..3 {
        let exiting = check.client();
        assert!(runtime().block_on(ask(&exiting)).decision.allows());
        let verdict = remaining_runtime.block_on(ask(&remaining));
        assert!(verdict.decision.allows());
    }
}

const SLOW: &str = r#"{"status": 200, "headers": [], "body": "", "delay": 0.2}"#;
/// Slower than the worker exits on a busy machine.
const VERY_SLOW: &str = r#"{"status": 200, "headers": [], "body": "", "delay": 2}"#;

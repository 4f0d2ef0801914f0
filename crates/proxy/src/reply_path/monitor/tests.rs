use std::time::Duration;

use super::super::recent::MAX_RECENT;
use super::*;
use crate::reply_path::probe::{ProbeOutcome, ReplyPathError};
use crate::reply_path::state::{MAX_SERVER_RETRIES, RETRY_INTERVAL};

fn backend(text: &str) -> Backend {
    text.parse().unwrap()
}

fn fail_probe(state: &ProbeState) {
    state.update(Err(ReplyPathError::NotRouted {
        target: backend("10.0.0.5:1"),
        to: "192.0.2.1".parse().unwrap(),
    }));
}

#[test]
fn thousand_ports_of_one_address_share_one_probe() {
    let ranged = (1..1000).map(|port| ProbeTarget {
        backend: backend(&format!("10.0.0.5:{port}/udp")),
        any_port: true,
        ..backend("10.0.0.5:0").into()
    });
    let monitor = ReplyPathMonitor::new(ranged);
    assert_eq!(monitor.configured.len(), 1);
    let named = ["10.0.0.5:1", "10.0.0.5:2", "10.0.0.5:2/udp"].map(backend);
    assert_eq!(ReplyPathMonitor::new(named).configured.len(), 3);
}

#[test]
fn probe_result_holds_for_its_ports_and_no_others() {
    let probe = ProbeTarget {
        backend: backend("10.0.0.5:1"),
        any_port: true,
        ..backend("10.0.0.5:0").into()
    };
    let monitor = ReplyPathMonitor::new([probe, backend("10.0.0.6:1").into()]);
    for state in monitor.configured.values() {
        fail_probe(state);
    }
    for (target, is_sound) in [
        ("10.0.0.5:9", false),
        ("10.0.0.5:9/udp", true),
        ("10.0.0.6:1", false),
        ("10.0.0.6:2", true),
    ] {
        let judged = monitor.is_sound(backend(target), None);
        assert_eq!(judged, is_sound, "{target}");
        let judged = monitor.is_sound_or_enqueue(backend(target), None);
        assert_eq!(judged, is_sound, "{target}");
    }
}

/// A routing rule for one loopback address covers all of them. For another address of this host there may never have been a
/// rule.
#[test]
fn named_loopback_destinations_are_known_paths() {
    let monitor = ReplyPathMonitor::new::<Backend>([]);
    for (named, is_sound) in [("10.0.0.5:1", true), ("127.0.0.5:1", false)] {
        monitor.is_sound_or_enqueue(backend(named), None);
        for state in monitor.recent.all() {
            fail_probe(&state);
        }
        assert_eq!(monitor.is_all_known_sound(), is_sound, "{named}");
        assert!(monitor.is_all_sound());
    }
}

/// Targets that headers name meanwhile must not delay a configured target's probe.
#[test]
fn each_target_has_its_own_due_time() {
    let monitor = ReplyPathMonitor::new(["127.0.0.1:1"].map(backend));
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let count_due = |now| monitor.due_targets(now).len();
    assert_eq!(count_due(start), 1, "not probed yet");
    let probe_due = |now, outcome: ProbeOutcome| {
        for state in monitor.due_targets(now) {
            state.update(Ok(outcome));
            state.set_probed_at(now);
        }
    };
    probe_due(start, ProbeOutcome::Connected);
    for second in 1..60 {
        monitor.is_sound_or_enqueue(backend(&format!("10.0.0.5:{second}")), None);
        assert_eq!(count_due(after(second)), 1, "the new one at {second}");
        probe_due(after(second), ProbeOutcome::RouteFound);
    }
    let due = monitor.due_targets(after(60));
    let [state] = due.as_slice() else {
        panic!("{due:?}");
    };
    assert!(Arc::ptr_eq(
        state,
        monitor.configured.values().next().unwrap()
    ));
}

#[test]
fn suspect_target_is_retried_soon_and_new_ones_come_first() {
    let monitor = ReplyPathMonitor::new((1..10).map(|last| backend(&format!("10.0.0.{last}:1"))));
    let now = Instant::now();
    for state in monitor.configured.values() {
        state.update(Ok(ProbeOutcome::RouteFound));
        state.set_probed_at(now);
    }
    let suspect = &monitor.configured[&ProbeTarget::from(backend("10.0.0.7:1")).key()];
    fail_probe(suspect);
    assert!(suspect.is_sound(), "one failure is no evidence");
    assert!(monitor.due_targets(now).is_empty());
    assert_eq!(monitor.due_targets(now + RETRY_INTERVAL).len(), 1);
    fail_probe(suspect);
    assert!(!suspect.is_sound());
    monitor.is_sound_or_enqueue(backend("10.0.0.99:1"), None);
    let due = monitor.due_targets(now + PROBE_INTERVAL);
    assert_eq!(due.len(), PROBE_BATCH);
    assert_eq!(due[0].due_at(), None);
}

#[test]
fn recently_used_target_is_not_evicted() {
    let monitor = ReplyPathMonitor::new::<Backend>([]);
    let kept = backend("10.0.0.5:1");
    monitor.is_sound_or_enqueue(kept, None);
    let [state] = monitor.recent.all().try_into().unwrap();
    fail_probe(&state);
    fail_probe(&state);
    for number in 0..2 * MAX_RECENT {
        // Uses are ordered by milliseconds.
        std::thread::sleep(Duration::from_millis(2));
        assert!(
            !monitor.is_sound_or_enqueue(kept, None),
            "evicted after {number}"
        );
        let other = backend(&format!("10.0.1.1:{}", number + 1));
        assert!(monitor.is_sound_or_enqueue(other, None));
    }
    assert_eq!(monitor.recent.all().len(), MAX_RECENT);
    assert!(
        monitor.is_sound_or_enqueue(backend("10.0.1.1:1"), None),
        "is new again"
    );
}

/// The listener of TPROXY rules for any port has no server at its own port, ever.
#[test]
fn target_without_a_udp_server_is_retried_for_a_minute() {
    let state = ProbeState::new(backend("127.0.0.1:1/udp").into(), false);
    let now = Instant::now();
    state.update(Ok(ProbeOutcome::RouteFound));
    state.set_probed_at(now);
    for _ in 0..MAX_SERVER_RETRIES {
        state.note_udp_server(false);
        assert_eq!(state.due_at(), Some(now + RETRY_INTERVAL));
    }
    state.note_udp_server(false);
    assert_eq!(state.due_at(), Some(now + PROBE_INTERVAL));
    // A server that is stopped later is awaited again.
    state.note_udp_server(true);
    state.note_udp_server(false);
    assert_eq!(state.due_at(), Some(now + RETRY_INTERVAL));
}

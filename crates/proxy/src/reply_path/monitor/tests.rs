use super::super::recent::MAX_RECENT;
use super::*;
use crate::reply_path::probe::{ProbeOutcome, ReplyPathError};

fn backend(text: &str) -> Backend {
    text.parse().unwrap()
}

fn broken(path: &ProbeState) {
    path.update(Err(ReplyPathError::NotRouted {
        target: backend("10.0.0.5:1"),
        to: "192.0.2.1".parse().unwrap(),
    }));
}

#[test]
fn a_thousand_ports_of_one_address_are_tried_once() {
    let loopback = (1..1000).map(|port| backend(&format!("127.0.0.1:{port}")));
    assert_eq!(ReplyPathMonitor::new(loopback).paths.len(), 1);
    let ranged = (1..1000).map(|port| ProbeTarget {
        backend: backend(&format!("10.0.0.5:{port}/udp")),
        any_port: true,
        mark: None,
    });
    let path = ReplyPathMonitor::new(ranged);
    assert_eq!(path.paths.len(), 1);
    let named = ["10.0.0.5:1", "10.0.0.5:2", "10.0.0.5:2/udp"].map(backend);
    assert_eq!(ReplyPathMonitor::new(named).paths.len(), 3);
}

#[test]
fn what_one_try_showed_holds_for_its_ports_and_no_others() {
    let probe = ProbeTarget {
        backend: backend("10.0.0.5:1"),
        any_port: true,
        mark: None,
    };
    let paths = ReplyPathMonitor::new([probe, backend("10.0.0.6:1").into()]);
    paths.paths.values().for_each(|path| broken(path));
    for (target, sound) in [
        ("10.0.0.5:9", false),
        ("10.0.0.5:9/udp", true),
        ("10.0.0.6:1", false),
        ("10.0.0.6:2", true),
    ] {
        assert_eq!(paths.is_sound(backend(target), None), sound, "{target}");
        assert_eq!(
            paths.is_sound_or_enqueue(backend(target), None),
            sound,
            "{target}"
        );
    }
}

/// Whatever headers name in between, and however often.
#[test]
fn each_path_has_a_time_of_its_own() {
    let paths = ReplyPathMonitor::new(["127.0.0.1:1"].map(backend));
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let is_due = |now| paths.due(now).len();
    assert_eq!(is_due(start), 1, "nothing was tried");
    let try_all = |now, outcome: ProbeOutcome| {
        for path in paths.due(now) {
            path.update(Ok(outcome));
            path.tried_at(now);
        }
    };
    try_all(start, ProbeOutcome::Connected);
    for second in 1..60 {
        paths.is_sound_or_enqueue(backend(&format!("10.0.0.5:{second}")), None);
        assert_eq!(is_due(after(second)), 1, "the new one at {second}");
        try_all(after(second), ProbeOutcome::LookedUp);
    }
    let due = paths.due(after(60));
    let [path] = due.as_slice() else {
        panic!("{due:?}");
    };
    assert!(Arc::ptr_eq(path, paths.paths.values().next().unwrap()));
}

#[test]
fn only_what_is_doubted_is_tried_again_soon_and_the_new_come_first() {
    let paths = ReplyPathMonitor::new((1..10).map(|last| backend(&format!("10.0.0.{last}:1"))));
    let (now, soon) = (Instant::now(), Duration::from_secs(1));
    for path in paths.paths.values() {
        path.update(Ok(ProbeOutcome::LookedUp));
        path.tried_at(now);
    }
    let doubted = &paths.paths[&ProbeTarget::from(backend("10.0.0.7:1")).key()];
    broken(doubted);
    assert!(doubted.is_sound(), "one failure is no evidence");
    assert!(paths.due(now).is_empty());
    assert_eq!(paths.due(now + soon).len(), 1);
    broken(doubted);
    assert!(!doubted.is_sound());
    paths.is_sound_or_enqueue(backend("10.0.0.99:1"), None);
    let due = paths.due(now + CHECK_INTERVAL);
    assert_eq!(due.len(), CHECK_BATCH);
    assert_eq!(due[0].due(), None);
}

#[test]
fn who_is_named_again_and_again_is_not_forgotten() {
    let paths = ReplyPathMonitor::new::<Backend>([]);
    let kept = backend("10.0.0.5:1");
    paths.is_sound_or_enqueue(kept, None);
    let [path] = paths.named.all().try_into().unwrap();
    (0..2).for_each(|_| broken(&path));
    for number in 0..2 * MAX_RECENT {
        // The order is that of milliseconds.
        std::thread::sleep(Duration::from_millis(2));
        assert!(
            !paths.is_sound_or_enqueue(kept, None),
            "forgotten after {number}"
        );
        let other = backend(&format!("10.0.1.1:{}", number + 1));
        assert!(paths.is_sound_or_enqueue(other, None));
    }
    assert_eq!(paths.named.all().len(), MAX_RECENT);
    assert!(
        paths.is_sound_or_enqueue(backend("10.0.1.1:1"), None),
        "is new again"
    );
}

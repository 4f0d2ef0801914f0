use super::named::MOST_NAMED;
use super::*;
use crate::reply_path::{Broken, Tested};

fn backend(text: &str) -> Backend {
    text.parse().unwrap()
}

fn broken(path: &Path) {
    path.learn(Err(Broken::NotRouted {
        target: backend("10.0.0.5:1"),
        to: "192.0.2.1".parse().unwrap(),
    }));
}

#[test]
fn a_thousand_ports_of_one_address_are_tried_once() {
    let loopback = (1..1000).map(|port| backend(&format!("127.0.0.1:{port}")));
    assert_eq!(ReplyPath::new(loopback).paths.len(), 1);
    let ranged = (1..1000).map(|port| Probe {
        backend: backend(&format!("10.0.0.5:{port}/udp")),
        any_port: true,
        mark: None,
    });
    let path = ReplyPath::new(ranged);
    assert_eq!(path.paths.len(), 1);
    let named = ["10.0.0.5:1", "10.0.0.5:2", "10.0.0.5:2/udp"].map(backend);
    assert_eq!(ReplyPath::new(named).paths.len(), 3);
}

#[test]
fn what_one_try_showed_holds_for_its_ports_and_no_others() {
    let probe = Probe {
        backend: backend("10.0.0.5:1"),
        any_port: true,
        mark: None,
    };
    let paths = ReplyPath::new([probe, backend("10.0.0.6:1").into()]);
    paths.paths.values().for_each(|path| broken(path));
    for (target, sound) in [
        ("10.0.0.5:9", false),
        ("10.0.0.5:9/udp", true),
        ("10.0.0.6:1", false),
        ("10.0.0.6:2", true),
    ] {
        assert_eq!(paths.is_sound(backend(target), None), sound, "{target}");
        assert_eq!(paths.learns(backend(target), None), sound, "{target}");
    }
}

/// Whatever headers name in between, and however often.
#[test]
fn each_path_has_a_time_of_its_own() {
    let paths = ReplyPath::new(["127.0.0.1:1"].map(backend));
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let is_due = |now| paths.due(now).len();
    assert_eq!(is_due(start), 1, "nothing was tried");
    let try_all = |now, outcome: Tested| {
        for path in paths.due(now) {
            path.learn(Ok(outcome));
            path.tried_at(now);
        }
    };
    try_all(start, Tested::Connected);
    for second in 1..60 {
        paths.learns(backend(&format!("10.0.0.5:{second}")), None);
        assert_eq!(is_due(after(second)), 1, "the new one at {second}");
        try_all(after(second), Tested::LookedUp);
    }
    let due = paths.due(after(60));
    let [path] = due.as_slice() else {
        panic!("{due:?}");
    };
    assert!(Arc::ptr_eq(path, paths.paths.values().next().unwrap()));
}

#[test]
fn only_what_is_doubted_is_tried_again_soon_and_the_new_come_first() {
    let paths = ReplyPath::new((1..10).map(|last| backend(&format!("10.0.0.{last}:1"))));
    let (now, soon) = (Instant::now(), Duration::from_secs(1));
    for path in paths.paths.values() {
        path.learn(Ok(Tested::LookedUp));
        path.tried_at(now);
    }
    let doubted = &paths.paths[&Probe::from(backend("10.0.0.7:1")).probed()];
    broken(doubted);
    assert!(doubted.is_sound(), "one failure is no evidence");
    assert!(paths.due(now).is_empty());
    assert_eq!(paths.due(now + soon).len(), 1);
    broken(doubted);
    assert!(!doubted.is_sound());
    paths.learns(backend("10.0.0.99:1"), None);
    let due = paths.due(now + EVERY);
    assert_eq!(due.len(), AT_ONCE);
    assert_eq!(due[0].due(), None);
}

#[test]
fn who_is_named_again_and_again_is_not_forgotten() {
    let paths = ReplyPath::new::<Backend>([]);
    let kept = backend("10.0.0.5:1");
    paths.learns(kept, None);
    let [path] = paths.named.all().try_into().unwrap();
    (0..2).for_each(|_| broken(&path));
    for number in 0..2 * MOST_NAMED {
        // The order is that of milliseconds.
        std::thread::sleep(Duration::from_millis(2));
        assert!(!paths.learns(kept, None), "forgotten after {number}");
        let other = backend(&format!("10.0.1.1:{}", number + 1));
        assert!(paths.learns(other, None));
    }
    assert_eq!(paths.named.all().len(), MOST_NAMED);
    assert!(paths.learns(backend("10.0.1.1:1"), None), "is new again");
}

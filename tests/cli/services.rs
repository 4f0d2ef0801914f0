//! What all long-running commands have in common: signals, drain, admin endpoint.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::LISTEN_V4;
use crate::harness::admin::{ADMIN, get, wait_answer};
use crate::harness::programs::stranger::send_lingering_sockets;
use crate::harness::rig::service::{Service, ServiceRig};

/// These signals are sent when a terminal closes and when a log was rotated; neither requests an exit.
#[test]
fn sighup_and_sigusr1_do_not_stop_the_process() {
    for service in Service::ALL {
        let mut rig = ServiceRig::start(service, &[]);
        for signal in [Signal::HUP, Signal::USR1, Signal::HUP] {
            rig.process.signal(signal);
            rig.connect();
        }
        assert!(rig.process.is_alive(), "{service:?}");
    }
}

#[test]
fn drain_finishes_what_is_in_flight() {
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for service in Service::ALL {
        let mut rig = ServiceRig::start(service, &[]);
        let (down, up) = rig.connect();
        rig.process.signal(Signal::TERM);
        // The test does not probe the listener, because `forward` would open a connection to the backend for the probe, and
        // wait for its end, too.
        rig.process.wait_logged("accepting no more");
        up.send(RESPONSE);
        down.recv_text_until(|text| text.starts_with("HTTP/1.1 200 ") && text.ends_with("ok"));
        drop((down, up));
        rig.process.wait_success(Duration::from_secs(5));
    }
}

#[test]
fn second_signal_ends_the_drain_at_once() {
    for service in Service::ALL {
        for signal in [Signal::TERM, Signal::INT] {
            let mut rig = ServiceRig::start(service, &[]);
            let (down, _up) = rig.connect();
            rig.process.signal(signal);
            rig.lab.balancer.wait_connection_refused(LISTEN_V4);
            down.assert_stays_open(Duration::from_millis(200));
            rig.process.signal(signal);
            rig.process.wait_success(Duration::from_secs(1));
        }
    }
}

/// Balancers have the time of `--drain-delay` to send clients elsewhere.
#[test]
fn clients_are_served_while_the_drain_is_announced() {
    for service in Service::ALL {
        let rig = ServiceRig::start(service, &[ADMIN, "--drain-delay=60s"]);
        assert_eq!(get(&rig.lab.server, &[], "/readyz"), "ready\n200");
        rig.process.signal(Signal::TERM);
        wait_answer(&rig.lab.server, "/readyz", "draining\n503");
        rig.connect();
    }
}

/// Another user of the host sends a socket whose close lingers to each abstract Unix socket. The process stays healthy, and
/// stops soon.
#[test]
fn lingering_socket_of_another_user_delays_nothing() {
    for service in Service::ALL {
        let mut rig = ServiceRig::start(service, &[ADMIN]);
        let _stranger = send_lingering_sockets(&rig.lab.server, &rig.process);
        let answer = get(&rig.lab.server, &["--max-time", "2"], "/healthz");
        assert!(answer.ends_with("200"), "{service:?}: {answer}");
        rig.process.signal(Signal::TERM);
        rig.process.wait_success(Duration::from_secs(5));
    }
}

/// A list of system calls is in force in every thread, and no privilege can be gained.
#[test]
fn every_thread_is_confined() {
    for service in Service::ALL {
        let rig = ServiceRig::start(service, &[]);
        rig.process.wait_started();
        for (thread, mode) in rig.process.thread_status_fields("Seccomp") {
            assert_eq!(mode, "2", "{service:?}: {thread}");
        }
        assert_eq!(rig.process.status_field("NoNewPrivs"), "1", "{service:?}");
    }
}

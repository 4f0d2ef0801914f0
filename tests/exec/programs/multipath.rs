//! Programs that listen by MPTCP: Go programs by themselves, others by mptcpize(8).

use super::catalogue::{self, Program};
use super::running::{Listener, Mode, Running};
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::rig::exec::v2;

#[test]
fn go_listens_by_mptcp() {
    assert_sees_multipath_clients(&catalogue::go_static());
}

#[test]
fn redis_listens_by_mptcp() {
    let command =
        |rig: &catalogue::CommandContext<'_>| run_by_mptcpize((catalogue::redis().command)(rig));
    assert_sees_multipath_clients(&Program {
        command,
        ..catalogue::redis()
    });
}

#[test]
fn python_listens_by_mptcp() {
    let command =
        |rig: &catalogue::CommandContext<'_>| run_by_mptcpize((catalogue::python().command)(rig));
    assert_sees_multipath_clients(&Program {
        command,
        ..catalogue::python()
    });
}

fn assert_sees_multipath_clients(program: &Program) {
    for mode in Mode::ALL {
        if mode == Mode::Preload && !program.can_be_preloaded {
            continue;
        }
        let running = Running::start(program, mode, Listener::V4);
        let balancer = &running.lab.balancer;
        for number in 0..60 {
            let conn = match number % 3 {
                0 => Conn::connect(balancer, LISTEN_V4),
                _ => Conn::connect_multipath(balancer, LISTEN_V4),
            };
            let client = fresh_client_v4();
            running.assert_sees(conn, &v2(client), client);
        }
    }
}

fn run_by_mptcpize(command: Vec<String>) -> Vec<String> {
    let words = ["mptcpize", "run"].map(str::to_owned);
    words.into_iter().chain(command).collect()
}

//! The supervised calls and the program's first process: plain data of the supervisor and its monitor.

use peername_sys::process::pidfd::PidFd;
use peername_sys::seccomp::NotificationListener;

use super::inflight_calls::InflightCalls;

/// The source of the calls, and the record of those that wait for an answer.
#[derive(Debug)]
pub(super) struct SupervisedCalls {
    pub(super) calls: NotificationListener,
    pub(super) inflight: InflightCalls,
}

/// The first process of a program that `peername exec` has started.
#[derive(Debug)]
pub(super) struct FirstProcess {
    pub(super) pid: u32,
    pub(super) process: PidFd,
}

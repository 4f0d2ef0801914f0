//! What is under supervision: plain data that the supervisor and its monitor both need.

use peername_sys::process::pidfd::PidFd;
use peername_sys::seccomp::NotificationListener;

use super::inflight_calls::InflightCalls;

/// The system calls that wait for an answer.
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

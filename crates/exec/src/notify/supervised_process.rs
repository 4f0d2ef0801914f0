//! The program under supervision: plain data that the supervisor and its monitor both need.

use peername_sys::process::pidfd::PidFd;
use peername_sys::seccomp::NotificationListener;

use super::inflight_calls::InflightCalls;

/// The program, and its system calls that wait for an answer.
#[derive(Debug)]
pub(super) struct SupervisedProcess {
    pub(super) calls: NotificationListener,
    pub(super) inflight: InflightCalls,
    /// The program's first process.
    pub(super) program: u32,
    pub(super) target: PidFd,
}

//! Waiting for descriptors, with and without a runtime.

pub mod async_epoll;
pub mod epoll;
pub mod poll;
pub mod readiness;

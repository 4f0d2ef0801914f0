//! The usual arrangements of hosts, programs and scripted peers: one for each subject.

pub(crate) mod agent;
pub(crate) mod ca;
pub(crate) mod compat;
pub(crate) mod exec;
pub(crate) mod exec_connect;
pub(crate) mod exec_notify;
pub(crate) mod intercept;
pub(crate) mod jail;
pub(crate) mod load;
pub(crate) mod proxy;
pub(crate) mod service;
pub(crate) mod udp;
pub(crate) mod upgrade;

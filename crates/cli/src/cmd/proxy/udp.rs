//! The options of `peername forward` that are about UDP; `peername proxy` has the same.

use std::time::Duration;

use peername_proxy::config::{Datagrams, Dialect};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value;

/// How UDP is carried.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// UDP: which datagrams have a header [default: each]
    #[arg(long, value_name = "DIALECT")]
    pub(crate) udp_header: Option<Header>,
    /// UDP: a session on which nothing moved for so long is over
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = value::duration)]
    close_after: Duration,
    /// UDP: sessions in all, each of which takes a descriptor
    #[arg(long, value_name = "N", default_value_t = Datagrams::default().sessions)]
    max_sessions: usize,
    /// UDP: sessions of one balancer
    #[arg(long, value_name = "N", default_value_t = Datagrams::default().sessions_per_balancer)]
    max_sessions_per_balancer: usize,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub(crate) enum Header {
    /// PROXY v2 on every datagram
    #[default]
    Each,
    /// PROXY v2 on the first datagram of a flow
    First,
    /// Simple Proxy Protocol on every datagram, both ways
    Spp,
}

impl Args {
    /// With at most as many sessions as there are descriptors for.
    pub(crate) fn config(&self, descriptors: usize) -> Datagrams {
        Datagrams {
            dialect: self.udp_header.unwrap_or_default().into(),
            close_after: self.close_after,
            sessions: self.max_sessions.min(descriptors),
            sessions_per_balancer: self.max_sessions_per_balancer,
        }
    }
}

impl From<Header> for Dialect {
    fn from(header: Header) -> Self {
        match header {
            Header::Each => Self::Each,
            Header::First => Self::First,
            Header::Spp => Self::Spp,
        }
    }
}

//! The options of `peername proxy` and `peername forward` that are about UDP.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use peername_daemon::options::heading;
use peername_daemon::value::{MAX_INTEGER, Number, Time};
use peername_proxy::udp::{Dialect, UdpConfig};

/// The options for UDP.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::UDP)]
#[group(skip)]
pub(crate) struct Args {
    /// UDP: which datagrams have a header
    #[arg(long, value_name = "DIALECT", default_value = "each")]
    pub(crate) udp_header: UdpHeader,
    /// UDP: idle timeout of a session
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        hide_short_help = true
    )]
    close_after: Time,
    /// UDP: maximum of sessions in all; each takes a descriptor
    #[arg(long, value_name = "N", default_value_t = Number::clamp(UdpConfig::default().sessions), help_heading = heading::TUNING)]
    max_sessions: Number<1, MAX_INTEGER>,
    /// UDP: maximum of sessions of one balancer
    #[arg(long, value_name = "N", default_value_t = Number::clamp(UdpConfig::default().sessions_per_balancer), help_heading = heading::TUNING)]
    max_sessions_per_balancer: Number<1, MAX_INTEGER>,
}

/// A [`Dialect`] by its name, as an option and as a key of the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdpHeader(pub(crate) Dialect);

impl ValueEnum for UdpHeader {
    fn value_variants<'a>() -> &'a [Self] {
        &*ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.summary()))
    }
}

static ALL: LazyLock<[UdpHeader; Dialect::ALL.len()]> =
    LazyLock::new(|| Dialect::ALL.map(UdpHeader));

impl Args {
    /// Whether each datagram has a header, as by default.
    pub(crate) fn has_default_header(&self) -> bool {
        self.udp_header == UdpHeader::default()
    }

    /// The configuration by the options.
    pub(crate) fn config(&self) -> UdpConfig {
        UdpConfig {
            dialect: self.udp_header.0,
            close_after: self.close_after.0,
            sessions: self.max_sessions.get(),
            sessions_per_balancer: self.max_sessions_per_balancer.get(),
        }
    }
}

//! The options of `peername proxy` and `peername forward` for UDP.

use std::sync::LazyLock;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use peername_daemon::options::heading;
use peername_daemon::value::{self, MAX_INTEGER};
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
        default_value = DEFAULT_CLOSE_AFTER.as_str(),
        value_parser = value::duration,
        hide_short_help = true
    )]
    close_after: Duration,
    /// UDP: maximum of sessions in all; each takes a descriptor
    #[arg(long, value_name = "N", default_value_t = UdpConfig::default().sessions, value_parser = value::number(1, MAX_INTEGER), help_heading = heading::TUNING)]
    max_sessions: usize,
    /// UDP: maximum of sessions of one address: of a balancer, or of a client of `forward`
    #[arg(long, value_name = "N", default_value_t = UdpConfig::default().sessions_per_balancer, value_parser = value::number(1, MAX_INTEGER), help_heading = heading::TUNING)]
    max_sessions_per_balancer: usize,
}

/// A [`Dialect`] by its name, as an option and as a key of the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdpHeader(pub(crate) Dialect);

impl ValueEnum for UdpHeader {
    fn value_variants<'a>() -> &'a [Self] {
        &*UDP_HEADERS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.summary()))
    }
}

static DEFAULT_CLOSE_AFTER: LazyLock<String> =
    LazyLock::new(|| format!("{}s", UdpConfig::default().close_after.as_secs()));

static UDP_HEADERS: LazyLock<[UdpHeader; Dialect::ALL.len()]> =
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
            close_after: self.close_after,
            sessions: self.max_sessions,
            sessions_per_balancer: self.max_sessions_per_balancer,
        }
    }
}

//! The options of `peername proxy` and `peername forward` for UDP.

use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use peername_daemon::options::heading;
use peername_daemon::value::{self, MAX_INTEGER};
use peername_proxy::udp::{Dialect, UdpConfig};

/// The options for UDP.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::UDP)]
#[group(skip)]
pub(crate) struct Args {
    /// UDP: which datagrams have a header
    #[arg(
        long,
        value_name = "DIALECT",
        default_value = Dialect::default().name(),
        value_parser = dialect_parser()
    )]
    pub(crate) udp_header: Dialect,
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
    /// UDP: maximum of sessions of one balancer, or of one client of `forward` (IPv6: of its /64); at most two thirds of all
    #[arg(long, value_name = "N", default_value_t = UdpConfig::default().sessions_per_balancer, value_parser = value::number(1, MAX_INTEGER), help_heading = heading::TUNING)]
    max_sessions_per_balancer: usize,
}

/// Parses the name of a [`Dialect`].
fn dialect_parser() -> impl TypedValueParser<Value = Dialect> {
    let values =
        Dialect::ALL.map(|dialect| PossibleValue::new(dialect.name()).help(dialect.summary()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Dialect>())
}

static DEFAULT_CLOSE_AFTER: LazyLock<String> =
    LazyLock::new(|| format!("{}s", UdpConfig::default().close_after.as_secs()));

impl Args {
    /// Whether each datagram has a header, as by default.
    pub(crate) fn has_default_header(&self) -> bool {
        self.udp_header == Dialect::default()
    }

    /// The configuration by the options.
    pub(crate) fn config(&self) -> UdpConfig {
        UdpConfig {
            dialect: self.udp_header,
            close_after: self.close_after,
            sessions: self.max_sessions,
            sessions_per_balancer: self.max_sessions_per_balancer,
        }
    }
}

//! The options of `peername forward`. They are also the keys of a `[[forward]]` table.

use std::net::SocketAddr;
use std::time::Duration;

use peername_daemon::listeners::ListenPlan;
use peername_daemon::listeners::resolve_listeners;
use peername_daemon::options::{Given, heading, not_with_file};
use peername_daemon::process::Process;
use peername_daemon::reload::ConfigSource;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_daemon::value::{self, Address, Listen};
use peername_proxy::forward::ForwardService;
use peername_proxy::udp::{Dialect, UdpConfig};
use peername_relay::Limits;
use peername_server::access::clients::RequiredTlvs;
use peername_server::addr::Target;

use crate::options::protocol::Protocol;
use crate::options::sent_header::Header;
use crate::options::{clients, udp};

/// Options of `peername forward`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    before_help = EXAMPLE,
    mut_args(not_with_file::<Forward>()),
    mut_arg("workers", |arg| arg.help("Event loops, each with sockets of its own [default: 1]"))
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) forward: Given<Forward>,
    #[command(flatten)]
    pub(super) source: ConfigSource,
    #[command(flatten)]
    pub(super) process: Given<Process>,
}

/// The options of a group of listeners: on the command line all of them, in a file those of one table.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::LISTENING)]
#[group(skip)]
pub(crate) struct Forward {
    /// The address to listen on, with one port or a range (0.0.0.0:10000-10100); may be repeated
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<Listen>,
    /// The transports to forward
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    /// The server that connections are forwarded to, with a header
    #[arg(long, value_name = "ADDR", help_heading = heading::BACKEND)]
    to: Option<Address>,
    /// Timeout for connecting to the server; as much again to send the header
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout, help_heading = heading::BACKEND)]
    connect_timeout: Duration,
    /// Idle timeout of connections, also of half-closed ones
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = value::timeout, help_heading = heading::BACKEND)]
    idle_timeout: Duration,
    #[command(flatten, next_help_heading = heading::SENT_HEADER)]
    header: Header,
    #[command(flatten, next_help_heading = heading::CLIENTS)]
    clients: clients::Args,
    #[command(flatten)]
    udp: udp::Args,
}

impl Forward {
    /// The addresses to listen on; resolves names now.
    pub(super) fn listen_plan(&self) -> Result<ListenPlan, UsageError> {
        if self.listen.is_empty() {
            let text = "--listen needs an address, such as 0.0.0.0:8080";
            return Err(UsageError(text.to_owned()));
        }
        let listen = resolve_listeners("--listen", &self.listen)?;
        Ok(ListenPlan {
            tcp: self.protocol.tcp(&listen).to_vec(),
            udp: self.protocol.udp(&listen).to_vec(),
            transparent: false,
            udp_config: self.udp_config(),
            steered_by: None,
        })
    }

    /// The service of the group's listeners; resolves the name of the server now.
    pub(super) fn service(&self) -> Result<ForwardService, UsageError> {
        let mut errors = ErrorCollector::default();
        errors.note(self.check_udp());
        let header_template = errors.note(match self.protocol {
            Protocol::Tcp => self.header.header_template(),
            Protocol::Udp => self.header.datagram_header_template(),
            // TCP and UDP have only version 2 and `none` in common.
            Protocol::Both => {
                (self.header.header_template()).and_then(|_| self.header.datagram_header_template())
            }
        });
        let target = errors.note(self.target());
        let no_tlvs = RequiredTlvs::default();
        let clients = errors.note(self.clients.access(&[], no_tlvs, str::to_owned));
        errors.build(|| {
            Some(ForwardService {
                target: Target(target?),
                header_template: header_template?,
                connect_timeout: self.connect_timeout,
                limits: Limits {
                    idle: Some(self.idle_timeout),
                    half_closed: self.idle_timeout,
                    ..Limits::default()
                },
                clients: clients?,
            })
        })
    }

    fn target(&self) -> Result<SocketAddr, UsageError> {
        let missing =
            || UsageError("--to needs the address of the server, as in 192.0.2.20:443".to_owned());
        let to = self.to.as_ref().ok_or_else(missing)?;
        to.resolve()
            .map_err(|why| UsageError(format!("--to {to}: {why}")))
    }

    fn check_udp(&self) -> Result<(), UsageError> {
        let text = match (self.protocol, self.udp.udp_header) {
            _ if self.udp.has_default_header() => return Ok(()),
            (Protocol::Tcp, _) => {
                "--udp-header is for UDP, which is not forwarded: add --protocol udp"
            }
            _ if self.header.is_absent() => {
                "--udp-header selects the datagrams with a header, and --proxy-version none sends none"
            }
            (_, Dialect::First) if self.header.is_spp() => {
                "--proxy-version spp is a header on each datagram: it can't be combined with --udp-header first"
            }
            (_, Dialect::Spp) => match self.header.tlv_options() {
                Some(options) => {
                    let text = format!("--udp-header spp has no fields for {options}");
                    return Err(UsageError(text));
                }
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        Err(UsageError(text.to_owned()))
    }

    fn udp_config(&self) -> UdpConfig {
        let mut config = self.udp.config();
        if self.header.is_spp() {
            config.dialect = Dialect::Spp;
        }
        config
    }
}

const EXAMPLE: &str = "\
Example: the server at 192.0.2.20 reads the client's address from a header
  peername forward --listen 0.0.0.0:8080 --to 192.0.2.20:443";

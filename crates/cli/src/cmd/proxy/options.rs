//! The options of `peername proxy`. They are also keys of the configuration file ([`crate::config_file`]): a name, its help
//! text and its default are defined here only.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use peername_daemon::options::{Given, heading, not_with_file};
use peername_daemon::process::{Process, changed_keys};
use peername_daemon::reload::ConfigSource;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_daemon::value::{self, Listen, MAX_INTEGER};
use peername_proto::SourcePolicy;
use peername_proxy::config::{Config, OnCollision, SendProxy, SourcePort, Targets, UpstreamConfig};
use peername_proxy::policy::destination::DestinationPolicy;
use peername_proxy::udp::Dialect;
use peername_relay::{Limits, Method};
use peername_server::destination_list::AllowedDestination;
use peername_server::header_limits::HeaderLimits;

use crate::options::header_args::HeaderArgs;
use crate::options::protocol::Protocol;
use crate::options::{source_policy, target_args, udp};

/// Options of `peername proxy`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    before_help = EXAMPLE,
    mut_args(not_with_file::<Listener>()),
    // The text of `Process`, which is also for files, lists the defaults of all commands.
    mut_arg("workers", |arg| arg.help("Event loops, each with sockets of its own [default: one per core]"))
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) listener: Given<Listener>,
    #[command(flatten)]
    pub(super) source: ConfigSource,
    #[command(flatten)]
    pub(super) top: Given<Top>,
}

/// The options of the whole process: the keys at the top of a file.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// The options of the process that no other command has.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct HostArgs {
    /// Add the routing rules that deliver replies to this host, and remove them at exit
    #[arg(long, help_heading = heading::BACKEND)]
    pub(crate) setup_routes: bool,
    /// The data path of UDP sessions
    #[arg(long, value_name = "WHERE", default_value = "auto", help_heading = heading::TUNING)]
    pub(super) data_path: DataPath,
    /// The listening sockets are inherited and belong to another network namespace: `exec`
    #[arg(long, hide = true)]
    pub(super) sockets_from_outside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DataPath {
    /// As userspace in this version; a later one may choose kernel
    Auto,
    /// In user space
    Userspace,
    /// In the kernel, for steady sessions (docs/udp.md)
    Kernel,
}

/// The options of a group of listeners: on the command line all of them, in a file those of one table.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::LISTENING)]
#[group(skip)]
pub(crate) struct Listener {
    /// The address to listen on, with one port or a range (0.0.0.0:10000-10100); may be repeated
    #[arg(
        short,
        long,
        alias = "address",
        value_name = "ADDR",
        default_value = "0.0.0.0:8443"
    )]
    pub(super) listen: Vec<Listen>,
    /// The transports to listen on
    #[arg(short, long, default_value = "tcp")]
    pub(super) protocol: Protocol,
    /// Accept traffic that TPROXY rules redirect, for any destination (`peername routes add --tproxy-ports`)
    #[arg(long, hide_short_help = true)]
    listen_transparent: bool,
    #[command(flatten, next_help_heading = heading::BACKEND)]
    targets: target_args::Args,
    /// Connect to the destination in the header, if --allow-destination lists it
    #[arg(long)]
    dynamic_destination: bool,
    /// A destination that headers may name: CIDR[:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "WHERE")]
    allow_destination: Vec<AllowedDestination>,
    /// SO_MARK of every connection to the backend, 0 for none
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = value::mark)]
    mark: u32,
    /// Send a header to the backend too (TCP)
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<Version>,
    /// The time from the first SYN to the backend to an established connection; as much again to send the header of `--send-proxy`
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout)]
    connect_timeout: Duration,
    /// Idle timeout of connections [default: none; keepalive detects dead peers]
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    idle_timeout: Option<Duration>,
    /// The source port of connections to the backend
    #[arg(
        long,
        value_name = "PORT",
        default_value = "keep",
        hide_short_help = true
    )]
    source_port: Port,
    /// The action if the client's address and port are in use on this host
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "ephemeral",
        hide_short_help = true
    )]
    on_port_collision: Collision,
    #[command(flatten)]
    pub(super) headers: HeaderArgs,
    /// Which client addresses in headers are refused
    #[arg(
        long,
        value_name = "POLICY",
        default_value = SourcePolicy::Strict.name(),
        value_parser = source_policy::parser(&[SourcePolicy::Any]),
        hide_short_help = true
    )]
    source_policy: SourcePolicy,
    /// Log the value of this TLV in a connection's line (TCP), by name or number; may be repeated
    #[arg(long, value_name = "TYPE", value_parser = value::tlv_kind, hide_short_help = true)]
    log_tlv: Vec<u8>,
    #[command(flatten)]
    pub(super) udp: udp::Args,
    /// Maximum of connections that wait for their header, in all [default: 8192, at most half of all connections]
    #[arg(long, value_name = "N", value_parser = value::number(1, MAX_INTEGER), help_heading = heading::TUNING)]
    max_pending: Option<usize>,
    /// Maximum of connections of one peer that wait for their header [default: 1024, at most a quarter of all connections]
    #[arg(long, value_name = "N", value_parser = value::number(1, MAX_INTEGER), help_heading = heading::TUNING)]
    max_pending_per_peer: Option<usize>,
    /// Idle timeout of half-closed connections
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = value::timeout, help_heading = heading::TUNING)]
    half_closed_timeout: Duration,
    /// The relay method
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = heading::TUNING)]
    relay: Relay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Port {
    /// The client's port
    Keep,
    /// Any free port
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Collision {
    /// Keep the address, use another port
    Ephemeral,
    /// Refuse the connection
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Version {
    /// Text
    #[value(name = "v1", alias = "1")]
    V1,
    /// Binary
    #[value(name = "v2", alias = "2")]
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Relay {
    /// Copy messages, and splice bulk transfers
    Auto,
    /// Copy through a buffer in user space
    Copy,
    /// Move bytes within the kernel by splice(2)
    Splice,
}

/// The address families of which clients are expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedFamilies {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

impl Listener {
    /// The configuration by the options. Reads the files that they name.
    pub(super) fn config(&self) -> Result<Config, UsageError> {
        let mut errors = ErrorCollector::default();
        self.note_contradictions(&mut errors);
        let clients = errors.note(self.headers.access(str::to_owned));
        let destination_policy = errors.note(self.destination_policy());
        let trust = errors.note(self.headers.trust());
        let upstream = errors.note(self.upstream());
        errors.build(|| {
            Some(Config {
                clients: clients?,
                transparent: self.listen_transparent,
                destination_policy: destination_policy?,
                trust: trust?,
                header: self.header_limits(),
                source_policy: self.source_policy,
                upstream: upstream?,
                relay: self.relay_method(),
                limits: Limits {
                    idle: self.idle_timeout,
                    half_closed: self.half_closed_timeout,
                    ..Limits::default()
                },
                log_tlvs: self.log_tlv.clone(),
            })
        })
    }

    fn note_contradictions(&self, errors: &mut ErrorCollector) {
        let has_udp = self.protocol.has_udp();
        if self.send_proxy.is_some() && has_udp {
            errors.push("--send-proxy is for TCP only; without it, UDP needs a proxy of its own");
        }
        // The other options for UDP are limits, which are valid without UDP. This one means that datagrams are expected.
        if !self.udp.has_default_header() && !has_udp {
            errors.push(
                "--udp-header is for UDP, which is not listened for: add --protocol udp, or both",
            );
        }
        let is_spp = self.udp.udp_header == Dialect::Spp;
        if !self.headers.require_tlv.is_empty() && has_udp && is_spp {
            errors.push(
                "--require-tlv: the Simple Proxy Protocol has no TLVs, so no datagram could have one",
            );
        }
    }

    /// The policy for destinations in headers; `None` if every client is connected to the fixed targets.
    fn destination_policy(&self) -> Result<Option<DestinationPolicy>, UsageError> {
        match (self.dynamic_destination, self.allow_destination.as_slice()) {
            (false, []) => Ok(None),
            (false, _) => Err(UsageError(LIST_WITHOUT_DYNAMIC.to_owned())),
            (true, allowed) => DestinationPolicy::new(allowed.iter().cloned().collect())
                .map(Some)
                .ok_or_else(|| UsageError(DYNAMIC_WITHOUT_LIST.to_owned())),
        }
    }

    fn relay_method(&self) -> Method {
        match self.relay {
            Relay::Auto => Method::Auto,
            Relay::Copy => Method::Copy,
            Relay::Splice => Method::Splice,
        }
    }

    /// The families of clients that are expected from the start: those whose target is named, or IPv4 if no target is named.
    /// `--default-target`, of a translated command line, does not count.
    pub(super) fn expected_families(&self) -> ExpectedFamilies {
        let named = self.targets.named_targets().unwrap_or_default();
        ExpectedFamilies {
            v4: named.v4.is_some() || named.v6.is_none(),
            v6: named.v6.is_some(),
        }
    }

    /// The allowed destinations that are a single address and port. Networks and ranges of ports are left out: not each
    /// of their addresses has to be a backend.
    pub(super) fn single_destinations(&self) -> Vec<SocketAddr> {
        self.allow_destination
            .iter()
            .filter_map(AllowedDestination::single)
            .collect()
    }

    fn header_limits(&self) -> HeaderLimits {
        HeaderLimits {
            timeout: self.headers.header_timeout,
            max_len: self.headers.max_header,
            policy: self.headers.policy(),
            pending_per_peer: self.max_pending_per_peer,
            pending: self.max_pending,
        }
    }

    fn upstream(&self) -> Result<UpstreamConfig, UsageError> {
        let targets = self.targets.targets()?;
        if targets == Targets::default() && !self.dynamic_destination {
            return Err(UsageError(NO_TARGET.to_owned()));
        }
        Ok(UpstreamConfig {
            targets,
            mark: NonZeroU32::new(self.mark),
            source_port: match self.source_port {
                Port::Keep => SourcePort::Keep,
                Port::Any => SourcePort::Any,
            },
            on_collision: match self.on_port_collision {
                Collision::Ephemeral => OnCollision::Ephemeral,
                Collision::Fail => OnCollision::Fail,
            },
            connect_timeout: self.connect_timeout,
            send_proxy: self.send_proxy.map(SendProxy::from),
        })
    }
}

impl HostArgs {
    /// The keys that a reload can't change and that differ, as [`Process::changes_of_fixed_keys`].
    pub(crate) fn changes_of_fixed_keys(&self, new: &Self) -> Vec<&'static str> {
        changed_keys([
            ("setup-routes", new.setup_routes != self.setup_routes),
            (
                "data-path",
                new.uses_kernel_data_path() != self.uses_kernel_data_path(),
            ),
        ])
    }

    /// Whether steady UDP sessions are offloaded to the kernel.
    pub(super) fn uses_kernel_data_path(&self) -> bool {
        self.data_path == DataPath::Kernel
    }
}

impl From<Version> for SendProxy {
    fn from(version: Version) -> Self {
        match version {
            Version::V1 => Self::V1,
            Version::V2 => Self::V2,
        }
    }
}

/// The text names `--target-v4` and `--target-v6`, too, because `Table::located` leaves out an error that names a key which
/// could not be read.
const NO_TARGET: &str = "--target is missing: name the backend's address and port, as in 127.0.0.1:8080, once for each address \
    family of clients (--target-v4 and --target-v6 do, too)";
const DYNAMIC_WITHOUT_LIST: &str = "--dynamic-destination: list the destinations that headers may name, such as \
    --allow-destination 127.0.0.1:8000-8999 or --allow-destination 10.0.0.0/8:443";
const LIST_WITHOUT_DYNAMIC: &str =
    "--allow-destination is a list for --dynamic-destination, which is not given";
const EXAMPLE: &str = "\
Example: a balancer in 192.0.2.0/24 sends headers, the web server listens on port 8080
  peername proxy --listen 0.0.0.0:443 --target 127.0.0.1:8080 --trust 192.0.2.0/24 --setup-routes";

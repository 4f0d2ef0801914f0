//! The options of `peername forward` that are about UDP; `peername proxy` has the same.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use peername_proxy::udp::{Dialect, UdpConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value;

/// The options for UDP.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// UDP: which datagrams have a header [default: each]
    #[arg(long, value_name = "DIALECT")]
    pub(crate) udp_header: Option<UdpHeader>,
    /// UDP: idle timeout of a session
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = value::duration)]
    close_after: Duration,
    /// UDP: maximum of sessions in all; each takes a descriptor
    #[arg(long, value_name = "N", default_value_t = UdpConfig::default().sessions)]
    max_sessions: usize,
    /// UDP: maximum of sessions of one balancer
    #[arg(long, value_name = "N", default_value_t = UdpConfig::default().sessions_per_balancer)]
    max_sessions_per_balancer: usize,
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

impl<'de> Deserialize<'de> for UdpHeader {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let unknown = |_| D::Error::unknown_variant(&name, &Dialect::NAMES);
        name.parse().map(Self).map_err(unknown)
    }
}

impl Serialize for UdpHeader {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.name())
    }
}

impl JsonSchema for UdpHeader {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "UdpHeader".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = |dialect: Dialect| json_schema!({"description": dialect.summary(), "type": "string", "const": dialect.name()});
        json_schema!({"oneOf": Dialect::ALL.map(one)})
    }
}

static ALL: LazyLock<[UdpHeader; Dialect::ALL.len()]> =
    LazyLock::new(|| Dialect::ALL.map(UdpHeader));

impl Args {
    /// The configuration, with at most as many sessions as there are descriptors for.
    pub(crate) fn config(&self, descriptors: usize) -> UdpConfig {
        UdpConfig {
            dialect: self.udp_header.unwrap_or_default().0,
            close_after: self.close_after,
            sessions: self.max_sessions.min(descriptors),
            sessions_per_balancer: self.max_sessions_per_balancer,
        }
    }
}

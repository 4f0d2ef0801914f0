//! The options of `peername proxy` and `peername forward` that are about UDP.

use std::borrow::Cow;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use peername_daemon::value::{MAX_INTEGER, Number, Time};
use peername_proxy::udp::{Dialect, UdpConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config_file::table_options;

/// The options for UDP.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args, Deserialize, Serialize, JsonSchema)]
#[group(skip)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Args {
    /// UDP: which datagrams have a header [default: each]
    #[arg(long, value_name = "DIALECT")]
    pub(crate) udp_header: Option<UdpHeader>,
    /// UDP: idle timeout of a session
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    close_after: Time,
    /// UDP: maximum of sessions in all; each takes a descriptor
    #[arg(long, value_name = "N", default_value_t = Number::clamp(UdpConfig::default().sessions))]
    max_sessions: Number<1, MAX_INTEGER>,
    /// UDP: maximum of sessions of one balancer
    #[arg(long, value_name = "N", default_value_t = Number::clamp(UdpConfig::default().sessions_per_balancer))]
    max_sessions_per_balancer: Number<1, MAX_INTEGER>,
}

impl Default for Args {
    fn default() -> Self {
        table_options::option_defaults()
    }
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
    /// Sets what has a default, so that the configuration in force shows it.
    pub(crate) fn set_defaults(&mut self) {
        self.udp_header.get_or_insert_default();
    }

    /// The configuration by the options.
    pub(crate) fn config(&self) -> UdpConfig {
        UdpConfig {
            dialect: self.udp_header.unwrap_or_default().0,
            close_after: self.close_after.0,
            sessions: self.max_sessions.get(),
            sessions_per_balancer: self.max_sessions_per_balancer.get(),
        }
    }
}

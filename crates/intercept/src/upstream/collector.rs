//! Gauges of the connections to origins, for `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::connection_cap::{ConnectionCap, PoolUsage};

/// Collects what the connection cap and the pools count themselves.
#[derive(Debug)]
pub(super) struct PoolCollector(pub(super) Arc<ConnectionCap>);

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let PoolUsage { idle, in_use } = self.0.usage();
        let mut family = encoder.encode_descriptor(
            "peername_intercept_upstream_connections",
            "Connections to origins that are open now, by whether they are in use",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [("idle", idle), ("in_use", in_use)] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}

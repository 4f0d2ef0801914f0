//! Counters of the mint, for `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::Mint;

/// Collects the counters that a mint keeps itself.
#[derive(Debug)]
pub(crate) struct MintCollector(pub(crate) Arc<Mint>);

impl Collector for MintCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mint = &self.0;
        let mut counter = |name, help, value| {
            let counter = ConstCounter::new(value);
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter.encode(encoder)
        };
        counter(
            "peername_certificates_issued",
            "Certificates made for hosts",
            mint.issued(),
        )?;
        counter(
            "peername_certificate_cache_hits",
            "Handshakes answered with a certificate that was there",
            mint.cache_hits(),
        )
    }
}

//! The labels of metrics that counters of several kinds have.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
pub(crate) struct DirectionLabel {
    direction: &'static str,
}

/// Labels each count with its reason.
pub(crate) fn by_reason(
    counts: &BTreeMap<&'static str, u64>,
) -> impl Iterator<Item = (ReasonLabel, u64)> {
    counts
        .iter()
        .map(|(&reason, &count)| (ReasonLabel { reason }, count))
}

/// Labels each count with its direction.
pub(crate) fn by_direction(to_upstream: u64, to_downstream: u64) -> [(DirectionLabel, u64); 2] {
    [
        ("to_upstream", to_upstream),
        ("to_downstream", to_downstream),
    ]
    .map(|(direction, count)| (DirectionLabel { direction }, count))
}

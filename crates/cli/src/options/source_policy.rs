//! The values of `--source-policy`: [`SourcePolicy`] by its name, as an option and as a key of the configuration file.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use peername_proto::SourcePolicy;

/// Parses the name of a policy that is not in `excluded`.
pub(crate) fn parser(
    excluded: &'static [SourcePolicy],
) -> impl TypedValueParser<Value = SourcePolicy> {
    let policies = SourcePolicy::ALL
        .into_iter()
        .filter(|policy| !excluded.contains(policy));
    let values = policies.map(|policy| PossibleValue::new(policy.name()).help(policy.summary()));
    PossibleValuesParser::new(values).try_map(|name| find_policy(&name).ok_or("no source policy"))
}

fn find_policy(name: &str) -> Option<SourcePolicy> {
    SourcePolicy::ALL
        .into_iter()
        .find(|policy| policy.name() == name)
}

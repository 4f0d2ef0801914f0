//! Errors of clap for a file: the reason, without the usage and the advice for a command line.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::usage::secrets::mask_error;

/// Whether the error is about a value, not about options that need or exclude each other.
pub(super) fn is_about_value(error: &clap::Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::ArgumentConflict | ErrorKind::MissingRequiredArgument
    )
}

/// What is wrong, in one line, without the secret of a value.
pub(super) fn reason(error: clap::Error) -> String {
    let error = mask_error(error);
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(why), _) => format!("{value:?}: {why}"),
        (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => {
            format!("{value:?}: use one of {}", valid.join(", "))
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    }
}

/// The names of the options that are missing.
pub(super) fn missing_options(error: &clap::Error) -> Vec<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(usages))
            if error.kind() == ErrorKind::MissingRequiredArgument =>
        {
            usages
                .iter()
                .filter_map(|usage| option_name(usage))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The name of the option that clap suggests instead of an unknown one.
pub(super) fn similar_option(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(usage) => option_name(usage),
        ContextValue::Strings(usages) => option_name(usages.first()?),
        _ => None,
    }
}

/// Returns `name` for `--name <VALUE>`.
fn option_name(usage: &str) -> Option<String> {
    let name = usage.strip_prefix("--")?;
    let end = name.find([' ', '=', '<']).unwrap_or(name.len());
    name.get(..end).map(str::to_owned)
}

//! An error with its causes, as it is printed and logged.

use std::fmt::Write;
use std::io;

use peername_sys::SyscallError;

/// Returns the text of an error, followed by each cause that the text does not include. Most errors of the libraries include
/// their cause, at the end or before the remedy, and the alternate format of [`anyhow::Error`] would repeat it.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !includes(&text, &cause) {
            // Writing to a String does not fail.
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// Whether a cause is a whole clause of this text, and not a word that occurs in it by chance. A clause ends at the end of the
/// text or before the remedy.
fn includes(text: &str, cause: &str) -> bool {
    text.match_indices(cause).any(|(at, _)| {
        let (before, rest) = text.split_at(at);
        let after = rest.get(cause.len()..).unwrap_or_default();
        let is_at_start = before.is_empty() || before.ends_with([' ', '(']);
        let is_at_end = after.is_empty() || after.starts_with(')');
        let is_before_remedy = ["; ", ", ", ". "]
            .iter()
            .any(|mark| after.starts_with(mark));
        is_at_start && (is_at_end || is_before_remedy)
    })
}

/// Adds advice to an error whose cause is a missing permission (EACCES, EPERM).
pub fn advise_on_permission(error: anyhow::Error, advice: &str) -> anyhow::Error {
    let is_denied = error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        let call = cause.downcast_ref::<SyscallError>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            || call.is_some_and(SyscallError::is_permission)
    });
    if !is_denied {
        return error;
    }
    anyhow::anyhow!("{}; {advice}", with_causes(&error))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("stat(2) {path}: {source}; try another")]
    struct Unreadable {
        path: &'static str,
        source: io::Error,
    }

    #[test]
    fn cause_is_printed_once() {
        let source = io::Error::other("denied");
        let inner = Unreadable { path: "/x", source };
        let error = anyhow::Error::new(inner).context("the authority");
        let expected = "the authority: stat(2) /x: denied; try another";
        assert_eq!(with_causes(&error), expected);
        let failed: anyhow::Result<()> = Err(io::Error::other("denied")).context("the log");
        assert_eq!(with_causes(&failed.unwrap_err()), "the log: denied");
        let failed: anyhow::Result<()> =
            Err(io::Error::other("denied")).context("denied.json: denied by a rule");
        let expected = "denied.json: denied by a rule: denied";
        assert_eq!(with_causes(&failed.unwrap_err()), expected);
    }
}

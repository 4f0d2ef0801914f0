//! Wrong usage that the parser of the options can't find: options that contradict each other, files and names.

/// The user must change the command line; exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

impl Usage {
    /// Converts an error that names the option and the fix itself.
    pub(crate) fn from_error(error: impl std::error::Error) -> Self {
        Self(error.to_string())
    }
}

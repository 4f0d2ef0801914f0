//! Usage errors that the parser of the options can't find, such as contradictions, missing files and names; and how errors are
//! printed.

pub mod error_text;
pub mod secrets;

/// The user must change the command line or the file; exit code 2. A line for each error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl UsageError {
    /// Converts an error that names the option and the fix itself.
    pub fn from_error(error: impl std::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// Collects errors, so that one run reports all of them.
#[derive(Debug, Default)]
pub struct ErrorCollector(Vec<String>);

impl ErrorCollector {
    /// Adds an error.
    pub fn push(&mut self, text: impl Into<String>) {
        self.0.push(text.into());
    }

    /// Returns the value, or adds the error.
    pub fn note<T>(&mut self, result: Result<T, UsageError>) -> Option<T> {
        result.map_err(|UsageError(text)| self.push(text)).ok()
    }

    /// Builds a value from the noted ones, all of which are `Some` if there is no error.
    pub fn build<T>(self, value: impl FnOnce() -> Option<T>) -> Result<T, UsageError> {
        self.into_result(value())
    }

    /// Returns the value, which is `Some` if there is no error.
    pub fn into_result<T>(self, value: Option<T>) -> Result<T, UsageError> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(UsageError(self.0.join("\n"))),
        }
    }
}

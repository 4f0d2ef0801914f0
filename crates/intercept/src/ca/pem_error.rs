//! Errors of PEM files, without the lines that the library quotes: it prints each byte as a number, and a line of a binary file
//! has kilobytes.

use rustls::pki_types::pem;
use rustls_native_certs::ErrorKind;

/// Describes the error of a PEM file.
pub(crate) fn describe_pem(error: &pem::Error) -> String {
    match error {
        pem::Error::IllegalSectionStart { .. } => {
            "a line begins as a section of PEM does, and is none".to_owned()
        }
        pem::Error::MissingSectionEnd { .. } => "a section of PEM has no end".to_owned(),
        other => other.to_string(),
    }
}

/// Describes the errors of reading this host's trusted roots: the first ones, and how many follow.
#[must_use]
pub fn describe_root_errors(errors: &[rustls_native_certs::Error]) -> Vec<String> {
    let mut described: Vec<_> = errors.iter().take(MAX_ERRORS).map(describe_root).collect();
    if errors.len() > MAX_ERRORS {
        described.push(format!("{} more errors", errors.len() - MAX_ERRORS));
    }
    described
}

fn describe_root(error: &rustls_native_certs::Error) -> String {
    match &error.kind {
        ErrorKind::Pem(pem) => format!("{}: {}", error.context, describe_pem(pem)),
        _ => error.to_string(),
    }
}

/// The maximum number of errors that are described. A folder may have thousands of files that are no certificates.
const MAX_ERRORS: usize = 3;

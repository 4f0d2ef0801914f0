//! Errors of PEM files, without the lines that the library quotes: it prints each byte as a number, and a line of a binary file
//! has kilobytes.

use std::path::Path;

use peername_sys::fs::text_file;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls_native_certs::ErrorKind;

/// Reads the certificates in a PEM file. The error says why there are none, for people.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = text_file::read(path).map_err(|error| error.to_string())?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| describe_pem(&error))?;
    if certificates.is_empty() {
        return Err("no certificate in it; it has to be PEM".to_owned());
    }
    Ok(certificates)
}

/// Describes the error of a PEM file.
fn describe_pem(error: &pem::Error) -> String {
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

//! The files by which programs trust an authority beside those of the host, and the variables that name them.
//!
//! Contents and variables are decided here, for `ca env` and `jail`. Where the files are written, and for how long, is up to the
//! caller: the directory of the authority, or the jail's own, as `TrustFiles` of the crate peername-jail.

use std::collections::BTreeSet;
use std::env::var_os;
use std::path::{Path, PathBuf};

use peername_intercept::ca::pem_error::describe_root_errors;
use peername_intercept::ca::{CertificateDer, subject_hash, to_pem};
use peername_observe::shell::quote;
use peername_sys::process::stderr::write_line;
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::java_truststore;

/// The contents of the files.
pub(crate) struct TrustStore {
    /// The authority's certificates, and those of the files that the environment names for [`EXTRA_CA_VARIABLES`] (PEM).
    pub(crate) extra: Vec<u8>,
    /// The certificates of `extra`, those of the host, and those of the files that the environment names for
    /// [`BUNDLE_VARIABLES`] (PEM).
    pub(crate) bundle: Vec<u8>,
    /// The certificates of `bundle`, as a keystore for Java.
    pub(crate) java: Vec<u8>,
}

/// The authority's certificates (PEM), each by the name that OpenSSL looks it up by in a directory.
pub(crate) fn pem_by_subject_hash(certificates: &[CertificateDer<'_>]) -> Vec<(String, Vec<u8>)> {
    certificates
        .iter()
        .filter_map(|certificate| {
            let pem = to_pem(std::slice::from_ref(certificate)).into_bytes();
            Some((subject_hash(certificate)?, pem))
        })
        .collect()
}

impl TrustStore {
    /// Merges an authority's certificates, those of the [`host_roots`], and those of the environment. `published` is the
    /// directory in which `peername ca env` may have published earlier files of this authority.
    pub(crate) fn merged(
        authority: &[CertificateDer<'static>],
        host: &[CertificateDer<'static>],
        published: Option<&Path>,
    ) -> Self {
        let extras = paths_in(EXTRA_CA_VARIABLES, published);
        let mut extra = authority.to_vec();
        add_missing(&mut extra, extras.iter().flat_map(|path| read(path)));
        let mut all = extra.clone();
        add_missing(&mut all, host.iter().cloned());
        let bundles = paths_in(BUNDLE_VARIABLES, published);
        let unread = bundles
            .difference(&extras)
            .filter(|path| !is_host_bundle(path));
        add_missing(&mut all, unread.flat_map(|path| read(path)));
        Self {
            extra: to_pem(&extra).into_bytes(),
            bundle: to_pem(&all).into_bytes(),
            java: java_truststore::encode(&all),
        }
    }
}

fn add_missing(
    all: &mut Vec<CertificateDer<'static>>,
    more: impl IntoIterator<Item = CertificateDer<'static>>,
) {
    for certificate in more {
        if !all.contains(&certificate) {
            all.push(certificate);
        }
    }
}

/// The files and directories that variables name, without those that `peername ca env` has published: otherwise an authority
/// that was published once would be in all later files.
fn paths_in(variables: &[&str], published: Option<&Path>) -> BTreeSet<PathBuf> {
    variables
        .iter()
        .filter_map(|name| var_os(name).map(PathBuf::from))
        .filter(|path| path.is_absolute() && !is_published(path, published))
        .collect()
}

/// Whether [`host_roots`] has read this file: many environments name one bundle by several variables.
fn is_host_bundle(path: &Path) -> bool {
    var_os("SSL_CERT_FILE").is_some_and(|file| Path::new(&file) == path) && !path.is_dir()
}

/// Reads the certificates of a file, or of the files of a directory. Errors are reported on standard error.
pub(crate) fn read(path: &Path) -> Vec<CertificateDer<'static>> {
    let found = if path.is_dir() {
        load_certs_from_paths(None, Some(path))
    } else {
        load_certs_from_paths(Some(path), None)
    };
    report_errors(&found);
    found.certs
}

fn is_published(path: &Path, published: Option<&Path>) -> bool {
    published.is_some() && path.parent() == published
}

fn report_errors(found: &CertificateResult) {
    for error in describe_root_errors(&found.errors) {
        write_line(format_args!("peername: left out of the bundle: {error}"));
    }
}

/// The options of Java (JAVA_TOOL_OPTIONS) that name the keystore.
pub(crate) fn java_options(keystore: &str) -> String {
    format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=PKCS12",
        quote(keystore)
    )
}

/// The authorities that this host trusts. In a shell that has evaluated peername's variables, SSL_CERT_FILE names the
/// published bundle; the system's directories are read instead.
pub(crate) fn host_roots(published: Option<&Path>) -> CertificateResult {
    let is_bundle_set =
        var_os("SSL_CERT_FILE").is_some_and(|file| is_published(Path::new(&file), published));
    let found = if is_bundle_set {
        system_ca_certificates()
    } else {
        load_native_certs()
    };
    if found.certs.is_empty() {
        write_line(
            "peername: this host trusts no certificate authority: is ca-certificates installed?",
        );
    } else {
        report_errors(&found);
    }
    found
}

fn system_ca_certificates() -> CertificateResult {
    let dir = SYSTEM_CA_DIRS
        .into_iter()
        .map(Path::new)
        .find(|path| path.is_dir());
    load_certs_from_paths(None, dir)
}

/// Variables for a file that programs read instead of the host's roots.
pub(crate) const BUNDLE_VARIABLES: &[&str] = &[
    // OpenSSL and what uses its defaults: Python's ssl, Ruby, PHP, wget; also Go, and curl.
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "NIX_SSL_CERT_FILE",
    "BUNDLE_SSL_CA_CERT",
    "HEX_CACERTS_PATH",
    "JULIA_SSL_CA_ROOTS_PATH",
    // Overrides `cafile` of .npmrc; with that option npm does not read NODE_EXTRA_CA_CERTS.
    "npm_config_cafile",
];

/// Variables for a file that programs read in addition to the host's roots.
pub(crate) const EXTRA_CA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Of Debian, Alpine, Arch and SUSE; of Fedora and its derivatives.
const SYSTEM_CA_DIRS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

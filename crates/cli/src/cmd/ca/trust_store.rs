//! The files by which programs trust an authority beside those of the host, and the variables that name them.

use std::env::var_os;
use std::path::Path;

use peername_intercept::ca::{Authority, CertificateDer, subject_hash, to_pem};
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::java_truststore;
use super::shell::quoted;

/// The contents of the files.
pub(crate) struct TrustStore {
    /// The authority's certificates (PEM).
    pub(crate) own: Vec<u8>,
    /// These, and those of the host.
    pub(crate) bundle: Vec<u8>,
    /// The same as a keystore for Java.
    pub(crate) java: Vec<u8>,
}

/// The authority's certificates (PEM), each by the name that OpenSSL looks it up by in a directory.
pub(crate) fn hashed(authority: &Authority) -> Vec<(String, Vec<u8>)> {
    let certificates = authority.certificates();
    let named = certificates.iter().filter_map(|one| {
        let pem = to_pem(std::slice::from_ref(one)).into_bytes();
        Some((subject_hash(one)?, pem))
    });
    named.collect()
}

impl TrustStore {
    /// Reads the host's authorities. `published` is where an earlier bundle of this authority may be.
    pub(crate) fn with_host_authorities(authority: &Authority, published: Option<&Path>) -> Self {
        let own = authority.certificates();
        let mut all = host_ca_certificates(published);
        all.retain(|certificate| !own.contains(certificate));
        all.splice(0..0, own);
        Self {
            own: authority.certificate_pem().into_bytes(),
            bundle: to_pem(&all).into_bytes(),
            java: java_truststore::encode(&all),
        }
    }
}

/// The options of Java (JAVA_TOOL_OPTIONS) that name the keystore.
pub(crate) fn java_options(keystore: &str) -> String {
    format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=PKCS12",
        quoted(keystore)
    )
}

/// The authorities that this host trusts. In a shell that has evaluated peername's variables, SSL_CERT_FILE is the
/// bundle. The system's directories are read then: otherwise an authority that was trusted once would stay in the
/// bundle for ever.
fn host_ca_certificates(published: Option<&Path>) -> Vec<CertificateDer<'static>> {
    let is_bundle_set =
        var_os("SSL_CERT_FILE").is_some_and(|file| Some(Path::new(&file)) == published);
    let found = if is_bundle_set {
        system_ca_certificates()
    } else {
        load_native_certs()
    };
    for error in &found.errors {
        eprintln!("peername: left out of the bundle: {error}");
    }
    if found.certs.is_empty() {
        eprintln!("peername: this host trusts no authority; is ca-certificates installed?");
    }
    found.certs
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
];

/// Variables for a file that programs read in addition to the host's roots.
pub(crate) const EXTRA_CA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Debian, Alpine, Arch, SUSE; Fedora and its derivatives.
const SYSTEM_CA_DIRS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

//! `peername ca env`: writes the files and prints the variables by which programs trust an authority.
//!
//! Most programs read one file instead of the host's roots, so that file has to contain both. Some read a file
//! in addition to the roots. Java reads a keystore.

use std::env::var_os;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

use peername_intercept::ca::{Authority, CertificateDer, to_pem};
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::ca_dir::CaDir;
use super::java_truststore;
use super::publish::publish;
use super::shell::quoted;
use crate::usage::Usage;

/// Where the files are written.
#[derive(Debug, clap::Args)]
pub(super) struct OutputDir {
    /// Write the files into this directory; other users can't enter the authority's own directory
    /// [default: the authority's directory]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// # Errors
///
/// The authority can't be read, the files can't be written, or their paths are not UTF-8.
pub(super) fn run(dir: &CaDir, output: &OutputDir) -> anyhow::Result<()> {
    let ca = dir.path()?;
    let authority = Authority::open(&ca)?;
    let into = output.into.clone().unwrap_or(ca);
    let into = into
        .canonicalize()
        .map_err(|error| output_error(&into, &error))?;
    let file = |name| into.join(name);
    let (own, bundle, java) = (
        file("certificates.pem"),
        file("bundle.pem"),
        file("truststore.p12"),
    );
    let own_certificates = authority.certificates();
    let mut all = host_ca_certificates(&bundle);
    all.retain(|certificate| !own_certificates.contains(certificate));
    all.splice(0..0, own_certificates);
    publish(&own, authority.certificate_pem().as_bytes())?;
    publish(&bundle, to_pem(&all).as_bytes())?;
    publish(&java, &java_truststore::encode(&all))?;
    print(text(&own)?, text(&bundle)?, text(&java)?)
}

/// The error of the output directory, which is not created here: its permissions are the user's decision.
fn output_error(into: &Path, error: &io::Error) -> anyhow::Error {
    let path = into.display();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "--into {path}: there is no such directory; create one that the users of the files can enter: \
             mkdir -p -m 755 {}",
            quoted(&into.to_string_lossy())
        ),
        _ => anyhow::anyhow!("--into {path}: {error}"),
    }
}

fn print(own: &str, bundle: &str, java: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    for (names, path) in [(BUNDLE_VARIABLES, bundle), (EXTRA_CA_VARIABLES, own)] {
        for name in names {
            writeln!(out, "export {name}={}", quoted(path))?;
        }
    }
    // The user's own options stay, and peername's are added once, however often this is evaluated.
    let options = quoted(&format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=PKCS12",
        quoted(java)
    ));
    writeln!(
        out,
        "case \" ${{JAVA_TOOL_OPTIONS-}} \" in\n  \
         *' '{options}' '*) ;;\n  \
         *) export JAVA_TOOL_OPTIONS=\"${{JAVA_TOOL_OPTIONS:+$JAVA_TOOL_OPTIONS }}\"{options} ;;\n\
         esac"
    )?;
    Ok(())
}

/// The authorities that this host trusts. In a shell that has evaluated peername's variables, SSL_CERT_FILE is the
/// bundle. The system's directories are read then: otherwise an authority that was trusted once would stay in the
/// bundle for ever.
fn host_ca_certificates(bundle: &Path) -> Vec<CertificateDer<'static>> {
    let is_bundle_set = var_os("SSL_CERT_FILE").is_some_and(|file| Path::new(&file) == bundle);
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

/// The path as text, for the variables.
fn text(path: &Path) -> Result<&str, Usage> {
    path.to_str().ok_or_else(|| {
        Usage(format!(
            "{}: use --into DIR, with a path in UTF-8",
            path.display()
        ))
    })
}

/// Variables for a file that programs read instead of the host's roots.
const BUNDLE_VARIABLES: &[&str] = &[
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
const EXTRA_CA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Debian, Alpine, Arch, SUSE; Fedora and its derivatives.
const SYSTEM_CA_DIRS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

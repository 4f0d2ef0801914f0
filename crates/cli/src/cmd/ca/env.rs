//! `peername ca env`: writes the files and prints the variables by which programs trust an authority.
//!
//! Most programs read one file instead of the host's roots, so that file has to contain the roots and the authority. Some
//! read a file in addition to the roots. Java reads a keystore.

use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::ensure;
use peername_daemon::usage::UsageError;
use peername_intercept::ca::Authority;
use peername_observe::shell::quote;

use super::ca_dir::CaDir;
use super::trust_store::{self, BUNDLE_VARIABLES, EXTRA_CA_VARIABLES, TrustStore, java_options};
use crate::publish::publish;

/// Where the files are written.
#[derive(Debug, clap::Args)]
pub(super) struct OutputDir {
    /// Write the files into this directory; other users can't enter the authority's own directory
    /// [default: the authority's directory]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// Writes the files and prints the variables.
pub(super) fn run(dir: &CaDir, output: &OutputDir) -> anyhow::Result<()> {
    let ca = dir.path()?;
    let authority = Authority::open(&ca)?;
    let into = output.into.clone().unwrap_or(ca);
    let into = into
        .canonicalize()
        .map_err(|error| output_error(&into, &error))?;
    ensure!(
        into.is_dir(),
        "--into {}: a file, not a directory; use another path",
        into.display()
    );
    let own = into.join("certificates.pem");
    let bundle = into.join("bundle.pem");
    let java = into.join("truststore.p12");
    let store = TrustStore::merged(
        &authority.certificates(),
        &trust_store::host_roots(Some(&into)).certs,
        Some(&into),
    );
    publish(&own, &store.extra)?;
    publish(&bundle, &store.bundle)?;
    publish(&java, &store.java)?;
    print_variables(as_utf8(&own)?, as_utf8(&bundle)?, as_utf8(&java)?)
}

/// The error of the output directory, which is not created here: its permissions are the user's decision.
fn output_error(into: &Path, error: &io::Error) -> anyhow::Error {
    let path = into.display();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "--into {path}: there is no such directory; create one that the users of the files can enter: \
             mkdir -p -m 755 {}",
            quote(into)
        ),
        _ => anyhow::anyhow!("--into {path}: {error}"),
    }
}

fn print_variables(own: &str, bundle: &str, java: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    for (names, path) in [(BUNDLE_VARIABLES, bundle), (EXTRA_CA_VARIABLES, own)] {
        for name in names {
            writeln!(out, "export {name}={}", quote(path))?;
        }
    }
    // The user's own options stay, and peername's are added once, however often this is evaluated.
    let options = java_options(java);
    let options = quote(&options);
    writeln!(
        out,
        "case \" ${{JAVA_TOOL_OPTIONS-}} \" in\n  \
         *' '{options}' '*) ;;\n  \
         *) export JAVA_TOOL_OPTIONS=\"${{JAVA_TOOL_OPTIONS:+$JAVA_TOOL_OPTIONS }}\"{options} ;;\n\
         esac"
    )?;
    Ok(())
}

/// The path as text, for the variables.
fn as_utf8(path: &Path) -> Result<&str, UsageError> {
    path.to_str().ok_or_else(|| {
        UsageError(format!(
            "{}: use --into DIR, with a path in UTF-8",
            path.display()
        ))
    })
}

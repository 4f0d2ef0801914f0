//! The options that name files for TLS to check services.

use std::path::{Path, PathBuf};

use peername_intercept::authz::{CheckTlsFiles, ClientTls, ConfigError};

/// Authorities that verify check services, and the certificate that is shown to them, with its key.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub(crate) struct CheckTlsArgs {
    /// Authorities (PEM) that check services with TLS are verified by; may be repeated [default: those that this host trusts]
    #[arg(long, value_name = "FILE", requires = "check", hide_short_help = true)]
    check_ca: Vec<PathBuf>,
    /// Certificate (PEM, with its chain) that check services with TLS are shown
    #[arg(long, value_name = "FILE", requires_all = ["check", "check_key"], hide_short_help = true)]
    check_cert: Option<PathBuf>,
    /// Private key (PEM) of --check-cert
    #[arg(long, value_name = "FILE", requires_all = ["check", "check_cert"], hide_short_help = true)]
    check_key: Option<PathBuf>,
}

impl CheckTlsArgs {
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let identity = self.check_cert.iter().chain(&self.check_key);
        self.check_ca.iter().chain(identity).map(PathBuf::as_path)
    }

    pub(super) fn key_file(&self) -> Option<&Path> {
        self.check_key.as_deref()
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> Result<ClientTls, ConfigError> {
        CheckTlsFiles {
            ca: &self.check_ca,
            identity: self.check_cert.as_deref().zip(self.check_key.as_deref()),
        }
        .read()
    }
}

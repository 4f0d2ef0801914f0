//! `peername ca`: manages the certificate authority that `peername intercept` signs leaves with.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;
use peername_intercept::ca::{Authority, AuthorityOptions, CaError, CertificateFacts, Subtree};
use serde::Serialize;

pub(crate) mod ca_dir;
mod env;
mod java_truststore;
pub(crate) mod trust_store;

use crate::jail_note::note_jail;
use ca_dir::CaDir;

/// Options of `peername ca`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername ca init --permit example.com")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Create an authority; an existing one is never overwritten
    #[command(before_help = "Example:\n  peername ca init --permit example.com")]
    Init {
        #[command(flatten)]
        dir: CaDir,
        #[command(flatten)]
        new_authority: NewAuthority,
        /// Leave an existing authority as it is and print nothing: for scripts that run again
        #[arg(long)]
        if_missing: bool,
    },
    /// Print the contents of the certificate
    #[command(before_help = "Example:\n  peername ca show")]
    Show {
        #[command(flatten)]
        dir: CaDir,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the certificate as PEM, and those of its predecessors that are still valid
    #[command(before_help = "Example:\n  peername ca export > peername-ca.pem")]
    Export {
        #[command(flatten)]
        dir: CaDir,
    },
    /// Replace key and certificate; running proxies use the old ones until they are reloaded
    #[command(before_help = "Example:\n  peername ca rotate")]
    Rotate {
        #[command(flatten)]
        dir: CaDir,
    },
    /// Print the shell commands that make programs trust the authority
    #[command(before_help = "Example:\n  eval \"$(peername ca env)\"")]
    Env {
        #[command(flatten)]
        dir: CaDir,
        #[command(flatten)]
        output: env::OutputDir,
    },
}

#[derive(Debug, clap::Args)]
struct NewAuthority {
    /// The name shown in lists of authorities [default: peername on HOST]
    #[arg(long, value_name = "NAME", value_parser = common_name)]
    common_name: Option<String>,
    /// The lifetime of the certificate
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = days)]
    days: u16,
    /// Restrict the authority to this host name and all names below it, or to this network; may be repeated
    /// [default: all hosts]
    #[arg(long, value_name = "NAME|CIDR")]
    permit: Vec<Subtree>,
}

/// Performs the action.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    perform(&args.action)
        .map_err(ca_dir::suggest_ca_option)
        .map_err(note_jail)?;
    Ok(ExitCode::SUCCESS)
}

fn perform(action: &Action) -> anyhow::Result<()> {
    match action {
        Action::Init {
            dir,
            new_authority,
            if_missing,
        } => {
            if !(*if_missing && exists(dir)?) {
                init(dir, new_authority)?;
            }
        }
        Action::Show { dir, json } => show(dir, *json)?,
        Action::Export { dir } => {
            let authority = Authority::open(&dir.path()?)?;
            stdout().write_all(authority.certificate_pem().as_bytes())?;
        }
        Action::Rotate { dir } => rotate(dir)?,
        Action::Env { dir, output } => env::run(dir, output)?,
    }
    Ok(())
}

/// Whether there is an authority; one that can't be used is an error.
fn exists(dir: &CaDir) -> anyhow::Result<bool> {
    match Authority::open(&dir.path()?) {
        Ok(_) => Ok(true),
        Err(CaError::Absent { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn init(dir: &CaDir, new_authority: &NewAuthority) -> anyhow::Result<()> {
    let options = AuthorityOptions {
        common_name: new_authority
            .common_name
            .clone()
            .unwrap_or_else(default_common_name),
        days: new_authority.days,
        permitted: new_authority.permit.clone(),
    };
    let authority = Authority::create(&dir.path()?, &options)?;
    describe(dir, &authority)?;
    if std::env::var_os("STATE_DIRECTORY").is_some() {
        writeln!(
            stdout(),
            "\nClients have to trust it: docs/service.md has the command that exports the authority of a service"
        )?;
        return Ok(());
    }
    let ca = dir.as_option();
    writeln!(
        stdout(),
        "\nClients have to trust it before `peername intercept` can open their TLS:\n  \
         eval \"$(peername ca env{ca})\"            the programs of this shell\n  \
         peername ca export{ca} >peername-ca.pem  browsers, other machines (docs/ca.md)"
    )?;
    Ok(())
}

fn rotate(dir: &CaDir) -> anyhow::Result<()> {
    let authority = Authority::rotate(&dir.path()?)?;
    describe(dir, &authority)?;
    let ca = dir.as_option();
    writeln!(
        stdout(),
        "\nA running proxy uses the old key until it is reloaded (SIGHUP). Before that, let clients trust the\n\
         new certificate: `peername ca export{ca}` prints both, `peername ca env{ca}` writes them again."
    )?;
    Ok(())
}

fn show(dir: &CaDir, json: bool) -> anyhow::Result<()> {
    let authority = Authority::open(&dir.path()?)?;
    if !json {
        return describe(dir, &authority);
    }
    let report = AuthorityReport {
        path: dir.path()?.display().to_string(),
        certificate: Certificate::new(authority.facts()),
        previous: authority
            .predecessors()
            .iter()
            .map(Certificate::new)
            .collect(),
    };
    writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

#[derive(Serialize)]
struct AuthorityReport {
    path: String,
    #[serde(flatten)]
    certificate: Certificate,
    previous: Vec<Certificate>,
}

#[derive(Serialize)]
struct Certificate {
    subject: String,
    sha256: String,
    not_before: String,
    not_after: String,
    /// Empty if the authority is for all hosts.
    permitted: Vec<String>,
}

impl Certificate {
    fn new(facts: &CertificateFacts) -> Self {
        Self {
            subject: facts.subject.clone(),
            sha256: fingerprint(facts),
            not_before: date(facts.not_before),
            not_after: date(facts.not_after),
            permitted: facts.permitted().iter().map(ToString::to_string).collect(),
        }
    }
}

fn describe(dir: &CaDir, authority: &Authority) -> anyhow::Result<()> {
    let (path, out) = (dir.path()?, &mut stdout());
    let certificate = Certificate::new(authority.facts());
    let permitted = match &certificate.permitted[..] {
        [] => "all hosts".to_owned(),
        permitted => permitted.join(", "),
    };
    writeln!(out, "authority  {}", path.display())?;
    // Escaped: the certificate may come from another authority.
    writeln!(out, "subject    {}", certificate.subject.escape_debug())?;
    writeln!(out, "SHA-256    {}", certificate.sha256)?;
    writeln!(
        out,
        "valid      {} to {}",
        certificate.not_before, certificate.not_after
    )?;
    writeln!(out, "for        {}", permitted.escape_debug())?;
    for previous in authority.predecessors().iter().map(Certificate::new) {
        writeln!(
            out,
            "previous   SHA-256 {}, until {}",
            previous.sha256, previous.not_after
        )?;
    }
    Ok(())
}

/// The fingerprint as browsers and OpenSSL show it.
fn fingerprint(facts: &CertificateFacts) -> String {
    let bytes: Vec<_> = facts
        .fingerprint
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    bytes.join(":")
}

/// Formats a Unix time by RFC 3339.
pub(crate) fn date(seconds: u64) -> String {
    format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// Parses a lifetime in days.
fn days(text: &str) -> Result<u16, &'static str> {
    text.parse()
        .ok()
        .filter(|days| (1..=3650).contains(days))
        .ok_or("use a number of days from 1 to 3650")
}

/// Parses a common name, which X.520 limits to 64 characters.
fn common_name(text: &str) -> Result<String, &'static str> {
    let fits = (1..=64).contains(&text.chars().count()) && !text.contains(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or("use 1 to 64 printable characters")
}

/// `peername on HOST`, or `peername` if the host has no name.
pub(crate) fn default_common_name() -> String {
    // With the words before it, at most the 64 characters of a common name.
    let host: String = peername_sys::host_name().chars().take(48).collect();
    format!("peername on {host}")
        .trim_end_matches(" on ")
        .to_owned()
}

//! Checks of what `peername intercept` needs: its authority, origins' authorities, the check service, names.

use std::env::{self, var_os};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use peername_daemon::value;
use peername_doctor::finding::Finding;
use peername_intercept::authz::{CheckConfig, CheckService, ConfigError, Service, ServiceUrl};
use peername_intercept::ca::pem_error::describe_root_errors;
use peername_intercept::ca::{Authority, CaError};
use peername_intercept::upstream::trust::check_extra_ca;
use peername_observe::shell::quote;
use peername_server::confinement::Needs;
use peername_sys::resolve;
use rustls_native_certs::{CertificateResult, load_native_certs};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::cmd::ca::ca_dir::CaDir;
use crate::cmd::ca::date;
use crate::cmd::intercept::check_tls_args::CheckTlsArgs;
use crate::cmd::intercept::options::DEFAULT_LISTEN;
use crate::cmd::intercept::setup::Setup;
use crate::cmd::intercept::usual_needs;
use crate::config_file::{Kind, read_setup};

/// Options of `peername doctor intercept`: those of `peername intercept` that depend on this host.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor intercept --check grpc://127.0.0.1:9191")]
pub(super) struct Args {
    /// Check the `[intercept]` table of this file, with its listeners, authority and check services, instead of these options
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["listen", "ca", "check", "check_ca", "check_cert", "check_key"]
    )]
    config: Option<PathBuf>,
    /// The address that it will listen on; may be repeated [default: 127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// The directory of the authority [default: that of `peername ca`]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
    /// The check service, as `peername intercept --check` takes it
    #[arg(long, value_name = "URL", overrides_with = "check")]
    check: Option<ServiceUrl>,
    #[command(flatten)]
    check_tls: CheckTlsArgs,
    /// A host name that must resolve
    #[arg(
        long,
        value_name = "NAME",
        default_value = "example.com",
        overrides_with = "resolve"
    )]
    resolve: String,
}

/// The parts of a configuration that depend on this host.
pub(super) struct Plan {
    pub(super) listen: Vec<SocketAddr>,
    ca: CaDir,
    decisions: Result<Decisions, ConfigError>,
    extra_ca: Vec<PathBuf>,
}

/// What decides on requests.
enum Decisions {
    Services(Vec<Service>),
    /// The rules of a file.
    Rules,
    /// Nothing that is known.
    Unknown,
}

impl Args {
    /// What is to be checked: the table of the file, or the options.
    pub(super) fn plan(&self) -> Result<Plan, Vec<String>> {
        match &self.config {
            Some(path) => Ok(Plan::new(&read_setup(path, Kind::Intercept, Setup::new)?)),
            None => Ok(Plan {
                listen: match &self.listen[..] {
                    [] => vec![DEFAULT_LISTEN],
                    given => given.to_vec(),
                },
                ca: CaDir::new(self.ca.clone()),
                decisions: self.decisions(),
                extra_ca: Vec::new(),
            }),
        }
    }

    fn decisions(&self) -> Result<Decisions, ConfigError> {
        let Some(url) = &self.check else {
            return Ok(Decisions::Unknown);
        };
        let tls = url.uses_tls().then(|| self.check_tls.read()).transpose()?;
        Ok(Decisions::Services(vec![url.open(tls.as_ref())?]))
    }

    /// The findings of all checks beside those of the host.
    pub(super) async fn findings(&self, plan: Plan) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(path) = &self.config {
            findings.push(Finding::ok("configuration", path.display().to_string()));
        }
        let dir = plan.ca;
        let roots = load_native_certs();
        let mut own_ca = Vec::new();
        match authority(&dir) {
            Ok(authority) => {
                findings.push(validity(&dir, &authority));
                findings.push(trust(&dir, &authority, &roots));
                own_ca = authority.certificates();
            }
            Err(unusable) => findings.push(unusable),
        }
        findings.push(match check_extra_ca(&plan.extra_ca, &own_ca) {
            Ok(()) => origins(&roots, !plan.extra_ca.is_empty()),
            Err(error) => Finding::fail(
                ORIGINS,
                error.to_string(),
                "mend that file, or remove its name from `extra-ca`",
            ),
        });
        findings.extend(check_decisions(plan.decisions, self.config.is_some()).await);
        findings.push(resolution(&self.resolve).await);
        findings
    }
}

impl Plan {
    fn new(setup: &Setup) -> Self {
        Self {
            listen: setup
                .listen_plans(false)
                .into_iter()
                .flat_map(|plan| plan.tcp)
                .collect(),
            ca: setup.options.ca.clone(),
            decisions: Ok(match &setup.check {
                Some(check) => Decisions::Services(check.services.clone()),
                None if setup.is_unchecked() => Decisions::Unknown,
                None => Decisions::Rules,
            }),
            extra_ca: setup.options.extra_ca.clone(),
        }
    }
}

/// Runs a program in a jail.
pub(super) fn jail() -> Finding {
    try_jail().unwrap_or_else(|error| {
        Finding::fail(JAIL, error.to_string(), "run it by its installed path")
    })
}

/// Runs a program in a jail that reports what it denies, and if that fails, in one that need not.
fn try_jail() -> io::Result<Finding> {
    let Err(unreported) = run_in_jail(&["--fail-on-deny"])? else {
        return Ok(Finding::ok(JAIL, "a program runs in it"));
    };
    Ok(match run_in_jail(&[])? {
        Ok(()) => Finding::warn(
            JAIL,
            format!("a program runs in it, but not with --fail-on-deny: {unreported}"),
            "run it outside of a jail or container that supervises system calls, in which it can't open Unix sockets either; elsewhere \
             try again when the host is less busy",
        ),
        Err(failed) => Finding::fail(
            JAIL,
            failed,
            "see \"Where user namespaces are forbidden\" in docs/jail.md",
        ),
    })
}

/// Runs a program in a jail with these options. The inner error is the last line of a jail that fails.
fn run_in_jail(options: &[&str]) -> io::Result<Result<(), String>> {
    let output = Command::new(env::current_exe()?)
        .arg("jail")
        .args(options)
        .args(["--", "true"])
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last_line = stderr.lines().last().unwrap_or_default();
    let failed = last_line.strip_prefix("peername: ").unwrap_or(last_line);
    Ok(Err(failed.to_owned()))
}

/// What a confined `intercept` needs, with the default authority.
pub(super) fn needs() -> Needs {
    usual_needs(CaDir::new(None).path().ok())
}

/// Opens the authority as `peername intercept` does, as this user, with its permissions and validity checked; or returns the
/// finding why the authority can't be used.
fn authority(dir: &CaDir) -> Result<Authority, Finding> {
    let path = dir
        .path()
        .map_err(|usage| Finding::fail(AUTHORITY, usage.0, "name it with `--ca DIR`"))?;
    Authority::open(&path).map_err(|error| match error {
        CaError::Io { .. } => Finding::fail(
            AUTHORITY,
            error.to_string(),
            "run `peername doctor` as the user that runs `peername intercept`",
        ),
        error if error.has_remedy() => Finding::broken(AUTHORITY, error.to_string()),
        error => Finding::fail(AUTHORITY, error.to_string(), "see docs/ca.md"),
    })
}

fn validity(dir: &CaDir, authority: &Authority) -> Finding {
    let facts = authority.facts();
    let seen = format!(
        "{} is valid until {}",
        facts.subject.escape_debug(),
        date(facts.not_after)
    );
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match facts.not_after.checked_sub(now.as_secs()) {
        Some(left) if left > RENEWAL.as_secs() => Finding::ok(AUTHORITY, seen),
        _ => Finding::warn(
            AUTHORITY,
            seen,
            format!(
                "replace it with `peername ca rotate{}` and let clients trust the new one",
                dir.as_option()
            ),
        ),
    }
}

/// Checks that programs on this host trust the authority. Clients on other hosts have lists of their own.
fn trust(dir: &CaDir, authority: &Authority, roots: &CertificateResult) -> Finding {
    let check = "trust in the authority";
    let source = roots_source();
    if authority
        .chain()
        .iter()
        .any(|certificate| roots.certs.contains(certificate))
    {
        return Finding::ok(check, format!("it is in {source}"));
    }
    let ca = dir.as_option();
    Finding::warn(
        check,
        format!("it is not in {source}, so that programs started here refuse what it signs"),
        format!(
            "for the programs of a shell `eval \"$(peername ca env{ca})\"`; for this host and others put what \
             `peername ca export{ca}` prints into their list of authorities (docs/ca.md)"
        ),
    )
}

/// Names the source of OpenSSL's trusted authorities, and of rustls', which reads the same variables.
fn roots_source() -> String {
    let variables: Vec<_> = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .into_iter()
        .filter_map(|name| Some(format!("{name}={}", var_os(name)?.display())))
        .collect();
    if variables.is_empty() {
        return "this host's list of authorities".to_owned();
    }
    variables.join(" and ")
}

/// Checks that this host trusts at least one authority, because origins are verified by them and those of `--extra-ca`, which
/// are valid.
fn origins(roots: &CertificateResult, has_extra: bool) -> Finding {
    let errors = describe_root_errors(&roots.errors);
    match (roots.certs.len(), errors.first()) {
        (0, _) if has_extra => Finding::ok(ORIGINS, "those of extra-ca alone are trusted"),
        (0, error) => Finding::fail(
            ORIGINS,
            match error {
                Some(error) => format!("none is trusted: {error}"),
                None => "none is trusted, so that no origin can be verified".to_owned(),
            },
            "install ca-certificates, or give `peername intercept --extra-ca FILE`",
        ),
        (trusted, Some(error)) => Finding::warn(
            ORIGINS,
            format!("{trusted} are trusted; of others: {error}"),
            "repair or remove that file",
        ),
        (trusted, None) => Finding::ok(ORIGINS, format!("{trusted} are trusted")),
    }
}

/// Checks that each check service accepts connections, as `peername intercept` does at its start. `is_file`: a file was read, so
/// that without services and rules nothing decides.
async fn check_decisions(decisions: Result<Decisions, ConfigError>, is_file: bool) -> Vec<Finding> {
    let finding = match decisions {
        Ok(Decisions::Services(services)) => return check_services(services, is_file).await,
        Ok(Decisions::Rules) => Finding::ok(CHECK_SERVICE, "none; the rules of the file decide"),
        Ok(Decisions::Unknown) if is_file => Finding::warn(
            CHECK_SERVICE,
            "none, and no rules: every request is allowed",
            "fine if that is meant; else give `check` (docs/check.md) or `rules`",
        ),
        Ok(Decisions::Unknown) => Finding::warn(
            CHECK_SERVICE,
            "none was named: without rules in its options or file, which are not looked at here, every request is allowed",
            "fine if that is meant; else name it with `--check URL` (docs/check.md), or the file with `--config FILE`",
        ),
        Err(error) => Finding::fail(CHECK_SERVICE, error.to_string(), "see docs/check.md"),
    };
    vec![finding]
}

async fn check_services(services: Vec<Service>, is_file: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in services {
        findings.push(check_service(service, is_file).await);
    }
    findings
}

async fn check_service(service: Service, is_file: bool) -> Finding {
    let (shown, is_policy) = (service.to_string(), service.is_policy());
    let check = match CheckService::new(CheckConfig::new(vec![service])) {
        Ok(check) => check,
        Err(error) => return Finding::fail(CHECK_SERVICE, error.to_string(), "see docs/check.md"),
    };
    match check.probe().await {
        Ok(()) if is_policy => Finding::ok(CHECK_SERVICE, format!("{shown} is a valid policy")),
        Ok(()) => Finding::ok(CHECK_SERVICE, format!("{shown} accepts connections")),
        Err(failure) => Finding::fail(
            CHECK_SERVICE,
            format!("{shown}: {failure}"),
            format!(
                "start it, or name the right one with `{}`; until then its checks fail",
                if is_file { "check" } else { "--check" }
            ),
        ),
    }
}

/// Checks that this host's resolver finds an address of `name`.
async fn resolution(name: &str) -> Finding {
    let check = "name resolution";
    let owned_name = name.to_owned();
    let lookup = spawn_blocking(move || resolve::lookup(&owned_name));
    let reason = match timeout(RESOLVER_TIMEOUT, lookup).await {
        Ok(Ok(Ok(addresses))) => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            return Finding::ok(check, format!("{name} is {}", addresses.join(", ")));
        }
        Ok(Ok(Err(unresolved))) => unresolved.to_string(),
        Ok(Err(panicked)) => panicked.to_string(),
        Err(_) => format!("no answer within {RESOLVER_TIMEOUT:?}"),
    };
    Finding::fail(
        check,
        format!("{name}: {reason}"),
        format!(
            "see `getent hosts {}` and /etc/resolv.conf; where only some names resolve, name one with `--resolve`; \
             with `peername intercept --upstream-proxy` that proxy resolves",
            quote(name)
        ),
    )
}

const AUTHORITY: &str = "authority";
const CHECK_SERVICE: &str = "check service";
const JAIL: &str = "jail";
const ORIGINS: &str = "origins' authorities";
/// The remaining validity below which there is a warning: twice the lifetime of a leaf.
const RENEWAL: Duration = Duration::from_hours(14 * 24);
/// The default of resolv.conf(5) for one name server: 5 s, two attempts.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(10);

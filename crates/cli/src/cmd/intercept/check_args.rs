//! The options of the check.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use http::HeaderName;
use peername_daemon::usage::{Usage, UsageErrors};
use peername_daemon::value::{AsWritten, Number, Time, Timeout, text_value, values};
use peername_intercept::authz::{
    CheckConfig, ConfigError, FailureMode, MediaType, SentHeaders, ServiceUrl,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check_tls_args::CheckTlsArgs;
use crate::config_file::table_options;

/// The check service, and how it is asked.
#[derive(Clone, Debug, clap::Args, Deserialize, Serialize, JsonSchema)]
#[group(skip)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct CheckArgs {
    /// The service that checks requests: `grpc://HOST:PORT` (Envoy's ext_authz), `http://HOST[:PORT]/PATH` (forwardAuth),
    /// `opa+http://HOST:PORT/v1/data/RULE`, each with TLS (grpcs, https, opa+https) or on a Unix socket (`grpc:unix:/run/x`), or a
    /// policy in Rego (`rego:FILE`); may be repeated, the next one is asked where one can't be reached [default: none, all are
    /// allowed]
    #[arg(long, value_name = "URL")]
    #[serde(
        deserialize_with = "text_value::read_one_or_more",
        serialize_with = "text_value::write_one_or_more"
    )]
    #[schemars(schema_with = "text_value::one_or_more_schema")]
    check: Vec<AsWritten<ServiceUrl>>,
    #[command(flatten)]
    #[serde(flatten)]
    tls: CheckTlsArgs,
    /// Deadline of a check, from its request to the end of its response
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "500ms",
        requires = "check"
    )]
    check_timeout: Timeout,
    /// What happens to a request when its check fails
    #[arg(long, value_name = "WHAT", default_value = "deny", requires = "check")]
    on_check_failure: Failure,
    /// How long a response is cached for equal requests [default: no cache]
    #[arg(long, value_name = "DURATION", requires = "check")]
    check_cache: Option<Time>,
    /// A request header that is sent to the service, and no other; may be repeated [default: all but
    /// Authorization, Proxy-Authorization and Cookie]
    #[arg(long, value_name = "HEADER", requires = "check")]
    check_header: Vec<AsWritten<HeaderName>>,
    /// Bytes of a request's body that are sent to a grpc, opa+http or rego service; the proxy asks once it has them, the body has
    /// ended, or the client sends no more for a second [default: none]
    #[arg(long, value_name = "OCTETS", requires = "check")]
    check_body: Option<Number<1, 1_048_576>>,
    /// A media type of request bodies that --check-body does not apply to: application/grpc; may be repeated
    #[arg(long, value_name = "TYPE", requires = "check_body")]
    check_body_exempt: Vec<AsWritten<MediaType>>,
    /// A header that a request takes from a forwardAuth service's response; may be repeated
    #[arg(long, value_name = "HEADER", requires = "check")]
    check_take: Vec<AsWritten<HeaderName>>,
    /// Checks in flight at a time; others wait, within --check-timeout
    #[arg(long, value_name = "N", default_value = "256", requires = "check")]
    check_concurrency: Number<1, 65_536>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
enum Failure {
    Deny,
    Allow,
}

/// A key that is absent has the default of the command line.
impl Default for CheckArgs {
    fn default() -> Self {
        table_options::option_defaults()
    }
}

impl CheckArgs {
    /// Whether requests are let through when the check fails.
    pub(super) fn fails_open(&self) -> bool {
        matches!(self.on_check_failure, Failure::Allow)
    }

    pub(super) fn is_given(&self) -> bool {
        !self.check.is_empty()
    }

    /// The files and directories of policies.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Path> {
        self.check.iter().filter_map(|url| url.value.policy())
    }

    /// The files and directories of policies, with everything in the latter but names that begin with a dot: a change of one
    /// changes the policy.
    pub(super) fn policy_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.policies()
            .for_each(|policy| find_files(policy, &mut found));
        found
    }

    /// The files for TLS.
    pub(super) fn tls_files(&self) -> impl Iterator<Item = &Path> {
        self.tls.files()
    }

    /// The private key that services are shown.
    pub(super) fn key_file(&self) -> Option<&Path> {
        self.tls.key_file()
    }

    /// Options that the command line refuses to combine, for the file.
    ///
    /// # Errors
    ///
    /// All contradictions.
    pub(super) fn contradictions(&self) -> Result<(), Usage> {
        let for_checks = [
            (self.fails_open(), "--on-check-failure"),
            (self.check_cache.is_some(), "--check-cache"),
            (!self.check_header.is_empty(), "--check-header"),
            (self.check_body.is_some(), "--check-body"),
            (!self.check_body_exempt.is_empty(), "--check-body-exempt"),
            (!self.check_take.is_empty(), "--check-take"),
            (
                self.tls_files().next().is_some(),
                "--check-ca, --check-cert",
            ),
        ];
        let mut errors = UsageErrors::default();
        if !self.is_given() {
            for (_, option) in for_checks.iter().filter(|(given, _)| *given) {
                errors.push(format!("{option} has no effect without --check"));
            }
        }
        if self.tls.is_half_an_identity() {
            errors.push("--check-cert and --check-key need each other");
        }
        let is_for_tls = self.tls_files().next().is_some();
        if is_for_tls && self.is_given() && !self.uses_tls() {
            errors.push(
                "--check-ca and --check-cert have no effect: no --check uses TLS (grpcs, https, opa+https)",
            );
        }
        errors.into_result(Some(()))
    }

    fn uses_tls(&self) -> bool {
        self.check.iter().any(|url| url.value.uses_tls())
    }

    /// The configuration of the check services, if there are any. Reads policies and the files for TLS.
    ///
    /// # Errors
    ///
    /// A file can't be read or is not valid.
    pub(super) fn config(&self) -> Result<Option<CheckConfig>, Usage> {
        if !self.is_given() {
            return Ok(None);
        }
        let open = || -> Result<CheckConfig, ConfigError> {
            let tls = self.uses_tls().then(|| self.tls.read()).transpose()?;
            let services = self.check.iter().map(|url| url.value.open(tls.as_ref()));
            Ok(CheckConfig::new(services.collect::<Result<_, _>>()?))
        };
        Ok(Some(CheckConfig {
            timeout: self.check_timeout.0,
            on_failure: match self.on_check_failure {
                Failure::Deny => FailureMode::Deny,
                Failure::Allow => FailureMode::Allow,
            },
            cache: self.check_cache.map(|time| time.0),
            concurrency: NonZeroUsize::new(self.check_concurrency.get())
                .unwrap_or(NonZeroUsize::MIN),
            sent: match self.check_header.as_slice() {
                [] => SentHeaders::default(),
                names => SentHeaders::Only(values(names)),
            },
            body: self.check_body.map_or(0, Number::get),
            body_exempt: values(&self.check_body_exempt),
            take: values(&self.check_take),
            ..open().map_err(Usage::from_error)?
        }))
    }
}

fn find_files(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    let is_directory = fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let entries = is_directory.then(|| fs::read_dir(path)).into_iter();
    for entry in entries.flatten().flatten().flatten() {
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && found.len() < MAX_FILES {
            find_files(&entry.path(), found);
        }
    }
}

/// Files that are watched. A policy may have 1000; other files beside them count here, too.
const MAX_FILES: usize = 4096;

//! The options of `intercept` and `jail` for check services.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use http::HeaderName;
use peername_daemon::options::heading;
use peername_daemon::usage::UsageError;
use peername_daemon::value;
use peername_intercept::authz::{
    CheckConfig, ConfigError, FailureMode, MediaType, ProtocolConfig, SentHeaders, ServiceUrl,
    check_schemes_with_tls, check_url_forms,
};

use super::check_tls_args::CheckTlsArgs;

/// The check service, and how it is asked.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct CheckArgs {
    #[arg(long, value_name = "URL", help = check_help("all requests are allowed"))]
    check: Vec<ServiceUrl>,
    /// Deadline of a check, from its request to the end of its response
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "500ms",
        value_parser = value::timeout,
        requires = "check"
    )]
    check_timeout: Duration,
    /// What happens to a request when its check fails
    #[arg(long, value_name = "WHAT", default_value = "deny", requires = "check")]
    on_check_failure: Failure,
    /// How long a response is cached for equal requests [default: no cache]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        requires = "check",
        hide_short_help = true
    )]
    check_cache: Option<Duration>,
    /// A request header that is sent to the service, and no other; may be repeated [default: all but
    /// Authorization, Proxy-Authorization and Cookie]
    #[arg(
        long,
        value_name = "HEADER",
        requires = "check",
        hide_short_help = true
    )]
    check_header: Vec<HeaderName>,
    /// Bytes of a request's body that are sent with its check, except to forwardAuth services; the proxy asks once it has them,
    /// the body has ended, or the client sends no more for a second [default: none]
    #[arg(long, value_name = "BYTES", value_parser = value::number(1, 1_048_576), requires = "check", hide_short_help = true)]
    check_body: Option<usize>,
    /// A media type of request bodies that --check-body does not apply to: application/grpc; may be repeated
    #[arg(
        long,
        value_name = "TYPE",
        requires = "check_body",
        hide_short_help = true
    )]
    check_body_exempt: Vec<MediaType>,
    /// A header that a request takes from a forwardAuth service's response; may be repeated
    #[arg(
        long,
        value_name = "HEADER",
        requires = "check",
        hide_short_help = true
    )]
    check_take: Vec<HeaderName>,
    /// Checks in flight at a time, two thirds of them for one client (1 can't be shared); others wait, within --check-timeout
    #[arg(long, value_name = "N", default_value = "256", requires = "check", value_parser = value::number(1, 65_536), help_heading = heading::TUNING)]
    check_concurrency: usize,
    #[command(flatten)]
    pub(super) tls: CheckTlsArgs,
}

/// The help text of `--check`, with what becomes of requests if there is neither a check nor a rule.
pub(super) fn check_help(otherwise: &str) -> String {
    format!(
        "The service that checks requests: {}, or rego:FILE (a policy in Rego); docs/check.md has the URLs with TLS and with a Unix \
         socket. May be repeated: the next one is asked where one can't be reached [default: none; the \
         rules alone decide, and without a rule {otherwise}]",
        check_url_forms()
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Failure {
    /// Deny it
    Deny,
    /// Let it pass unchecked
    Allow,
}

impl CheckArgs {
    /// Whether requests are let through when the check fails.
    pub(super) fn fails_open(&self) -> bool {
        matches!(self.on_check_failure, Failure::Allow)
    }

    pub(super) fn is_given(&self) -> bool {
        !self.check.is_empty()
    }

    /// The policies as they are given (`rego:FILE`): files or directories.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Path> {
        self.check.iter().filter_map(|url| url.policy())
    }

    /// The policies, with the files of directories.
    pub(super) fn policy_files(&self) -> PolicyFiles {
        let mut files = PolicyFiles::default();
        self.policies().for_each(|policy| files.add(policy));
        files
    }

    /// Refuses files for TLS that no check uses.
    pub(super) fn refuse_unused_tls_files(&self) -> Result<(), UsageError> {
        match self.tls.files().next() {
            Some(_) if !self.uses_tls() => Err(UsageError(format!(
                "--check has no URL with TLS ({}), which --check-ca and --check-cert are for",
                check_schemes_with_tls()
            ))),
            _ => Ok(()),
        }
    }

    fn uses_tls(&self) -> bool {
        self.check.iter().any(|url| url.uses_tls())
    }

    /// The configuration of the check services, if there are any. Reads policies and the files for TLS.
    pub(super) fn config(&self) -> Result<Option<CheckConfig>, UsageError> {
        if !self.is_given() {
            return Ok(None);
        }
        let open_services = || -> Result<CheckConfig, ConfigError> {
            let tls = self.uses_tls().then(|| self.tls.read()).transpose()?;
            Ok(CheckConfig::new(
                self.check
                    .iter()
                    .map(|url| url.open(tls.as_ref()))
                    .collect::<Result<_, _>>()?,
            ))
        };
        Ok(Some(CheckConfig {
            timeout: self.check_timeout,
            on_failure: match self.on_check_failure {
                Failure::Deny => FailureMode::Deny,
                Failure::Allow => FailureMode::Allow,
            },
            cache: self.check_cache,
            concurrency: NonZeroUsize::new(self.check_concurrency).unwrap_or(NonZeroUsize::MIN),
            body: self.check_body.unwrap_or(0),
            body_exempt: self.check_body_exempt.clone(),
            protocol: ProtocolConfig {
                sent: match self.check_header.as_slice() {
                    [] => SentHeaders::default(),
                    names => SentHeaders::Only(names.to_vec()),
                },
                take: self.check_take.clone(),
            },
            ..open_services().map_err(UsageError::from_error)?
        }))
    }
}

/// The files and directories of policies, with everything in the directories but names that begin with a dot: a change of any
/// of them changes a policy.
#[derive(Debug, Default)]
pub(super) struct PolicyFiles {
    pub(super) paths: Vec<PathBuf>,
    /// Whether there are more than [`MAX_FILES`].
    is_truncated: bool,
}

impl PolicyFiles {
    /// Adds a policy and, if it is a directory, everything below that is read for the policy. The policy itself may be a
    /// symbolic link; links below it are not followed.
    fn add(&mut self, path: &Path) {
        self.paths.push(path.to_owned());
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if self.paths.len() >= MAX_FILES {
                self.is_truncated = true;
                return;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add(&entry.path());
            } else {
                self.paths.push(entry.path());
            }
        }
    }

    /// A warning if not all files are watched.
    pub(super) fn warning(&self) -> Option<String> {
        self.is_truncated.then(|| {
            format!(
                "--check: the directories of policies have more than {MAX_FILES} files, of which the first are watched: send SIGHUP \
                 after a change of another one"
            )
        })
    }
}

/// Files that are watched. A policy may have 1000; files of its directory that are no part of it count, too.
const MAX_FILES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_watched_are_warned_of() {
        let policy = tempfile::tempdir().unwrap();
        let policy = policy.path();
        // The directory counts, too.
        let mut found = [PolicyFiles::default(), PolicyFiles::default()];
        for (count, found) in [MAX_FILES - 1, MAX_FILES].into_iter().zip(&mut found) {
            (0..count).for_each(|file| fs::write(policy.join(file.to_string()), "").unwrap());
            found.add(policy);
        }
        let [complete, cut] = found;
        assert_eq!(
            (complete.paths.len(), cut.paths.len()),
            (MAX_FILES, MAX_FILES)
        );
        assert_eq!(complete.warning(), None);
        assert!(cut.warning().unwrap().contains("more than 4096 files"));
    }
}

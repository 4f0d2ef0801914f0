//! The result of a check: one line.

use std::fmt;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No problem.
    Ok,
    /// peername will work, but some clients are affected, or a setting is unusual.
    Warn,
    /// peername will not work.
    Fail,
}

/// The outcome of one check: the subject, the observation and the remedy.
#[derive(Debug)]
pub struct Finding {
    /// How severe it is.
    pub verdict: Verdict,
    check: &'static str,
    seen: String,
    fix: Option<String>,
}

impl Finding {
    /// A finding without a problem.
    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            check,
            seen: seen.into(),
            fix: None,
        }
    }

    /// A warning, with its remedy.
    pub fn warn(check: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(check, seen)
        }
    }

    /// A problem, with its remedy.
    pub fn fail(check: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(check, seen, fix)
        }
    }

    /// As [`Finding::fail`], where the text contains the remedy already.
    pub fn broken(check: &'static str, seen: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::ok(check, seen)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        write!(f, "{verdict:<5} {}: {}", self.check, self.seen)?;
        match &self.fix {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

//! The result of a check: one line.

use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but some client will be worse off, or something is odd.
    Warn,
    /// peername will not work.
    Fail,
}

/// The outcome of one check: what was looked at, what was seen, and how to mend it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    check: &'static str,
    seen: String,
    fix: Option<String>,
}

impl Finding {
    /// All is well.
    pub(crate) fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            check,
            seen: seen.into(),
            fix: None,
        }
    }

    /// Something to know, with what to do about it.
    pub(crate) fn warn(
        check: &'static str,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(check, seen)
        }
    }

    /// Something that must be mended, with how.
    pub(crate) fn fail(
        check: &'static str,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(check, seen, fix)
        }
    }

    /// As [`Finding::fail`], where the text says already how to mend it.
    pub(crate) fn broken(check: &'static str, seen: impl Into<String>) -> Self {
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

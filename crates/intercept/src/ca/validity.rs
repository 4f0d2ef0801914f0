//! Validity times of certificates.

use time::OffsetDateTime;

/// Converts seconds since 1970.
///
/// # Errors
///
/// [`rcgen::Error::Time`] beyond the year 9999.
pub(crate) fn date(seconds: u64) -> Result<OffsetDateTime, rcgen::Error> {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(rcgen::Error::Time)
}

/// Seconds of a day.
pub(crate) const DAY: u64 = 24 * 60 * 60;

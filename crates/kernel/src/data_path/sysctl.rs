//! Settings of the loopback interface (ip-sysctl) that redirected requests need.

use std::fs;

use super::error::Error;

/// Sets all of them.
///
/// # Errors
///
/// [`Error::Setting`] where one has another value and can't be written.
pub(super) fn set_all() -> Result<(), Error> {
    SETTINGS
        .into_iter()
        .try_for_each(|(setting, value)| set(setting, value))
}

/// Whether a setting drops IPv4 requests that are redirected to loopback, or can't be read. Of `rp_filter`, the larger of
/// loopback's own and that for all devices applies.
pub(super) fn is_filtered() -> bool {
    let mut settings = SETTINGS.into_iter().chain([RP_FILTER_ALL]);
    !settings.all(has_value)
}

/// Does not write a value that is set already: /proc/sys may be read-only.
fn set(setting: &'static str, value: &'static str) -> Result<(), Error> {
    if has_value((setting, value)) {
        return Ok(());
    }
    fs::write(setting, value).map_err(|error| Error::Setting {
        setting,
        value,
        error,
    })
}

fn has_value((setting, value): (&str, &str)) -> bool {
    fs::read_to_string(setting).is_ok_and(|is| is.trim() == value)
}

const SETTINGS: [(&str, &str); 3] = [
    ("/proc/sys/net/ipv4/conf/lo/accept_local", "1"),
    ("/proc/sys/net/ipv4/conf/lo/route_localnet", "1"),
    ("/proc/sys/net/ipv4/conf/lo/rp_filter", "0"),
];
const RP_FILTER_ALL: (&str, &str) = ("/proc/sys/net/ipv4/conf/all/rp_filter", "0");

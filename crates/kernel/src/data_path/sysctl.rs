//! Sysctls of the loopback interface that redirected requests need (ip-sysctl in the kernel's documentation).

use std::fs;

use super::error::Error;

/// Sets all the sysctls.
pub(super) fn set_all() -> Result<(), Error> {
    SETTINGS
        .into_iter()
        .try_for_each(|(setting, value)| set(setting, value))
}

/// Whether a sysctl makes the kernel drop IPv4 requests that are redirected to loopback, or can't be read. The kernel applies
/// the larger of loopback's `rp_filter` and that for all devices.
pub(super) fn is_reverse_path_filtered() -> bool {
    let mut settings = SETTINGS.into_iter().chain([RP_FILTER_ALL]);
    !settings.all(has_value)
}

/// Sets a sysctl unless it has the value already: /proc/sys may be read-only.
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
    fs::read_to_string(setting).is_ok_and(|current| current.trim() == value)
}

const SETTINGS: [(&str, &str); 3] = [
    ("/proc/sys/net/ipv4/conf/lo/accept_local", "1"),
    ("/proc/sys/net/ipv4/conf/lo/route_localnet", "1"),
    ("/proc/sys/net/ipv4/conf/lo/rp_filter", "0"),
];
const RP_FILTER_ALL: (&str, &str) = ("/proc/sys/net/ipv4/conf/all/rp_filter", "0");

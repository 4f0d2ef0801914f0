//! Checks that the kernel does not drop packets with peername's firewall mark (`src_valid_mark`).

use std::fs;

use peername_proxy::routes::{self, RoutingEntry};

use crate::cmd::doctor::finding::Finding;

/// Looks for peername's rules that select by mark, and for the setting with which the kernel drops such packets.
///
/// With `src_valid_mark` the kernel looks up the route to the sender of a marked packet *with the mark*. Peername's
/// rule makes every address local there, so the kernel takes the packet for one with a spoofed source of this host, and
/// drops it. No counter shows it.
pub(in crate::cmd::doctor) async fn check() -> Finding {
    match routes::list().await {
        Ok(found) if found.iter().any(RoutingEntry::selects_by_mark) => judge(&where_checked()),
        Ok(_) => Finding::ok(CHECK, "no rule of peername's selects by them"),
        Err(error) => Finding::broken(CHECK, error.to_string()),
    }
}

/// The interfaces with the setting; `all` means each, `default` only interfaces that are created later.
fn where_checked() -> Vec<String> {
    let interfaces = fs::read_dir("/proc/sys/net/ipv4/conf");
    interfaces
        .into_iter()
        .flatten()
        .flatten()
        .filter(|interface| interface.file_name() != "default")
        .filter(|interface| {
            let value = fs::read_to_string(interface.path().join("src_valid_mark"));
            value.is_ok_and(|value| value.trim() == "1")
        })
        .map(|interface| interface.file_name().to_string_lossy().into_owned())
        .collect()
}

fn judge(checked: &[String]) -> Finding {
    if checked.is_empty() {
        return Finding::ok(CHECK, "lead to this host; src_valid_mark is 0");
    }
    let settings: Vec<String> = checked
        .iter()
        .map(|interface| format!("`sysctl -w net.ipv4.conf.{interface}.src_valid_mark=0`"))
        .collect();
    Finding::fail(
        CHECK,
        format!(
            "src_valid_mark is 1 for {} (Tailscale and wg-quick set it): the kernel silently \
             drops the packets that are marked for the proxy",
            checked.join(", ")
        ),
        format!(
            "{}; where rp_filter is strict, set that to 2 as well",
            settings.join(", ")
        ),
    )
}

const CHECK: &str = "firewall marks";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_names_each_setting() {
        assert!(judge(&[]).to_string().starts_with("ok"));
        let both = judge(&["all".to_owned(), "eth0".to_owned()]).to_string();
        assert!(
            both.contains("`sysctl -w net.ipv4.conf.all.src_valid_mark=0`"),
            "{both}"
        );
        assert!(
            both.contains("net.ipv4.conf.eth0.src_valid_mark=0"),
            "{both}"
        );
    }
}

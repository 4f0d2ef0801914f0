//! Parses /proc/net/tcp and tcp6 (proc_pid_net(5)), which list the TCP sockets where netlink(7) is not available.

/// Returns the inode number in a line, if the line is about a connection that a process has open: not a listening socket,
/// and not one in SYN_RECV or TIME_WAIT.
pub fn connected_inode(line: &[u8]) -> Option<u64> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    // sl, local_address, rem_address, st, the queues, tr:tm->when, retrnsmt, uid, timeout, inode
    let state = words.nth(3)?;
    let inode = core::str::from_utf8(words.nth(5)?).ok()?.parse().ok()?;
    let is_connected = ![SYN_RECV, TIME_WAIT, LISTEN].contains(&state);
    (inode != 0 && is_connected).then_some(inode)
}

/// States in hexadecimal (`include/net/tcp_states.h` of the kernel).
const SYN_RECV: &[u8] = b"03";
const TIME_WAIT: &[u8] = b"06";
const LISTEN: &[u8] = b"0A";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_connections_have_an_inode_number() {
        let line = |state: &str, inode: u64| {
            std::format!(
                "   1: 0100007F:1FAF 0100007F:C444 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 2 \
                 000000006ab42a67 20 0 0 10 -1                     "
            )
        };
        assert_eq!(connected_inode(line("01", 39683).as_bytes()), Some(39683));
        assert_eq!(connected_inode(line("08", 39683).as_bytes()), Some(39683));
        assert_eq!(connected_inode(line("0A", 39683).as_bytes()), None);
        assert_eq!(connected_inode(line("04", 0).as_bytes()), None);
        let head = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(connected_inode(head), None);
        assert_eq!(connected_inode(b""), None);
    }
}

//! Divides the descriptors that a process may have among listeners, connections, sessions and pipes.

use anyhow::ensure;
use peername_server::access::max_connections::MaxConnections;
use peername_server::workers::Capacity;
use peername_sys::process::limits::{count_open_files, raise_open_files};

use crate::process::Process;

/// Raises the limit of descriptors to the hard limit, and checks that this many listening sockets leave enough for connections.
/// So many of them as `received` are open already, from a previous process.
pub fn require_descriptors(
    process: &Process,
    sockets: usize,
    received: usize,
) -> anyhow::Result<()> {
    let limit = usize::try_from(raise_open_files()?)?;
    let admin = process.admin.max_descriptors();
    let open = count_open_files()?.saturating_sub(received);
    let own = open + process.workers() * FDS_PER_RUNTIME + sockets + admin + SPARE_FDS;
    ensure!(
        own + MIN_CONNECTION_FDS <= limit,
        "{sockets} listening sockets (one for each address and worker) and {admin} descriptors for \
         --admin leave too few of {limit} descriptors for connections: raise LimitNOFILE or \
         `ulimit -Hn` to {} or more, or lower --workers",
        (own + MIN_CONNECTION_FDS).next_multiple_of(1024)
    );
    Ok(())
}

/// Raises the limit of descriptors to the hard limit, and divides them between connections and pipes.
///
/// The workers are about to start, each with `worker_tasks` tasks besides UDP; listeners are open already, and UDP may use
/// `udp_fds` beside its listeners. Each connection needs two descriptors, each pipe two, and some are the process's own.
pub fn capacity(
    process: &Process,
    worker_tasks: usize,
    udp_fds: usize,
) -> anyhow::Result<Capacity> {
    let workers = process.workers();
    let limit = usize::try_from(raise_open_files()?)?.saturating_sub(udp_fds);
    // The worker and each of its tasks wait with an epoll instance of their own.
    let fds_per_worker = FDS_PER_RUNTIME + 1 + worker_tasks;
    let admin = process.admin.max_descriptors();
    let own = count_open_files()? + workers * fds_per_worker + admin + SPARE_FDS;
    let pairs = limit.saturating_sub(own) / 2;
    // At most an eighth is for pipes: without one, a connection is relayed by copying.
    let pipes_per_worker = (pairs / 8 / workers).min(MAX_PIPES_PER_WORKER);
    let connections = (pairs - pipes_per_worker * workers).max(1);
    Ok(Capacity {
        connections: MaxConnections::new(connections),
        pipes_per_worker,
    })
}

/// Returns how many descriptors UDP may have beside its listeners: seven eighths of those that the process does not need itself,
/// so that a reload can open further listeners, or half of them if TCP needs some, too. Without a bound, a flood of UDP clients
/// would take the descriptors of everything else.
///
/// The workers are about to start; listeners and the kernel data path are open already.
pub(crate) fn udp_fd_budget(process: &Process, has_tcp: bool) -> anyhow::Result<usize> {
    let limit = usize::try_from(raise_open_files()?)?;
    let admin = process.admin.max_descriptors();
    let own = count_open_files()? + process.workers() * FDS_PER_RUNTIME + admin + 2 * SPARE_FDS;
    Ok(udp_share(limit.saturating_sub(own), has_tcp))
}

/// The part of the free descriptors that UDP may have.
pub(crate) fn udp_share(free: usize, has_tcp: bool) -> usize {
    let for_others = free.div_ceil(if has_tcp { 2 } else { 8 });
    (free - for_others).max(1)
}

/// Descriptors of a tokio runtime: epoll twice, eventfd, the signal pipe; and a spare.
const FDS_PER_RUNTIME: usize = 5;
/// Descriptors for netlink, the reply path probe, the service manager, the files that confinement and the runtime of the admin
/// endpoint keep open, and the files that a reload reads.
const SPARE_FDS: usize = 10;
/// Descriptors of five connections. Without this minimum, a proxy that can serve no client would start.
const MIN_CONNECTION_FDS: usize = 10;
/// With more pipes than this, splice(2) is not faster than copying.
const MAX_PIPES_PER_WORKER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_leaves_descriptors_for_tcp_or_for_later_listeners() {
        assert_eq!(udp_share(800, false), 700);
        assert_eq!(udp_share(800, true), 400);
        assert_eq!(udp_share(0, false), 1);
    }
}

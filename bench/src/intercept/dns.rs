//! The name server: every name below one domain resolves to the origin's address.
//!
//! A name server, because some contestants would read a thousand lines of /etc/hosts for each connection, and others
//! would not.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::server_process::ServerProcess;
use crate::wire::transport::Transport;

/// Starts the name server and makes it the resolver of this mount namespace. It is killed on drop.
pub(crate) fn serve(domain: &str, origin: Ipv4Addr, directory: &Path) -> Result<ServerProcess> {
    let configuration = directory.join("unbound.conf");
    fs::write(&configuration, unbound_config(domain, origin, directory))
        .context("write unbound.conf")?;
    let mut command = Command::new("/usr/sbin/unbound");
    command.arg("-d").arg("-c").arg(configuration);
    let server = ServerProcess::start("unbound", command, directory, (Transport::Udp, SERVER))?;
    // Other sources in /etc/nsswitch.conf would query services outside the sandbox.
    replace_file("/etc/nsswitch.conf", "hosts: files dns\n", directory)?;
    let resolv_conf = format!("nameserver {}\n", SERVER.ip());
    replace_file("/etc/resolv.conf", &resolv_conf, directory)?;
    Ok(server)
}

/// Replaces the content of a file, for this mount namespace only.
fn replace_file(path: &str, text: &str, directory: &Path) -> Result<()> {
    let path = Path::new(path);
    if !path.exists() {
        return Ok(());
    }
    let other = directory.join(path.file_name().context("a file has a name")?);
    fs::write(&other, text).with_context(|| format!("write {}", other.display()))?;
    let status = Command::new("mount")
        .arg("--bind")
        .args([&other, path])
        .status();
    let status = status.context("run mount, of util-linux")?;
    ensure!(
        status.success(),
        "mount --bind on {}: {status}",
        path.display()
    );
    Ok(())
}

/// The configuration of unbound: one thread, no upstream queries.
fn unbound_config(domain: &str, origin: Ipv4Addr, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "server:
    interface: {SERVER_ADDRESS}
    access-control: 127.0.0.0/8 allow
    do-daemonize: no
    use-syslog: no
    username: \"\"
    chroot: \"\"
    pidfile: \"\"
    directory: \"{directory}\"
    num-threads: 1
    module-config: \"iterator\"
    local-zone: \"{domain}.\" redirect
    local-data: \"{domain}. 60 IN A {origin}\"
remote-control:
    control-enable: no
"
    )
}

const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SERVER: SocketAddrV4 = SocketAddrV4::new(SERVER_ADDRESS, 53);

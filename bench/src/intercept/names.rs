//! Names: everything below one domain is the origin's address.
//!
//! A name server in the namespace says so, because a thousand lines in /etc/hosts would be a thousand
//! lines to read for each connection, in some contestants and not in others.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::load::Transport;
use crate::running::Running;

/// Starts the name server and makes it the one of this mount namespace. It ends with the guard.
///
/// # Errors
/// unbound or mount(8) is missing or failed.
pub(crate) fn serve(domain: &str, origin: Ipv4Addr, directory: &Path) -> Result<Running> {
    let configuration = directory.join("unbound.conf");
    fs::write(&configuration, unbound(domain, origin, directory)).context("write unbound.conf")?;
    let mut command = Command::new("/usr/sbin/unbound");
    command.arg("-d").arg("-c").arg(configuration);
    let server = Running::start("unbound", command, directory, (Transport::Udp, SERVER))?;
    // What /etc/nsswitch.conf may say besides asks services of the machine outside.
    replace("/etc/nsswitch.conf", "hosts: files dns\n", directory)?;
    let resolv_conf = format!("nameserver {}\n", SERVER.ip());
    replace("/etc/resolv.conf", &resolv_conf, directory)?;
    Ok(server)
}

/// Puts `text` in the place of a file, for this mount namespace alone.
fn replace(path: &str, text: &str, directory: &Path) -> Result<()> {
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

/// One thread that asks nobody.
fn unbound(domain: &str, origin: Ipv4Addr, directory: &Path) -> String {
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

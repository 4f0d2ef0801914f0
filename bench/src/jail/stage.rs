//! The file systems of a cell: a jail may write into them, and the host does not see it.
//!
//! httpjail writes below /etc, /run and /var/lib. The programs are copied, as the directories above them may be closed to
//! ordinary users.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Mounts the file systems in this process's mount namespace.
pub(super) fn mount() -> Result<()> {
    run_mount(&["-t", "tmpfs", "-o", "mode=755", "bench", STAGE])?;
    for (name, directory) in [("etc", "/etc"), ("lib", "/var/lib")] {
        let [upper, work] = ["upper", "work"].map(|kind| format!("{STAGE}/{name}-{kind}"));
        for directory in [&upper, &work] {
            fs::create_dir(directory).with_context(|| format!("create {directory}"))?;
        }
        let options = format!("lowerdir={directory},upperdir={upper},workdir={work}");
        run_mount(&["-t", "overlay", "-o", &options, "bench", directory])?;
    }
    // A cell ends by the end of its PID namespace, and a jail that is killed leaves its directory for temporary files behind.
    fs::create_dir(temporary()).context("create a directory for temporary files")?;
    fs::set_permissions(temporary(), Permissions::from_mode(0o1777))?;
    // Where resolv.conf is a link into /run, its target is covered by the tmpfs now.
    let _ = fs::remove_file(RESOLV_CONF);
    fs::write(RESOLV_CONF, "").context("write resolv.conf")
}

/// Copies a program to where every user may execute it.
pub(super) fn install(program: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let path = Path::new(STAGE).join(name);
    fs::copy(program, &path).with_context(|| format!("copy {}", program.display()))?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The path of a file that every user may read, and that is removed with the cell.
pub(super) fn path(name: &str) -> PathBuf {
    Path::new(STAGE).join(name)
}

/// The directory for temporary files, which every user may write.
pub(super) fn temporary() -> PathBuf {
    path("tmp")
}

fn run_mount(arguments: &[&str]) -> Result<()> {
    let status = Command::new("mount").args(arguments).status();
    let status = status.context("run mount, of util-linux")?;
    ensure!(status.success(), "mount {}: {status}", arguments.join(" "));
    Ok(())
}

const STAGE: &str = "/run";
const RESOLV_CONF: &str = "/etc/resolv.conf";

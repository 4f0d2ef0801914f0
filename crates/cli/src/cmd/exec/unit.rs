//! `peername exec --unit`: the drop-in by which systemd starts a unit's server through `peername exec`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, bail};
use peername_daemon::options::Given;
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::advise_on_permission;
use peername_exec::library::Library;
use peername_exec::unit::drop_in::{DropIn, FILE_NAME, Launcher, has_mark, refuse_socket_unit};
use peername_exec::unit::service_unit::ServiceUnit;
use peername_observe::shell::quote;
use peername_sys::process::stderr::write_line;

use super::listener_policy_args::words_with_absolute_paths;
use super::options::{Args, Mode};
use crate::check_report::report_missing;
use crate::publish::publish;

/// Writes, prints, checks or removes the drop-in.
pub(super) fn run(given: &Given<Args>, name: &str) -> anyhow::Result<ExitCode> {
    let args = &given.options;
    let name = service_name(name)?;
    let unit = ServiceUnit::read(Path::new("/"), &name, FILE_NAME);
    if args.unit.remove {
        return match unit {
            Ok(unit) => remove(&unit.name),
            // The drop-in may have outlived its unit.
            Err(_) if exists_and_is_ours(&drop_in_path(&name))? => remove(&name),
            Err(error) => Err(error.into()),
        };
    }
    let unit = unit?;
    let path = drop_in_path(&unit.name);
    refuse_socket_unit(Path::new("/"), &unit)?;
    if args.unit.check {
        let launcher = launcher(given)?;
        if !launcher.options.is_empty() {
            refuse_invalid_options(args)?;
        }
        return check(&unit, &path, &launcher);
    }
    refuse_invalid_options(args)?;
    let text = DropIn::for_unit(&unit, &launcher(given)?)?.to_string();
    if unit.hides_main_process() {
        let name = &unit.name;
        write_line(format_args!(
            "peername: {name}: Type=forking without PIDFile=: systemd does not find the main process beside the supervisor; \
             name the server's PID file by PIDFile= (systemctl edit {})",
            quote(name)
        ));
    }
    if args.unit.print {
        write!(stdout(), "# {}\n{text}", path.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    write(&path, &text)
        .map_err(|error| advise_on_permission(error, "run as root, or use --print"))?;
    reload_manager(&unit.name, &path, "written")
}

/// Explains an option that needs `--unit` and is given without it.
pub(crate) fn explain_missing_name(words: &[OsString]) -> Option<String> {
    let options = || {
        words
            .iter()
            .map_while(|word| word.to_str().filter(|word| *word != "--"))
    };
    if options().any(|word| word == "--unit" || word.starts_with("--unit=")) {
        return None;
    }
    let option = options().find(|word| ["--print", "--check", "--remove"].contains(word))?;
    Some(format!(
        "{option} is for --unit: peername exec --unit NAME {option}"
    ))
}

/// The full name of a service. A missing suffix is added, as by systemctl(1).
fn service_name(name: &str) -> Result<String, UsageError> {
    match name.rsplit_once('.') {
        _ if name.contains('/') => Err(UsageError(format!(
            "--unit: {name} is a path; give the unit's name"
        ))),
        Some((_, "service")) => Ok(name.to_owned()),
        Some((_, suffix)) if OTHER_TYPES.contains(&suffix) => {
            Err(UsageError(format!("--unit: {name} is no service")))
        }
        _ => Ok(format!("{name}.service")),
    }
}

fn drop_in_path(unit: &str) -> PathBuf {
    Path::new("/etc/systemd/system")
        .join(format!("{unit}.d"))
        .join(FILE_NAME)
}

/// Refuses options that would keep the unit from starting.
fn refuse_invalid_options(args: &Args) -> Result<(), UsageError> {
    if args.mode == Mode::Netns {
        let text = "--unit goes with --mode auto, preload and notify: with netns, the server would reach no other unit";
        return Err(UsageError(text.to_owned()));
    }
    args.check_mode()?;
    args.listener_policy.client_judge()?;
    args.listener_policy.table_rules(false)?;
    Ok(())
}

/// The launcher with the options of this command line, and with absolute paths of files.
fn launcher(given: &Given<Args>) -> anyhow::Result<Launcher> {
    let library = match given.options.mode {
        Mode::Notify => None,
        _ => Some(Library::Accept.find()?),
    };
    Ok(Launcher {
        binary: env::current_exe().context("/proc/self/exe")?,
        library,
        options: words_with_absolute_paths(given, &UNIT_IDS)
            .into_iter()
            .map(utf8_text)
            .collect::<Result<_, _>>()?,
    })
}

fn utf8_text(word: OsString) -> anyhow::Result<String> {
    word.into_string()
        .map_err(|word| anyhow!("{}: not UTF-8", word.display()))
}

/// Writes the drop-in in one step, because half of a drop-in could clear the unit's command. Refuses to replace a file that
/// `--unit` has not written.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    exists_and_is_ours(path)?;
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    publish(path, text.as_bytes())
}

/// Prints the lines that the drop-in lacks.
fn check(unit: &ServiceUnit, path: &Path, launcher: &Launcher) -> anyhow::Result<ExitCode> {
    let missing = if exists_and_is_ours(path)? {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let lines = DropIn::for_unit(unit, launcher)?.lines_missing_in(&text);
        lines.iter().map(|line| format!("lacks {line}")).collect()
    } else {
        vec!["no such drop-in".to_owned()]
    };
    let code = report_missing(path, &missing)?;
    if !missing.is_empty() {
        write_line("peername: the same command without --check writes it");
    }
    Ok(code)
}

fn remove(unit: &str) -> anyhow::Result<ExitCode> {
    let path = &drop_in_path(unit);
    if !exists_and_is_ours(path)? {
        writeln!(stdout(), "{}: no such drop-in", path.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    fs::remove_file(path)
        .with_context(|| format!("{}: can't be removed", path.display()))
        .map_err(|error| advise_on_permission(error, "run as root"))?;
    // Fails while the directory has other drop-ins.
    let _ = fs::remove_dir(path.parent().unwrap_or(path));
    reload_manager(unit, path, "removed")
}

/// Whether the drop-in exists.
///
/// # Errors
///
/// The file can't be read, or `--unit` has not written it.
fn exists_and_is_ours(path: &Path) -> anyhow::Result<bool> {
    match fs::read_to_string(path) {
        Ok(text) if has_mark(&text) => Ok(true),
        Ok(_) => bail!(
            "{}: not made by `peername exec --unit`: rename it",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Reloads the manager, as `systemctl edit` does, and names the restart, which is left to the user because it ends connections.
/// `done` is what was done to the drop-in.
fn reload_manager(unit: &str, path: &Path, done: &str) -> anyhow::Result<ExitCode> {
    let out = &mut stdout();
    writeln!(out, "{}: {done}", path.display())?;
    // sd_booted(3)
    if Path::new("/run/systemd/system").is_dir() {
        let unit = quote(unit);
        let status = Command::new("systemctl")
            .arg("daemon-reload")
            .status()
            .context("systemctl")?;
        if !status.success() {
            bail!(
                "systemctl daemon-reload: {status}; {} is {done}: run `systemctl daemon-reload` again, and then `systemctl restart \
                 {unit}`",
                path.display()
            );
        }
        writeln!(out, "It takes effect by: systemctl restart {unit}")?;
    } else {
        writeln!(out, "It takes effect at the next boot.")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The ids of the options that are not copied into the drop-in, because they are about it.
const UNIT_IDS: [&str; 4] = ["unit", "print", "check", "remove"];
/// The types of units other than services.
const OTHER_TYPES: [&str; 10] = [
    "socket",
    "target",
    "timer",
    "path",
    "slice",
    "scope",
    "mount",
    "automount",
    "device",
    "swap",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_need_no_suffix() {
        for (name, expected) in [
            ("nginx", Some("nginx.service")),
            ("postgresql@15-main", Some("postgresql@15-main.service")),
            ("php8.2-fpm", Some("php8.2-fpm.service")),
            ("ssh.service", Some("ssh.service")),
            ("ssh.socket", None),
            ("/etc/systemd/system/a.service", None),
        ] {
            let full = service_name(name).ok();
            assert_eq!(full.as_deref(), expected);
        }
    }
}

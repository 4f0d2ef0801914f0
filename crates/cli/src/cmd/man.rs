//! `peername man`: writes the manual pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Command;
use clap_mangen::Man;

use crate::help;

/// Options of `peername man`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// A folder, which is made if it does not exist; gets peername.1, and a page for each subcommand
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        !args.folder.is_file(),
        "{}: a file, not a folder",
        args.folder.display()
    );
    let mut command = for_manual(help::command_line()).disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(&args.folder)
        .and_then(|()| write_pages(command, &args.folder))
        .with_context(|| format!("writing manual pages to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of this command and of those below it.
fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    for subcommand in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_pages(subcommand.clone(), folder)?;
    }
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    fs::write(folder.join(page.get_filename()), unfill_examples(&text))
}

/// Puts the indented lines, which are commands, between `.nf` and `.fi`: nothing breaks or hyphenates them.
fn unfill_examples(page: &str) -> String {
    let mut text = String::new();
    let mut is_example = false;
    for line in page.lines() {
        let is_indented = line.starts_with("  ");
        if is_indented != is_example {
            text.push_str(if is_indented { ".nf\n" } else { ".fi\n" });
        }
        is_example = is_indented;
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Adds what clap_mangen leaves out: the example before the help, and the options that `-h` hides.
fn for_manual(command: Command) -> Command {
    let description = command
        .get_about()
        .zip(command.get_before_help())
        .map(|(about, example)| format!("{about}\n\n{example}"));
    let command = match description {
        Some(description) => command.long_about(description),
        None => command,
    };
    command
        .mut_args(|arg| {
            let is_hidden = arg.is_hide_set() || arg.is_hide_long_help_set();
            arg.hide(is_hidden).hide_short_help(is_hidden)
        })
        .mut_subcommands(for_manual)
}

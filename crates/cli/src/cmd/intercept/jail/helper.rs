//! The helper process of `--ask` and `--learn`: outside of the jail, and not confined as the interceptor is.

use std::os::fd::OwnedFd;
use std::time::Duration;

use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::policy::tunnelled::TunnelledDestination;
use peername_sys::ipc::fd_passing::{send_bytes, seqpacket_pair};
use peername_sys::process::fork;
use peername_sys::process::secrets;
use peername_sys::process::stderr::write_line;
use peername_sys::process::terminal::Terminal;
use peername_sys::resolve;

use super::approval::{Answer, Mode, Question};
use super::ask::{self, Program};
use super::file_table::FileTable;
use super::learn::{LearningNetwork, OpenedList};
use super::options::Args;

/// What the helper is started with.
pub(super) struct Helper {
    mode: Mode,
    /// Where [`Mode::Ask`] asks.
    terminal: Option<Terminal>,
    timeout: Duration,
    /// The list of [`Mode::Learn`], or of what is answered `always`.
    list: Option<OpenedList>,
}

impl Helper {
    /// Opens the terminal, or the list.
    pub(super) fn new(args: &Args, mode: Mode) -> Result<Self, UsageError> {
        let terminal = match mode {
            Mode::Ask => Some(Terminal::open().map_err(|error| {
                UsageError(format!(
                    "--ask: there is no terminal to ask on: {error}; in its place, --learn FILE allows all and writes the list"
                ))
            })?),
            Mode::Learn => None,
        };
        Ok(Self {
            mode,
            terminal,
            timeout: args.ask_timeout,
            list: open_list(args, mode)?,
        })
    }

    /// Starts the process. Returns the interceptor's end of the channel: the helper exits when that end is closed.
    pub(super) fn spawn(self) -> peername_sys::Result<OwnedFd> {
        let Self {
            mode,
            terminal,
            timeout,
            list,
        } = self;
        let (interceptor_end, helper_end) = seqpacket_pair()?;
        let program = Program::current();
        let mut inherited = vec![helper_end];
        inherited.extend(terminal.map(OwnedFd::from));
        let list = list.map(|OpenedList { list, directory }| {
            inherited.push(directory.into());
            list
        });
        fork::spawn_detached(inherited, |inherited| {
            let mut inherited = inherited.into_iter();
            let Some(channel) = inherited.next() else {
                return 1;
            };
            let mut terminal = match mode {
                Mode::Ask => inherited.next().map(Terminal::from),
                Mode::Learn => None,
            };
            let list = list
                .zip(inherited.next())
                .map(|(list, directory)| OpenedList {
                    list,
                    directory: directory.into(),
                });
            serve(&channel, |question| {
                let answer = match (mode, &mut terminal) {
                    (Mode::Learn, _) => Answer::Always,
                    (Mode::Ask, Some(terminal)) => {
                        ask::ask(terminal, program, timeout, &channel, question)
                    }
                    (Mode::Ask, None) => Answer::Unanswered,
                };
                let is_listed = answer == Answer::Always
                    && list.as_ref().is_some_and(|list| add(list, question));
                match mode {
                    Mode::Learn if !is_listed => Answer::Unanswered,
                    _ => answer,
                }
            })
        })?;
        Ok(interceptor_end)
    }
}

/// Opens the list of `--learn` or `--ask-list`, if there is one. For the list, the ports of HTTP include those that rules of
/// this run open.
fn open_list(args: &Args, mode: Mode) -> Result<Option<OpenedList>, UsageError> {
    let path = match mode {
        Mode::Ask => &args.ask_list,
        Mode::Learn => &args.learn,
    };
    let Some(path) = path else {
        return Ok(None);
    };
    let rules = args.intercept().access_rules()?;
    let ports = args.jail_ports(rules.as_deref())?;
    let network = LearningNetwork {
        allowed: args.intercept().allowed_destinations(),
        relayed: TunnelledDestination::access_rules(&ports.tunnelled),
        http_ports: ports.opened,
        resolve: |name| resolve::lookup(name).unwrap_or_default(),
    };
    // The file's other options belong to the next run, too.
    let config = args.table.iter().map(FileTable::option);
    let options = config.chain(args.kept_options()).collect();
    OpenedList::open(mode, path, &args.command, options, network)
        .map(Some)
        .map_err(|error| {
            let (option, error) = (mode.list_option(), with_causes(&error));
            UsageError(format!("{option} {}: {error}", path.display()))
        })
}

/// Adds a destination to a list; an error is reported. Returns whether the list has it now.
fn add(list: &OpenedList, question: &Question) -> bool {
    list.add(&question.to)
        .inspect_err(|error| {
            let option = list.mode().list_option();
            write_line(format_args!(
                "peername: the list of {option}: {}",
                with_causes(error)
            ));
        })
        .is_ok()
}

/// Answers questions until the interceptor has exited. Returns the exit code.
fn serve(channel: &OwnedFd, mut answer: impl FnMut(&Question) -> Answer) -> u8 {
    fork::set_thread_name(c"peername-answer");
    let _ = secrets::disable_core_dumps();
    while let Some(question) = Question::receive(channel) {
        let answer = answer(&question).to_byte();
        if send_bytes(channel, &[answer], None).is_err() {
            break;
        }
    }
    0
}

//! The helper process of `--ask` and `--learn`: outside of the jail, and not confined as the interceptor is.

use std::os::fd::OwnedFd;
use std::path::Path;
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
use super::learn::{LearningNetwork, ListKind, OpenedList};
use super::options::Args;

/// What the helper is started with.
pub(super) enum Helper {
    Ask {
        terminal: Terminal,
        timeout: Duration,
        /// The list of what is answered `always`.
        list: Option<OpenedList>,
    },
    Learn(OpenedList),
}

impl Helper {
    /// Opens the terminal, or the list; `None` without either option.
    pub(super) fn new(args: &Args) -> Result<Option<Self>, UsageError> {
        let Some(timeout) = args.answer_timeout() else {
            let list = open_list(args, ListKind::Learned, args.learn.as_deref())?;
            return Ok(list.map(Self::Learn));
        };
        let terminal = Terminal::open().map_err(|error| {
            UsageError(format!(
                "--ask: there is no terminal to ask on: {error}; in its place, --learn FILE allows all and writes the list"
            ))
        })?;
        Ok(Some(Self::Ask {
            terminal,
            timeout,
            list: open_list(args, ListKind::Answered, args.ask_list.as_deref())?,
        }))
    }

    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Ask { .. } => Mode::Ask,
            Self::Learn(_) => Mode::Learn,
        }
    }

    /// Starts the process. Returns the interceptor's end of the channel: the helper exits when that end is closed.
    pub(super) fn spawn(self) -> peername_sys::Result<OwnedFd> {
        let (interceptor_end, helper_end) = seqpacket_pair()?;
        match self {
            Self::Ask {
                terminal,
                timeout,
                list,
            } => {
                let program = Program::current();
                let mut inherited = vec![helper_end, terminal.into()];
                let list = list.map(|OpenedList { list, directory }| {
                    inherited.push(directory.into());
                    list
                });
                fork::spawn_detached(inherited, |inherited| {
                    let mut inherited = inherited.into_iter();
                    let (Some(channel), Some(terminal)) = (inherited.next(), inherited.next())
                    else {
                        return 1;
                    };
                    let list = list
                        .zip(inherited.next())
                        .map(|(list, directory)| OpenedList {
                            list,
                            directory: directory.into(),
                        });
                    let mut terminal = Terminal::from(terminal);
                    serve(&channel, |question| {
                        let answer = ask::ask(&mut terminal, program, timeout, &channel, question);
                        if let (Answer::Always, Some(list)) = (answer, &list) {
                            add(list, question);
                        }
                        answer
                    })
                })
            }
            Self::Learn(OpenedList { list, directory }) => {
                fork::spawn_detached([helper_end, directory.into()], |[channel, directory]| {
                    let list = OpenedList {
                        list,
                        directory: directory.into(),
                    };
                    serve(&channel, |question| {
                        if add(&list, question) {
                            Answer::Always
                        } else {
                            Answer::Unanswered
                        }
                    })
                })
            }
        }?;
        Ok(interceptor_end)
    }
}

/// Opens the list of `--learn` or `--ask-list`, if there is one. For the list, the ports of HTTP include those that rules of
/// this run open.
fn open_list(
    args: &Args,
    kind: ListKind,
    path: Option<&Path>,
) -> Result<Option<OpenedList>, UsageError> {
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
    OpenedList::open(kind, path, &args.command, options, network)
        .map(Some)
        .map_err(|error| {
            let (option, error) = (kind.option(), with_causes(&error));
            UsageError(format!("{option} {}: {error}", path.display()))
        })
}

/// Adds a destination to a list; an error is reported. Returns whether the list has it now.
fn add(list: &OpenedList, question: &Question) -> bool {
    list.add(&question.to)
        .inspect_err(|error| {
            let option = list.kind().option();
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

//! The helper process of `--ask` and `--learn`: outside of the jail, and not confined as the interceptor is.

use std::os::fd::OwnedFd;
use std::time::Duration;

use peername_daemon::usage::Usage;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::listener::jail::TunnelledDestination;
use peername_sys::ipc::fd_passing::{send_bytes, seqpacket_pair};
use peername_sys::process::daemonize;
use peername_sys::process::secrets;
use peername_sys::process::terminal::Terminal;
use peername_sys::resolve;

use super::approval::{Answer, Mode, Question};
use super::ask::{self, Program};
use super::learn::{LearnedList, LearningNetwork};
use super::options::Args;

/// What the helper is started with.
pub(super) enum Helper {
    Ask(Terminal, Duration),
    Learn(Box<LearnedList>),
}

impl Helper {
    /// Opens the terminal, or the list; `None` without either option.
    ///
    /// # Errors
    ///
    /// There is no terminal, or the list can't be read or written.
    pub(super) fn new(args: &Args) -> Result<Option<Self>, Usage> {
        if let Some(limit) = args.ask_limit() {
            let terminal = Terminal::open();
            let terminal = terminal.map_err(|error| {
                Usage(format!("--ask: there is no terminal to ask on: {error}"))
            })?;
            return Ok(Some(Self::Ask(terminal, limit)));
        }
        let Some(path) = &args.learn else {
            return Ok(None);
        };
        let ports = args.jail_ports(None)?;
        let network = LearningNetwork {
            allowed: args.intercept().allowed_destinations(),
            relayed: TunnelledDestination::as_rules(&ports.tunnelled),
            http_ports: ports.opened,
            resolve: |name| resolve::lookup(name).unwrap_or_default(),
        };
        let list = LearnedList::open(path, &args.command, args.kept_options(), network)?;
        Ok(Some(Self::Learn(Box::new(list))))
    }

    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Ask(..) => Mode::Ask,
            Self::Learn(_) => Mode::Learn,
        }
    }

    /// Starts the process, which exits when the other end of the channel is closed. Returns that end.
    pub(super) fn spawn(self) -> peername_sys::Result<OwnedFd> {
        let (here, there) = seqpacket_pair()?;
        match self {
            Self::Ask(terminal, limit) => {
                let program = Program::current();
                daemonize::spawn_detached([there, terminal.into()], |[channel, terminal]| {
                    let mut terminal = Terminal::from(terminal);
                    serve(&channel, |question| {
                        ask::ask(&mut terminal, program, limit, &channel, question)
                    })
                })
            }
            Self::Learn(list) => daemonize::spawn_detached([there], |[channel]| {
                serve(&channel, |question| match list.add(&question.to) {
                    Ok(()) => Answer::Always,
                    Err(error) => {
                        eprintln!("peername: the list of --learn: {}", with_causes(&error));
                        Answer::Unanswered
                    }
                })
            }),
        }?;
        Ok(here)
    }
}

/// Answers questions until the interceptor has exited. Returns the exit code.
fn serve(channel: &OwnedFd, mut answer: impl FnMut(&Question) -> Answer) -> u8 {
    daemonize::set_thread_name(c"peername-answer");
    let _ = secrets::disable_core_dumps();
    while let Some(question) = Question::receive(channel) {
        let answer = answer(&question).to_byte();
        if send_bytes(channel, &[answer], None).is_err() {
            break;
        }
    }
    0
}

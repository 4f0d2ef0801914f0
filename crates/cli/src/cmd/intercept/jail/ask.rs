//! The questions of `--ask`, on the terminal that the program uses, too.
//!
//! The helper takes the terminal's foreground for a question. It takes it only from a process group of the program, because the
//! typed keys are for the shell outside while that has the foreground.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::time::{Duration, Instant};

use peername_sys::event::wait_readable;
use peername_sys::process::terminal::{ForegroundGuard, Terminal, Typed};

use super::approval::{Answer, Question};

/// The program, as seen from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pid: u32,
    /// Its process group at the start.
    group: Option<u32>,
}

impl Program {
    /// This process, which will execute the program.
    pub(super) fn current() -> Self {
        let pid = process::id();
        let group = Status::read(pid).map(|status| status.group);
        Self { pid, group }
    }

    /// Whether this process group is the program's, or one that the program has made for a job.
    fn has_group(self, group: u32) -> bool {
        self.group == Some(group) || self.is_ancestor_of(group)
    }

    fn is_ancestor_of(self, pid: u32) -> bool {
        std::iter::successors(Some(pid), |&pid| Some(Status::read(pid)?.parent))
            .take(MAX_DEPTH)
            .any(|pid| pid == self.pid)
    }
}

/// Fields of /proc/PID/stat.
struct Status {
    parent: u32,
    group: u32,
}

impl Status {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The process's name, in parentheses, may have any characters.
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let fields = std::str::from_utf8(text.get(end + 1..)?).ok()?;
        let mut fields = fields.split_whitespace().skip(1).map(str::parse);
        Some(Self {
            parent: fields.next()?.ok()?,
            group: fields.next()?.ok()?,
        })
    }
}

/// Asks one question. Returns [`Answer::Unanswered`] if no answer comes in `timeout`, the terminal hangs up, or the interceptor
/// exits, which closes `channel`.
pub(super) fn ask(
    terminal: &mut Terminal,
    program: Program,
    timeout: Duration,
    channel: &OwnedFd,
    question: &Question,
) -> Answer {
    let deadline = Instant::now() + timeout;
    if !wait_foreground(terminal, program, deadline, channel) {
        return Answer::Unanswered;
    }
    let Ok(mut foreground) = terminal.take_foreground() else {
        return Answer::Unanswered;
    };
    let Question { to, request } = question;
    let text = format!("\r\npeername: {to} is not on the lists: {request}\n");
    if foreground.write(&text).is_err() {
        return Answer::Unanswered;
    }
    read_answer(foreground, deadline, channel)
}

/// Waits until the program has the terminal's foreground; `false` if the deadline passes or the interceptor exits before.
fn wait_foreground(
    terminal: &Terminal,
    program: Program,
    deadline: Instant,
    channel: &OwnedFd,
) -> bool {
    // Polls, because the kernel reports no change of the foreground.
    while !terminal
        .foreground()
        .is_some_and(|group| program.has_group(group))
    {
        if Instant::now() >= deadline {
            return false;
        }
        let has_exited =
            wait_readable([channel.as_fd()], Some(FOREGROUND_POLL)).unwrap_or_default();
        if has_exited {
            return false;
        }
    }
    true
}

fn read_answer(
    mut foreground: ForegroundGuard<'_>,
    deadline: Instant,
    channel: &OwnedFd,
) -> Answer {
    let mut prompt = "peername: allow it? once, always or deny: ";
    loop {
        if foreground.write(prompt).is_err() {
            return Answer::Unanswered;
        }
        match foreground.read_line(deadline, channel) {
            Typed::Line(line) => match line.trim_ascii() {
                b"once" => return Answer::Once,
                b"always" => return Answer::Always,
                b"deny" | b"d" | b"no" | b"n" => return Answer::Never,
                // Only whole words allow: a line that has lost characters does not.
                _ => prompt = "peername: type the whole word once, always or deny: ",
            },
            Typed::Signal(signal) => {
                let _ = foreground.write("\n");
                foreground.forward(signal);
                return Answer::Unanswered;
            }
            Typed::NoInput => {
                let _ = foreground.write("\npeername: no answer: denied\n");
                return Answer::Unanswered;
            }
        }
    }
}

const FOREGROUND_POLL: Duration = Duration::from_millis(50);
/// Generations of processes between a job and the program, at most.
const MAX_DEPTH: usize = 64;

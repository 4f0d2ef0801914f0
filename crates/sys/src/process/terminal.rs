//! Questions on the terminal that a program in the same session uses, too (termios(3), tcsetpgrp(3)).
//!
//! A process that reads the terminal has to be in its foreground process group, or gets SIGTTIN, or EIO if that is blocked. So
//! the foreground is taken for the time of a question. The process has to be in a process group of its own and to block
//! SIGTTOU, as a daemon of [`spawn_detached`](crate::process::fork::spawn_detached) does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, QueueSelector, SpecialCodeIndex, Termios,
    tcflush, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp,
};

use crate::{NameCall, Result};

/// Whether this process has a controlling terminal and is in its foreground: keys that send signals send them to it.
pub fn is_foreground() -> bool {
    Terminal::open().is_ok_and(|terminal| terminal.foreground() == Some(pid_number(getpgrp())))
}

/// The controlling terminal of this process.
#[derive(Debug)]
pub struct Terminal(File);

impl Terminal {
    /// Opens the controlling terminal.
    ///
    /// # Errors
    ///
    /// ENXIO: this process has none.
    pub fn open() -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open("/dev/tty");
        file.map(Self).call("open(/dev/tty)")
    }

    /// The process group in the foreground; `None` if there is none, or the terminal is no longer this session's.
    pub fn foreground(&self) -> Option<u32> {
        tcgetpgrp(&self.0).ok().map(pid_number)
    }

    /// Takes the foreground from the process group that has it, and discards what was typed before.
    ///
    /// # Errors
    ///
    /// EIO or ENOTTY: the terminal has hung up.
    pub fn take_foreground(&mut self) -> Result<ForegroundGuard<'_>> {
        let group = tcgetpgrp(&self.0).call("tcgetpgrp(3)")?;
        let modes = tcgetattr(&self.0).call("tcgetattr(3)")?;
        tcsetpgrp(&self.0, getpgrp()).call("tcsetpgrp(3)")?;
        let guard = ForegroundGuard {
            terminal: &mut self.0,
            group,
            line_modes: line_modes(modes.clone()),
            modes,
        };
        tcsetattr(&guard.terminal, OptionalActions::Now, &guard.line_modes).call("tcsetattr(3)")?;
        tcflush(&guard.terminal, QueueSelector::IFlush).call("tcflush(3)")?;
        Ok(guard)
    }
}

impl From<OwnedFd> for Terminal {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl From<Terminal> for OwnedFd {
    fn from(Terminal(file): Terminal) -> Self {
        file.into()
    }
}

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// A line, without its end.
    Line(Vec<u8>),
    /// Ctrl-C or Ctrl-Z, for the process group that had the foreground.
    Signal(TypedSignal),
    /// No input before the deadline, a hang-up or an error of the terminal, or before the other descriptor was readable; or
    /// input that may not be what was typed, because another process has changed the terminal's modes.
    NoInput,
}

/// A key that sends a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTSTP.
    Stop,
}

/// The foreground of the terminal. On drop, the process group that had it gets it back, with the terminal's modes.
#[derive(Debug)]
pub struct ForegroundGuard<'a> {
    terminal: &'a mut File,
    /// The process group that had the foreground before.
    group: Pid,
    /// The modes before.
    modes: Termios,
    /// The modes during the question.
    line_modes: Termios,
}

impl ForegroundGuard<'_> {
    /// Writes a text.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.terminal.write_all(text.as_bytes())
    }

    /// Reads a line; waits for it until the deadline, or until `other` is readable or closed.
    pub fn read_line(&mut self, deadline: Instant, other: impl AsFd) -> Typed {
        let left = deadline.saturating_duration_since(Instant::now());
        if !wait_input(&self.terminal, other, left) {
            return Typed::NoInput;
        }
        let mut line = [0; MAX_LINE];
        let len = self.terminal.read(&mut line).unwrap_or_default();
        if !self.has_line_modes() {
            return Typed::NoInput;
        }
        match line.get(..len) {
            Some([line @ .., b'\n']) => Typed::Line(line.to_vec()),
            Some([.., INTERRUPT]) => Typed::Signal(TypedSignal::Interrupt),
            Some([.., STOP]) => Typed::Signal(TypedSignal::Stop),
            _ => Typed::NoInput,
        }
    }

    /// Whether the terminal still has the modes of the question. A process that ignores SIGTTOU may change them, and then what
    /// was read may not be what was typed.
    fn has_line_modes(&self) -> bool {
        tcgetattr(&self.terminal).is_ok_and(|now| {
            let wanted = &self.line_modes;
            (now.input_modes, now.local_modes) == (wanted.input_modes, wanted.local_modes)
                && SPECIAL_CHARACTERS
                    .iter()
                    .all(|&(character, value)| now.special_codes[character] == value)
        })
    }

    /// Returns the foreground, and sends the signal to the process group that gets it.
    pub fn forward(self, signal: TypedSignal) {
        let group = self.group;
        drop(self);
        let signal = match signal {
            TypedSignal::Interrupt => Signal::INT,
            TypedSignal::Stop => Signal::TSTP,
        };
        // ESRCH: the group has exited.
        let _ = kill_process_group(group, signal);
    }
}

impl Drop for ForegroundGuard<'_> {
    fn drop(&mut self) {
        // A shell that has taken the foreground in the meantime has its own modes.
        if tcgetpgrp(&self.terminal).is_ok_and(|group| group == getpgrp()) {
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.modes);
            let _ = tcsetpgrp(&self.terminal, self.group);
        }
    }
}

/// Waits until the terminal is readable. Returns `false` if `other` is readable or closed, and after the timeout `limit`.
fn wait_input(terminal: impl AsFd, other: impl AsFd, limit: Duration) -> bool {
    let mut fds = [
        PollFd::new(&terminal, PollFlags::IN),
        PollFd::new(&other, PollFlags::IN),
    ];
    let limit = Timespec::try_from(limit).ok();
    let ready = poll(&mut fds, limit.as_ref());
    let [has_input, is_other_ready] = fds.map(|fd| !fd.revents().is_empty());
    ready.is_ok() && has_input && !is_other_ready
}

/// The modes in which a line can be typed, whatever modes the program has set; the speed and the size of a character stay.
/// Ctrl-C and Ctrl-Z end the line instead of sending signals, which this process group would get.
fn line_modes(mut modes: Termios) -> Termios {
    modes.input_modes = InputModes::ICRNL | InputModes::IUTF8;
    modes.output_modes = OutputModes::OPOST | OutputModes::ONLCR;
    modes.local_modes = LocalModes::ICANON
        | LocalModes::ECHO
        | LocalModes::ECHOE
        | LocalModes::ECHOK
        // Enables VEOL2.
        | LocalModes::IEXTEN;
    for (character, value) in SPECIAL_CHARACTERS {
        modes.special_codes[character] = value;
    }
    modes
}

fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_pid().cast_unsigned()
}

/// What each special character of the terminal is during a question: the usual one, or none.
const SPECIAL_CHARACTERS: [(SpecialCodeIndex, u8); 13] = [
    (SpecialCodeIndex::VERASE, 0x7f),
    (SpecialCodeIndex::VKILL, 0x15),
    (SpecialCodeIndex::VEOF, 4),
    (SpecialCodeIndex::VEOL, INTERRUPT),
    (SpecialCodeIndex::VEOL2, STOP),
    (SpecialCodeIndex::VINTR, DISABLED),
    (SpecialCodeIndex::VQUIT, DISABLED),
    (SpecialCodeIndex::VSUSP, DISABLED),
    (SpecialCodeIndex::VSTART, DISABLED),
    (SpecialCodeIndex::VSTOP, DISABLED),
    (SpecialCodeIndex::VWERASE, DISABLED),
    (SpecialCodeIndex::VLNEXT, DISABLED),
    (SpecialCodeIndex::VREPRINT, DISABLED),
];
/// `_POSIX_VDISABLE`.
const DISABLED: u8 = 0;
const INTERRUPT: u8 = 3;
const STOP: u8 = 26;
/// The longest line of a terminal (N_TTY_BUF_SIZE).
const MAX_LINE: usize = 4096;

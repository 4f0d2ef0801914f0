//! Approval of a jail's requests by a helper process outside: it asks on the terminal (`--ask`), or writes a list (`--learn`).
//!
//! ```text
//! workers ── questions ─▶ a thread of the interceptor ── SOCK_SEQPACKET ─▶ helper
//! ```
//!
//! The interceptor is confined and could do neither. One question is open at a time. Requests for the same host and port share
//! it, and an answer that is for the whole run is remembered. The helper exits when the interceptor does.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use peername_intercept::authz::{
    Approval, ApprovalFuture, ApprovalRequest, Approver, LEARNED, TERMINAL,
};
use peername_intercept::host::HostPort;
use peername_observe::escape::escape_into;
use peername_sys::ipc::fd_passing::{receive_bytes, send_bytes};
use tokio::sync::watch;

/// The answer to a question: one byte on the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Allowed, for the requests that have waited for it.
    Once,
    /// Allowed, to the end of the program.
    Always,
    /// Denied, to the end of the program.
    Never,
    /// Denied, for the requests that have waited for it.
    Unanswered,
}

/// What the helper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Asks, and lists what is answered `always`, if there is a list.
    Ask,
    /// Allows and lists everything.
    Learn,
}

/// A question as the helper gets it. Everything in it is printable ASCII.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) to: HostPort,
    /// The method and the path, shortened.
    pub(super) request: String,
}

impl Question {
    /// Receives the next question; `None` once the interceptor has exited.
    pub(super) fn receive(channel: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; MAX_MESSAGE];
        let (length, _) = receive_bytes(channel, &mut bytes).ok()?;
        let text = std::str::from_utf8(bytes.get(..length)?).ok()?;
        let (to, request) = text.split_once(' ')?;
        Some(Self {
            to: HostPort::parse(to).ok()?,
            request: request.to_owned(),
        })
    }

    fn new(request: ApprovalRequest<'_>) -> Self {
        let mut text = String::new();
        escape_into(&mut text, request.method.as_bytes(), MAX_METHOD, b"");
        if !request.path.is_empty() {
            text.push(' ');
            escape_into(&mut text, request.path.as_bytes(), MAX_PATH, b"");
        }
        Self {
            to: request.to.clone(),
            request: text,
        }
    }

    fn to_message(&self) -> String {
        format!("{} {}", self.to, self.request)
    }
}

impl Answer {
    pub(super) fn to_byte(self) -> u8 {
        match self {
            Self::Once => b'o',
            Self::Always => b'a',
            Self::Never => b'd',
            Self::Unanswered => b'-',
        }
    }

    /// Any other byte denies.
    fn from_byte(byte: u8) -> Self {
        match byte {
            b'o' => Self::Once,
            b'a' => Self::Always,
            b'd' => Self::Never,
            _ => Self::Unanswered,
        }
    }
}

impl Mode {
    /// The option that names the list.
    pub(super) fn list_option(self) -> &'static str {
        match self {
            Self::Ask => "--ask-list",
            Self::Learn => "--learn",
        }
    }

    fn approval(self, answer: Answer) -> Approval {
        let (how, why_unanswered) = match self {
            Self::Ask => (TERMINAL, "there was no answer on the terminal (jail --ask)"),
            Self::Learn => (LEARNED, "the list of --learn can't be written"),
        };
        let denial_reason = match answer {
            Answer::Once | Answer::Always => None,
            Answer::Never => Some("denied on the terminal (jail --ask)"),
            Answer::Unanswered => Some(why_unanswered),
        };
        Approval { denial_reason, how }
    }
}

/// The interceptor's side of the channel.
#[derive(Debug)]
pub(super) struct OutsideApprover {
    mode: Mode,
    hosts: Arc<Hosts>,
    questions: SyncSender<PendingQuestion>,
}

/// The answer for each host and port, or the question that is open.
#[derive(Debug, Default)]
struct Hosts(Mutex<HashMap<HostPort, HostState>>);

#[derive(Debug)]
enum HostState {
    Answered(Answer),
    Asked(Arc<watch::Sender<Option<Answer>>>),
}

/// A question, and the channel on which its requests wait for the answer.
#[derive(Debug)]
struct PendingQuestion {
    question: Question,
    waiting: Arc<watch::Sender<Option<Answer>>>,
}

impl OutsideApprover {
    /// Starts the thread that sends questions. To be called once the process is confined.
    pub(super) fn new(mode: Mode, channel: OwnedFd) -> std::io::Result<Self> {
        let hosts = Arc::new(Hosts::default());
        let (questions, received) = sync_channel(MAX_QUESTIONS);
        let shared = Arc::clone(&hosts);
        thread::Builder::new()
            .name("questions".to_owned())
            .spawn(move || shared.send_all(&received, &channel))?;
        Ok(Self {
            mode,
            hosts,
            questions,
        })
    }

    /// The answer if it is known, or the channel on which the answer will come.
    fn find_or_ask(&self, request: ApprovalRequest<'_>) -> Lookup {
        let mut hosts = self.hosts.lock();
        match hosts.get(request.to) {
            Some(HostState::Answered(answer)) => return Lookup::Answer(*answer),
            Some(HostState::Asked(waiting)) => return Lookup::Waiting(waiting.subscribe()),
            None if hosts.len() >= MAX_HOSTS => return Lookup::Answer(Answer::Unanswered),
            None => {}
        }
        let (sender, receiver) = watch::channel(None);
        let waiting = Arc::new(sender);
        let pending = PendingQuestion {
            question: Question::new(request),
            waiting: Arc::clone(&waiting),
        };
        match self.questions.try_send(pending) {
            Ok(()) => {
                hosts.insert(request.to.clone(), HostState::Asked(waiting));
                Lookup::Waiting(receiver)
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                Lookup::Answer(Answer::Unanswered)
            }
        }
    }
}

enum Lookup {
    Answer(Answer),
    Waiting(watch::Receiver<Option<Answer>>),
}

impl Approver for OutsideApprover {
    fn approve<'a>(&'a self, request: ApprovalRequest<'a>) -> ApprovalFuture<'a> {
        let lookup = self.find_or_ask(request);
        Box::pin(async move {
            let answer = match lookup {
                Lookup::Answer(answer) => answer,
                Lookup::Waiting(mut waiting) => {
                    let answer = waiting.wait_for(Option::is_some).await;
                    // The sender is dropped without an answer only when the thread ends.
                    answer
                        .ok()
                        .and_then(|answer| *answer)
                        .unwrap_or(Answer::Unanswered)
                }
            };
            self.mode.approval(answer)
        })
    }

    /// `--learn` lists denied addresses as comments.
    fn lists_denied_addresses(&self) -> bool {
        self.mode == Mode::Learn
    }
}

impl Hosts {
    fn lock(&self) -> MutexGuard<'_, HashMap<HostPort, HostState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one question after the other and forwards the answers, until the process exits.
    fn send_all(&self, questions: &Receiver<PendingQuestion>, channel: &OwnedFd) {
        while let Ok(PendingQuestion { question, waiting }) = questions.recv() {
            if self.remove_abandoned(&question.to, &waiting) {
                continue;
            }
            let answer = exchange(channel, &question);
            let mut hosts = self.lock();
            match answer {
                Answer::Always | Answer::Never => {
                    hosts.insert(question.to, HostState::Answered(answer));
                }
                Answer::Once | Answer::Unanswered => {
                    hosts.remove(&question.to);
                }
            }
            waiting.send_replace(Some(answer));
        }
    }

    /// Removes a question for which no request waits any more.
    fn remove_abandoned(&self, to: &HostPort, waiting: &watch::Sender<Option<Answer>>) -> bool {
        // Requests subscribe under this lock.
        let mut hosts = self.lock();
        let is_abandoned = waiting.receiver_count() == 0;
        if is_abandoned {
            hosts.remove(to);
        }
        is_abandoned
    }
}

/// Sends a question and receives the answer. If that fails, the helper has exited, and the request is denied.
fn exchange(channel: &OwnedFd, question: &Question) -> Answer {
    let mut byte = [0];
    let sent = send_bytes(channel, question.to_message().as_bytes(), None);
    let received = sent.and_then(|()| receive_bytes(channel, &mut byte));
    match received {
        Ok((1, _)) => Answer::from_byte(byte[0]),
        _ => Answer::Unanswered,
    }
}

/// More than a host name, a method and a path take.
const MAX_MESSAGE: usize = 2048;
const MAX_METHOD: usize = 20;
const MAX_PATH: usize = 200;
/// Questions that wait at a time; requests beyond are denied.
const MAX_QUESTIONS: usize = 64;
/// Hosts that are remembered: the program chooses them, so their number is bounded. Requests for others are denied.
const MAX_HOSTS: usize = 10_000;

#[cfg(test)]
mod tests {
    use peername_sys::ipc::fd_passing::seqpacket_pair;
    use tokio::runtime::Builder;

    use super::*;

    fn request<'a>(to: &'a HostPort, path: &'a str) -> ApprovalRequest<'a> {
        let method = "GET";
        ApprovalRequest { to, method, path }
    }

    /// An approver, and the helper's end of its channel.
    fn start() -> (OutsideApprover, OwnedFd) {
        let (channel, helper_end) = seqpacket_pair().unwrap();
        (
            OutsideApprover::new(Mode::Ask, channel).unwrap(),
            helper_end,
        )
    }

    fn answer(channel: &OwnedFd, answer: Answer) -> Question {
        let question = Question::receive(channel).unwrap();
        send_bytes(channel, &[answer.to_byte()], None).unwrap();
        question
    }

    fn is_allowed(approval: ApprovalFuture<'_>) -> bool {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(approval).denial_reason.is_none()
    }

    #[test]
    fn requests_for_one_host_share_a_question() {
        let (approver, channel) = start();
        let [a, b] = ["a.test:443", "a.test:80"].map(|to| HostPort::parse(to).unwrap());
        let [first, second] = ["/1", "/2"].map(|path| approver.approve(request(&a, path)));
        let other = approver.approve(request(&b, "/3"));
        assert_eq!(answer(&channel, Answer::Once).request, "GET /1");
        assert_eq!(answer(&channel, Answer::Never).request, "GET /3");
        assert!(is_allowed(first) && is_allowed(second) && !is_allowed(other));
        // `Once` was for those two requests; `Always` and `Never` are remembered.
        let again = approver.approve(request(&a, "/4"));
        assert_eq!(answer(&channel, Answer::Always).request, "GET /4");
        assert!(is_allowed(again));
        assert!(is_allowed(approver.approve(request(&a, "/5"))));
        assert!(!is_allowed(approver.approve(request(&b, "/6"))));
    }

    #[test]
    fn question_is_withdrawn_with_its_requests() {
        let (approver, channel) = start();
        let [a, b, c] = ["a.test:1", "b.test:1", "c.test:1"].map(|to| HostPort::parse(to).unwrap());
        let first = approver.approve(request(&a, "/"));
        drop(approver.approve(request(&b, "/")));
        let last = approver.approve(request(&c, "/"));
        let asked = [(); 2].map(|()| answer(&channel, Answer::Once).to);
        assert_eq!(asked, [a.clone(), c.clone()]);
        assert!(is_allowed(first) && is_allowed(last));
    }

    #[test]
    fn helper_that_has_exited_denies() {
        let (approver, channel) = start();
        let to = HostPort::parse("a.test:443").unwrap();
        let waiting = approver.approve(request(&to, "/"));
        drop(channel);
        assert!(!is_allowed(waiting));
        assert!(!is_allowed(approver.approve(request(&to, "/"))));
    }

    #[test]
    fn question_is_printable_and_short() {
        let to = HostPort::parse("a.test:443").unwrap();
        let path = format!("/\u{1b}]0;x\u{7}\u{202e}\n{}", "y".repeat(2000));
        let question = Question::new(request(&to, &path));
        assert!(
            question
                .to_message()
                .bytes()
                .all(|byte| (0x20..0x7f).contains(&byte))
        );
        assert!(question.to_message().len() < MAX_MESSAGE);
        let prefix = "GET /%1b]0;x%07%e2%80%ae%0ayyy";
        assert!(question.request.starts_with(prefix), "{question:?}");
    }
}

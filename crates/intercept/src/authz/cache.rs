//! Answers that stand for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;

use super::config::Sent;
use super::request::Question;
use super::response::Answer;
use super::verdict::{Decision, Failure};

/// Answers by question, of all workers together. Any number of equal questions at once is asked once.
#[derive(Debug)]
pub(crate) struct Cache {
    answers: moka::future::Cache<Key, Kept>,
    allow_for: Duration,
    deny_for: Duration,
}

/// All that the service is told and could decide by, to the octet. What is told but left out here tells one
/// request from the next and not what it is: its id, and the ports of client and balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(Box<[u8]>);

#[derive(Clone, Debug)]
struct Kept {
    decision: Decision,
    lives: Duration,
}

/// Why there is nothing to keep. Failures never are.
#[derive(Debug)]
enum NotKept {
    Answer(Decision),
    Failure(Failure),
}

impl Cache {
    /// A yes stands for `allow_for`; a no is corrected sooner.
    pub(crate) fn new(allow_for: Duration) -> Self {
        let answers = moka::future::Cache::builder()
            .max_capacity(MOST_MEMORY)
            .weigher(|key: &Key, kept: &Kept| weight(key, &kept.decision))
            .expire_after(Lives)
            .build();
        Self {
            answers,
            allow_for,
            deny_for: allow_for.min(MOST_FOR_A_DENIAL),
        }
    }

    /// The answer to `key`, from `ask` if there is none, and whether it was there (or being asked for).
    ///
    /// # Errors
    ///
    /// Those of `ask`, to all who waited for it.
    pub(crate) async fn get<A>(
        &self,
        key: Key,
        ask: impl Fn() -> A,
    ) -> Result<(Decision, bool), Failure>
    where
        A: Future<Output = Result<Answer, Failure>>,
    {
        let mut asked = false;
        let init = async {
            asked = true;
            match ask().await {
                Ok(answer) => self.keep(answer),
                Err(failure) => Err(NotKept::Failure(failure)),
            }
        };
        let result = self.answers.try_get_with(key, init).await;
        match result.as_ref().map_err(Arc::as_ref) {
            Ok(kept) => Ok((kept.decision.clone(), !asked)),
            Err(NotKept::Failure(failure)) => Err(failure.clone()),
            Err(NotKept::Answer(decision)) if asked => Ok((decision.clone(), false)),
            // An answer to that one question alone.
            Err(NotKept::Answer(_)) => ask().await.map(|answer| (answer.decision, false)),
        }
    }

    fn keep(&self, answer: Answer) -> Result<Kept, NotKept> {
        let most = match answer.decision {
            Decision::Allow(_) => self.allow_for,
            Decision::Deny(_) => self.deny_for,
        };
        let (decision, lives) = (answer.decision, answer.keep.within(most));
        match lives.is_zero() {
            true => Err(NotKept::Answer(decision)),
            false => Ok(Kept { decision, lives }),
        }
    }
}

impl Key {
    /// `None` when some of the body is part of the question.
    pub(crate) fn of(question: &Question<'_>, sent: &Sent) -> Option<Self> {
        if question.body.is_some_and(|body| !body.bytes.is_empty()) {
            return None;
        }
        let mut key = Vec::with_capacity(512);
        let mut put = |field: &[u8]| {
            key.extend_from_slice(&field.len().to_le_bytes());
            key.extend_from_slice(field);
        };
        let Question {
            kind,
            client,
            peer,
            connect,
            sni,
            alpn,
            version,
            method,
            scheme,
            to,
            path_and_query,
            headers,
            body_size,
            request_id: _,
            body: _,
        } = question;
        let connect = connect.map(|connect| connect.to_string());
        put(format!(
            "{kind:?} {} {} {version:?} {body_size:?}",
            client.ip(),
            peer.ip()
        )
        .as_bytes());
        for optional in [connect.as_deref(), *sni, *alpn] {
            put(optional.map_or(b"-".as_slice(), |_| b"+"));
            put(optional.unwrap_or_default().as_bytes());
        }
        put(method.as_str().as_bytes());
        put(scheme.as_bytes());
        put(to.to_string().as_bytes());
        put(path_and_query.as_bytes());
        for (name, value) in headers.iter().filter(|(name, _)| sent.includes(name)) {
            put(name.as_str().as_bytes());
            put(value.as_bytes());
        }
        Some(Self(key.into()))
    }
}

/// Each as long as it may.
struct Lives;

impl Expiry<Key, Kept> for Lives {
    fn expire_after_create(&self, _: &Key, kept: &Kept, _: Instant) -> Option<Duration> {
        Some(kept.lives)
    }
}

fn weight(Key(key): &Key, decision: &Decision) -> u32 {
    let answer = match decision {
        Decision::Allow(changes) => changes.weight(),
        Decision::Deny(denial) => denial.weight(),
    };
    u32::try_from(key.len() + answer + OVERHEAD).unwrap_or(u32::MAX)
}

/// Octets of all of them. Questions are the clients' to make, so their number alone bounds nothing.
const MOST_MEMORY: u64 = 16 << 20;
/// Octets besides key and answer, about.
const OVERHEAD: usize = 512;
/// Somebody waits in front of a denial for it to be lifted.
const MOST_FOR_A_DENIAL: Duration = Duration::from_secs(5);

// SPDX-License-Identifier: Apache-2.0

//! A text that the leader keeps in its Lease, where the other candidates read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The annotation of the text. Before the text is the second of the renewal that wrote it. A leader of an earlier
/// version renews the Lease and leaves the annotation as it is: the seconds differ then, and the text is too old.
const NOTE: &str = "portolan.dev/clusters";

/// The length of the longest text, in bytes: an API server takes 256 KiB of annotations of one object.
pub const LONGEST_NOTE: usize = 192 * 1024;

/// The text of the leader, shared by the task of the election and by whoever tells or reads it.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    notes: Mutex<Notes>,
    /// A text is to be written at once.
    urgent: Notify,
    /// The Lease was read or written for the first time.
    looked: Notify,
}

#[derive(Debug, Default)]
struct Notes {
    told: Option<Arc<str>>,
    /// Number of urgent texts that were told.
    urgent: u64,
    /// Number of those that the Lease has.
    written: u64,
    /// A text that nobody has taken.
    read: Option<Arc<str>>,
    /// The time of the last answer of the API server.
    answered: Option<Instant>,
}

impl Board {
    /// Tells a text, in place of the last one. It is written with the next renewal of the Lease, and an urgent one at
    /// once. Only the leader tells.
    pub fn tell(&self, text: &str, is_urgent: bool) {
        let mut notes = self.lock();
        notes.told = Some(text.into());
        if is_urgent {
            notes.urgent += 1;
            drop(notes);
            self.0.urgent.notify_one();
        }
    }

    /// Returns `true` if an urgent text is not in the Lease yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let notes = self.lock();
        notes.urgent != notes.written
    }

    /// Takes the last text of another leader, if nobody has taken it. A candidate that begins to lead has the text of
    /// the leader before it by then.
    #[must_use]
    pub fn take(&self) -> Option<Arc<str>> {
        self.lock().read.take()
    }

    /// Returns the time since the API server last answered; `None` if it never did.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.lock().answered.map(|at| at.elapsed())
    }

    /// Waits until the Lease has been read once. Only one task may wait.
    pub async fn looked(&self) {
        self.0.looked.notified().await;
    }

    /// Returns the text to write, and the number of urgent ones with it.
    #[must_use]
    pub fn told(&self) -> (Option<Arc<str>>, u64) {
        let notes = self.lock();
        (notes.told.clone(), notes.urgent)
    }

    /// Notes that the Lease has so many of the urgent texts.
    pub fn wrote(&self, urgent: u64) {
        self.lock().written = urgent;
        self.answered();
    }

    /// Notes the text of another leader.
    pub fn read(&self, note: Option<Arc<str>>) {
        if note.is_some() {
            self.lock().read = note;
        }
        self.answered();
    }

    /// Notes the text of the leader before this one, which leads from now on. What this one told when it led before
    /// does not count any more.
    pub(super) fn took_over(&self, note: Option<Arc<str>>) {
        let mut notes = self.lock();
        notes.told = None;
        notes.written = notes.urgent;
        drop(notes);
        self.read(note);
    }

    /// Waits for an urgent text.
    pub(super) async fn urgent(&self) {
        self.0.urgent.notified().await;
    }

    fn answered(&self) {
        let is_first = self.lock().answered.replace(Instant::now()).is_none();
        if is_first {
            self.0.looked.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a Lease, if the last renewal wrote it.
pub(super) fn note(lease: &Lease) -> Option<Arc<str>> {
    let annotations = lease.metadata.annotations.as_ref()?;
    let (second, text) = annotations.get(NOTE)?.split_once(' ')?;
    let is_new = second.parse::<i64>() == Ok(renewed(lease)?);
    is_new.then(|| text.into())
}

/// Puts a text into a Lease that has the time of its renewal already; `None` removes what is there.
pub(super) fn put(lease: &mut Lease, text: Option<&str>) {
    let second = renewed(lease);
    let annotations = &mut lease.metadata.annotations;
    if let (Some(text), Some(second)) = (text, second) {
        let annotations = annotations.get_or_insert_default();
        annotations.insert(NOTE.to_owned(), format!("{second} {text}"));
    } else if let Some(annotations) = annotations {
        annotations.remove(NOTE);
    }
}

/// The second of the last renewal: an API server keeps less of a time than a clock tells.
fn renewed(lease: &Lease) -> Option<i64> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(renewed.0.as_second())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    fn lease(second: i64) -> Lease {
        let spec = LeaseSpec {
            renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
            ..LeaseSpec::default()
        };
        Lease {
            spec: Some(spec),
            ..Lease::default()
        }
    }

    #[test]
    fn a_text_is_read_until_a_renewal_that_did_not_write_it() {
        let mut found = lease(7);
        assert_eq!(note(&found), None);
        put(&mut found, Some("two words"));
        assert_eq!(note(&found).as_deref(), Some("two words"));
        let renewed = Lease {
            metadata: found.metadata.clone(),
            ..lease(9)
        };
        assert_eq!(note(&renewed), None);
        put(&mut found, None);
        assert!(found.metadata.annotations.unwrap().is_empty());
    }

    #[test]
    fn an_urgent_text_is_pending_until_it_is_written() {
        let board = Board::default();
        board.tell("a", false);
        assert!(!board.is_pending());
        board.tell("b", true);
        let (text, urgent) = board.told();
        board.tell("c", true);
        assert_eq!(text.as_deref(), Some("b"));
        board.wrote(urgent);
        assert!(board.is_pending());
        // Another one has led since.
        board.took_over(Some("d".into()));
        assert!(!board.is_pending());
        assert_eq!(board.told().0, None);
        assert_eq!(board.take().as_deref(), Some("d"));
        assert_eq!(board.take(), None);
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Questions to the controller whether its sources went back.
//!
//! An agent may have a table of later source versions than the relay's, from before the restore of
//! an API server. Only the sources can prove that, and only the controller can ask them.

use std::time::Duration;

use portolan_proto::v1;
use portolan_tablelog::SourceDoubts;
use tokio::time::{Instant, sleep_until};

/// The shortest time between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// The relay's doubts. At most one question is with the controller: it may answer two with one
/// answer, which proves nothing to an agent that came after the first.
#[derive(Debug)]
pub(crate) struct Doubts {
    /// `true` if a question is to be sent, after the answer to the last one.
    is_due: bool,
    /// When the unanswered question was sent.
    asked: Option<Instant>,
    /// When the next doubt is looked for.
    next: Instant,
}

impl Doubts {
    pub(crate) fn new() -> Self {
        Self {
            is_due: false,
            asked: None,
            next: Instant::now(),
        }
    }

    /// Waits for a doubt, and has a question sent. May be dropped while it waits.
    pub(crate) async fn doubted(&mut self, source: &SourceDoubts) {
        sleep_until(self.next).await;
        source.doubted().await;
        self.next = Instant::now() + PAUSE;
        self.is_due = true;
    }

    /// A stream is open. The question of the last one will not be answered on it.
    pub(crate) fn connected(&mut self) {
        self.is_due |= self.asked.take().is_some();
    }

    /// Returns `true` if there is a question to send.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due && self.asked.is_none()
    }

    /// Takes the question to send.
    pub(crate) fn take_question(&mut self) -> Option<v1::AskVersions> {
        self.is_due().then(|| {
            self.is_due = false;
            self.asked = Some(Instant::now());
            v1::AskVersions {}
        })
    }

    /// Takes the controller's answer. An answer without a question is ignored.
    pub(crate) fn answered(&mut self, source: &SourceDoubts, versions: v1::Versions) {
        if let Some(asked) = self.asked.take() {
            source.stated(asked, versions.newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_tablelog::{Feed, Publisher, Retention};
    use tokio::time::advance;

    use super::*;

    fn source() -> (SourceDoubts, Arc<Feed>) {
        let (publisher, tables) = Publisher::new(Retention::default());
        let cluster = "".into();
        (publisher.source_doubts(&cluster), tables.feed(&cluster))
    }

    fn answer() -> v1::Versions {
        v1::Versions { newest: vec![5] }
    }

    /// An agent comes and doubts. Returns when it came.
    async fn doubt(doubts: &mut Doubts, source: &SourceDoubts, feed: &Feed) -> Instant {
        advance(PAUSE).await;
        let since = Instant::now();
        feed.doubt_source();
        doubts.doubted(source).await;
        since
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_that_comes_before_an_answer_has_a_question_of_its_own() {
        let (source, feed) = source();
        let mut doubts = Doubts::new();
        doubt(&mut doubts, &source, &feed).await;
        assert!(doubts.take_question().is_some());
        let second = doubt(&mut doubts, &source, &feed).await;
        assert!(!doubts.is_due() && doubts.take_question().is_none());
        doubts.answered(&source, answer());
        assert_eq!(feed.stated_versions(second), None);
        assert!(doubts.is_due() && doubts.take_question().is_some());
        doubts.answered(&source, answer());
        assert_eq!(feed.stated_versions(second), Some(vec![5]));
        assert!(!doubts.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_is_sent_again_on_the_next_stream() {
        let (source, feed) = source();
        let mut doubts = Doubts::new();
        let since = doubt(&mut doubts, &source, &feed).await;
        assert!(doubts.take_question().is_some());
        doubts.connected();
        doubts.answered(&source, answer());
        assert_eq!(feed.stated_versions(since), None);
        assert!(doubts.take_question().is_some());
        doubts.answered(&source, answer());
        assert_eq!(feed.stated_versions(since), Some(vec![5]));
        doubts.connected();
        assert!(!doubts.is_due());
    }
}

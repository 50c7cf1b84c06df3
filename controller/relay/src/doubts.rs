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

/// The relay's doubts, at most one of them with the controller.
#[derive(Debug)]
pub(crate) struct Doubts {
    /// Whether a question is to be sent.
    is_due: bool,
    /// When the unanswered question was sent first.
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
        self.is_due |= self.asked.is_some();
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Takes the question to send.
    pub(crate) fn take_question(&mut self) -> Option<v1::AskVersions> {
        std::mem::take(&mut self.is_due).then(|| {
            self.asked.get_or_insert_with(Instant::now);
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

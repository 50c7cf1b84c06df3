// SPDX-License-Identifier: Apache-2.0

//! Questions to the catalog.

use portolan_select::{Explanation, Inquiry, NoAnswer, Pipeline};
use tokio::sync::oneshot;

/// The answer; `None` before the source has synced.
pub(crate) type Answer = Option<Result<Explanation, NoAnswer>>;

/// A question, and the channel of its answer.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) inquiry: Inquiry,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Question {
    /// Answers the question.
    pub(super) fn put_to(self, pipeline: Option<&Pipeline>) {
        let answer = pipeline.map(|pipeline| pipeline.explain(&self.inquiry));
        // The client may be gone.
        let _ = self.answer.send(answer);
    }
}

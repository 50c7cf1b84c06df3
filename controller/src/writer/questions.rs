//! Questions that only the catalog can answer.

use portolan_select::{Explanation, Inquiry, NoAnswer, Pipeline};
use tokio::sync::oneshot;

/// What the catalog says; `None` before the source has synced.
pub(crate) type Answer = Option<Result<Explanation, NoAnswer>>;

/// One question, and where the answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) inquiry: Inquiry,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Question {
    /// Answers it.
    pub(super) fn put_to(self, pipeline: Option<&Pipeline>) {
        let answer = pipeline.map(|pipeline| pipeline.explain(&self.inquiry));
        // Who asked may have gone.
        let _ = self.answer.send(answer);
    }
}

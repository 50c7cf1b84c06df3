// SPDX-License-Identifier: Apache-2.0

//! Questions to the catalog, and commands of operators.

use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_policy::{Drain, Objects};
use portolan_select::{
    Explanation, Inquiry, NoAnswer, Pipeline, PlannedImport, ShownExport, ShownImport,
};
use tokio::sync::oneshot;

use super::Writer;
use super::federation::DrainError;

/// The answer; `None` before the source has synced.
pub(crate) type Answer = Option<Result<Explanation, NoAnswer>>;

/// A question, and the channel of its answer. The client may be gone by then.
#[derive(Debug)]
pub(crate) enum Question {
    /// Where connections to an address go.
    Address {
        inquiry: Inquiry,
        answer: oneshot::Sender<Answer>,
    },
    /// An import of a cluster; the answer is `None` for no member.
    Import {
        cluster: Arc<str>,
        name: ImportName,
        answer: oneshot::Sender<Option<ShownImport>>,
    },
    /// An export of a cluster; the answer is `None` for no member.
    Export {
        cluster: Arc<str>,
        name: ImportName,
        answer: oneshot::Sender<Option<ShownExport>>,
    },
    /// Changes that another policy would make.
    Plan {
        objects: Box<Objects>,
        answer: oneshot::Sender<Vec<PlannedImport>>,
    },
    /// The drain of a cluster, or its end.
    Drain {
        cluster: Arc<str>,
        drain: Option<Drain>,
        answer: oneshot::Sender<Result<(), DrainError>>,
    },
}

impl Question {
    /// Answers the question.
    pub(super) fn put_to(self, writer: &mut Writer, pipeline: &mut Pipeline) {
        match self {
            Self::Address { inquiry, answer } => {
                let is_synced = writer.known.synced.contains(&inquiry.node.cluster);
                let _ = answer.send(is_synced.then(|| pipeline.explain(&inquiry)));
            }
            Self::Import {
                cluster,
                name,
                answer,
            } => _ = answer.send(pipeline.show_import(&cluster, &name)),
            Self::Export {
                cluster,
                name,
                answer,
            } => _ = answer.send(pipeline.show_export(&cluster, &name)),
            Self::Plan { objects, answer } => {
                let _ = answer.send(pipeline.plan_policies(*objects));
            }
            Self::Drain {
                cluster,
                drain,
                answer,
            } => {
                let drained = writer.federated.drain(&cluster, drain);
                writer.federated.tick(pipeline, &writer.known.synced);
                let _ = answer.send(drained);
            }
        }
    }
}

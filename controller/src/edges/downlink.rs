// SPDX-License-Identifier: Apache-2.0

//! Messages of the centre to the edge of a cluster: writes there, and plans of imports.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use portolan_edge::work::{EdgeWork, WorkOutbox};
use portolan_proto::v1;
use portolan_source::edge::{Answered, BeginSending, EdgeStream, Sending};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tonic::Status;
use v1::centre_message::Message;

use super::EdgePlans;
use super::plans::PlanFeed;
use crate::mcs::{Leading, Work, Works};

/// The shortest time between two changes of work and plans: what changes meanwhile is in the next one, each object once.
const PACE: Duration = Duration::from_millis(50);
/// About the size of a message with work, in bytes.
const PART_BYTES: usize = 256 * 1024;

/// Sends the work of a cluster to the edge whose stream counts, while this replica leads.
pub(crate) fn send_work(cluster: &Arc<str>, works: Works, leading: Leading) -> BeginSending {
    let cluster = Arc::clone(cluster);
    Box::new(move |stream: &EdgeStream| {
        if !stream.writes {
            // Nobody would do it.
            works.leave(&cluster);
            return None;
        }
        let downlink = WorkDownlink {
            cluster: Arc::clone(&cluster),
            work: works.join(&cluster),
            leading: leading.clone(),
            sender: stream.work.clone(),
        };
        // Ends with the stream, whose end others tell.
        Some(Box::pin(async { _ = downlink.run().await }) as Sending)
    })
}

/// Sends the plans of a cluster to the edges that serve its imports.
pub(crate) fn send_plans(cluster: &Arc<str>, plans: EdgePlans, leading: Leading) -> BeginSending {
    let cluster = Arc::clone(cluster);
    Box::new(move |stream: &EdgeStream| {
        let hashes = stream.plans.clone()?;
        let downlink = PlanDownlink {
            plans: plans.join(&cluster, hashes),
            leading: leading.clone(),
            sender: stream.work.clone(),
        };
        Some(Box::pin(async { _ = downlink.run().await }) as Sending)
    })
}

/// The stream has ended, or another one has taken its place.
struct Gone;

async fn say(sender: &mpsc::Sender<Answered>, message: Message) -> Result<(), Gone> {
    let message = Some(message);
    let sent = sender.send(Ok(v1::CentreMessage { message })).await;
    sent.map_err(|_| Gone)
}

/// Work on its way over one stream.
struct WorkDownlink {
    cluster: Arc<str>,
    work: watch::Receiver<Work>,
    leading: Leading,
    sender: mpsc::Sender<Answered>,
}

impl WorkDownlink {
    async fn run(mut self) -> Result<Infallible, Gone> {
        let mut outbox = WorkOutbox::default();
        loop {
            let work = self.work.borrow_and_update().clone();
            let work = if self.leading.is_leading() {
                // An edge is told no slices that stay: it would delete them.
                let spares = !work.spared.imports.is_empty();
                EdgeWork {
                    leading: true,
                    writes: work.writes,
                    slices: work.slices.filter(|_| !spares),
                }
            } else {
                EdgeWork::default()
            };
            if let Some(change) = outbox.take(&work) {
                if let Some(what) = &change.left_out {
                    tracing::warn!(cluster = %self.cluster, %what, "not sent to the edge controller");
                }
                let (parts, commit) = change.into_parts(PART_BYTES);
                for part in parts {
                    say(&self.sender, Message::Work(part)).await?;
                }
                say(&self.sender, Message::WorkCommit(commit)).await?;
                sleep(PACE).await;
            }
            tokio::select! {
                changed = self.work.changed() => changed.map_err(|_| Gone)?,
                () = self.leading.changed() => {}
            }
        }
    }
}

/// Plans on their way over one stream.
struct PlanDownlink {
    plans: PlanFeed,
    leading: Leading,
    sender: mpsc::Sender<Answered>,
}

impl PlanDownlink {
    async fn run(mut self) -> Result<Infallible, Gone> {
        loop {
            let Ok(transition) = self.plans.take(self.leading.is_leading()) else {
                let why = "hello.plan_hashes: no power of two of buckets";
                let refused = Err(Status::invalid_argument(why));
                self.sender.send(refused).await.map_err(|_| Gone)?;
                return Err(Gone);
            };
            if let Some(transition) = transition {
                let (parts, commit) = transition.into_parts(PART_BYTES);
                for part in parts {
                    say(&self.sender, Message::Plans(part)).await?;
                }
                say(&self.sender, Message::PlanCommit(commit)).await?;
                sleep(PACE).await;
            }
            tokio::select! {
                () = self.plans.changed() => {}
                () = self.leading.changed() => {}
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Edges of all clusters, as the centre has them.

use portolan_edge::StreamId;
use portolan_edge::plans::{PlanOutbox, PlanParts};
use portolan_select::{Pipeline, PlanBook};

use crate::world::{World, name_of};

/// The plans of each cluster, with a stream to its edge.
pub(crate) struct Edges {
    edges: Vec<(PlanBook, PlanOutbox, StreamId)>,
    parts: PlanParts,
}

impl Edges {
    pub(crate) fn new(world: World, pipeline: &mut Pipeline) -> Self {
        pipeline.follow_plans();
        let empty = [0; 8];
        let edge = |cluster| {
            let mut outbox = PlanOutbox::default();
            let Ok(stream) = outbox.begin(&empty) else {
                unreachable!("hashes of one bucket")
            };
            (PlanBook::new(name_of(cluster)), outbox, stream)
        };
        let mut edges = Self {
            edges: (0..world.clusters).map(edge).collect(),
            parts: PlanParts::default(),
        };
        edges.tell(pipeline);
        edges
    }

    /// Brings all edges up to date, and returns the number of plans that they are sent, with their bytes.
    pub(crate) fn tell(&mut self, pipeline: &mut Pipeline) -> (usize, usize) {
        let mut replanned = pipeline.take_replanned();
        let (mut plans, mut bytes) = (0, 0);
        for (book, outbox, stream) in &mut self.edges {
            let changes = pipeline.plan_changes(book, &mut replanned);
            let refused = outbox.apply(&changes, &mut self.parts);
            assert!(refused.is_empty(), "{refused:?}");
            let sent = outbox.take(*stream, true).map(|sent| sent.put);
            for plan in sent.into_iter().flatten() {
                plans += 1;
                bytes += plan.len();
            }
        }
        (plans, bytes)
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The way of one packet: by the table in force, and beside it by the kernel, which is only read.
//!
//! The running agent answers `GET /debug/trace` for `portolanctl trace`. The desired state is computed
//! anew for each question, and the kernel is read by sockets of its own, so that nothing that the reconcile loop
//! remembers has a part in it.

mod kernel;
mod question;
mod serve;

use std::sync::Arc;

use portolan_dataplane::{DataplaneError, KernelConfig};
use portolan_model::NodeTable;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::trace::{Difference, Outcome, Packet, Trace, Way};
use portolan_plan::trace::{reason, record_in_words, record_of};
use portolan_plan::{Config, NodeFacts};
use tokio::sync::Mutex;

use crate::status::Status;
use kernel::add_counters;
use question::{Question, QuestionError};

/// Most readings for one answer.
const ATTEMPTS: usize = 3;

/// Answers questions for the way of a packet, one at a time: each reads the whole kernel.
#[derive(Debug, Clone)]
pub(crate) struct Tracer {
    node: String,
    status: Status,
    plane: Plane,
    turn: Arc<Mutex<()>>,
}

/// A dataplane in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaneKind {
    Ipvs,
    Nftables,
}

impl PlaneKind {
    /// Its name, as `--dataplane` has it.
    fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }
}

/// Kind and configuration of the dataplane by which the kernel is programmed and read.
#[derive(Debug, Clone)]
pub(crate) struct Plane {
    /// The dataplane.
    pub(crate) kind: PlaneKind,
    /// Configuration of the kernel's programming, at the start.
    pub(crate) config: Config,
    /// Configuration for opening the kernel.
    pub(crate) kernel: KernelConfig,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
enum TraceError {
    /// The question cannot be understood.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// There is no table to compare the kernel with.
    #[error("no table has been programmed yet")]
    NoTable,
    /// The kernel cannot be read.
    #[error("the kernel cannot be read: {0}")]
    Kernel(#[from] DataplaneError),
}

impl Tracer {
    /// A tracer of a node.
    pub(crate) fn new(node: String, status: Status, plane: Plane) -> Self {
        Self {
            node,
            status,
            plane,
            turn: Arc::default(),
        }
    }

    /// The dataplane with its present configuration: a director has another one as its file changes, and on standby.
    fn plane_now(&self) -> Plane {
        let mut plane = self.plane.clone();
        if let Some(config) = self.status.config() {
            plane.kernel.vip_binding = config.vip_binding;
            plane.config = config;
        }
        plane
    }

    async fn trace(&self, question: &Question) -> Result<Trace, TraceError> {
        let _turn = self.turn.lock().await;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (table, revision) = self.status.table_in_force().ok_or(TraceError::NoTable)?;
            let plane = self.plane_now();
            let (facts, reading) = plane.read(question.family()).await?;
            let packet = question.packet(&table, &facts, &plane.config.detect_local)?;
            let sides = plane.sides(&table, &facts, &reading, question.family());
            let ways = plane.ways(&table.node, &facts, &sides, &packet);
            let key = ways.key;
            let mut trace = Trace {
                node: self.node.clone(),
                revision,
                dataplane: plane.kind.name().to_owned(),
                ..answer(&table, &facts, packet, ways)
            };
            // The kernel may have got a newer table meanwhile, or a Director that was loaded again.
            let now = self.status.table_in_force().map(|(_, revision)| revision);
            let is_same = now == Some(revision) && self.plane_now().config == plane.config;
            if trace.differences.is_empty() || is_same || attempt == ATTEMPTS {
                if let Some(key) = key {
                    add_counters(&mut trace, key).await;
                }
                return Ok(trace);
            }
        }
    }
}

/// Both ways of a packet, with differences that are none of a step.
struct Ways {
    wanted: Way,
    found: Way,
    others: Vec<Difference>,
    notes: Vec<String>,
    /// The virtual server in the kernel that the packet reaches.
    key: Option<VirtualServerKey>,
}

/// The answer about a packet, without the node.
fn answer(table: &NodeTable, facts: &NodeFacts, packet: Packet, ways: Ways) -> Trace {
    let Ways {
        mut wanted,
        mut found,
        others,
        notes,
        key: _,
    } = ways;
    let mut differences = wanted.differences(&found);
    differences.extend(others);
    let holder = record_of(table, facts, &packet);
    for way in [&mut wanted, &mut found] {
        if let (Outcome::Forwarded { servers, .. }, Some((record, _))) = (&mut way.outcome, holder)
        {
            for server in servers {
                server.why = reason(table, record, server.address);
            }
        }
    }
    Trace {
        node: String::new(),
        revision: 0,
        dataplane: String::new(),
        packet,
        record: holder.map(|(record, frontend)| record_in_words(record, frontend)),
        wanted,
        found,
        differences,
        notes,
    }
}

#[cfg(test)]
mod tests;

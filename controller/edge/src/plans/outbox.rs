// SPDX-License-Identifier: Apache-2.0

//! The centre's side: the plans of one cluster, and which of them each stream lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use portolan_federate::plans::PlanChanges;
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;
use v1::plan_item::Plan as Message;

use super::parts::{Part, PlanParts};
use super::{MAX_BYTES, MAX_ENDPOINTS, MAX_PARTS, MAX_PLAN_BYTES, MAX_PLANS, PlanName, encode};
use crate::ledger::{BadHashes, Ledger, bucket_of};
use crate::outbox::StreamId;
use crate::split::Split;

/// A plan that is beyond a bound of the edge. The edge keeps its last version until it fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{plan}: {why}")]
pub struct PlanTooLarge {
    /// The id of the plan.
    pub plan: String,
    /// The bound.
    pub why: String,
}

/// A bound of an edge that a part of a plan would break.
#[derive(Debug, Clone, Copy)]
enum Excess {
    /// The bound of one plan, with its bytes.
    Plan(usize),
    /// The most of something that all plans have.
    All(usize, &'static str),
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(size) => write!(f, "{size} bytes, and an edge takes {MAX_PLAN_BYTES}"),
            Self::All(most, what) => write!(f, "an edge takes {most} {what}"),
        }
    }
}

/// The plans of one cluster.
#[derive(Debug, Default)]
pub struct PlanOutbox {
    ledger: Ledger<v1::PlanId>,
    /// Parts that are beyond a bound. Each is put as soon as it fits.
    refused: BTreeMap<Arc<v1::PlanId>, Part>,
    streams: BTreeMap<StreamId, Cursor>,
    next: u64,
    /// Whether the plans are all that there are. Nothing is sent before.
    is_complete: bool,
}

/// Plans that one stream has not been sent.
#[derive(Debug)]
struct Cursor {
    dirty: BTreeSet<Arc<v1::PlanId>>,
    /// Buckets that the next transition replaces; `None` if it is no listing.
    replaced: Option<BTreeSet<u32>>,
    number: u64,
    /// `leading` of the last commit; `false` before the first one.
    leading: bool,
}

/// Changes up to one commit.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanTransition {
    /// Encoded plans.
    pub put: Vec<Bytes>,
    /// Plans that are gone.
    pub delete: Vec<v1::PlanId>,
    /// Buckets that lose what is not put.
    pub replace_buckets: Vec<u32>,
    /// The end.
    pub commit: v1::CentrePlanCommit,
}

impl PlanOutbox {
    /// Takes in plans that differ; the first ones are all that there are. `known` has the parts of the plans of all
    /// clusters. Returns those of the plans that are beyond a bound. They are put by later changes that make room.
    pub fn apply(&mut self, changes: &PlanChanges, known: &mut PlanParts) -> Vec<PlanTooLarge> {
        let mut refused = BTreeMap::new();
        let mut put = |name: PlanName, parts: Option<Vec<Part>>| {
            self.replace(&name, parts.unwrap_or_default(), &mut refused);
        };
        let mut one =
            |name: &PlanName, plan: Option<Message>| plan.map(|plan| known.parts(name, vec![plan]));
        for (name, plan) in &changes.clusters {
            let name = PlanName::Cluster(name.clone());
            let parts = one(&name, plan.as_ref().map(encode::cluster));
            put(name, parts);
        }
        for (name, plan) in &changes.groups {
            let name = PlanName::Group(name.clone());
            let parts = one(&name, plan.as_ref().map(encode::group));
            put(name, parts);
        }
        for (name, plan) in &changes.imports {
            let name = PlanName::Import(name.clone());
            let parts = one(&name, plan.as_ref().map(encode::import));
            put(name, parts);
        }
        for (name, plan) in &changes.gateways {
            let name = PlanName::Gateway(name.clone());
            let parts = one(&name, plan.as_ref().map(encode::gateway));
            put(name, parts);
        }
        // The last ones, since a bound is met by the endpoints first.
        for (name, plan) in &changes.services {
            let parts = plan.as_ref().map(|plan| known.service(name, plan));
            put(PlanName::Service(name.clone()), parts);
        }
        self.is_complete = true;
        self.put_refused();
        refused.retain(|id, _| self.refused.contains_key(id));
        let refused = refused.into_iter();
        refused
            .map(|(id, excess)| too_large(&id, excess.to_string()))
            .collect()
    }

    /// Puts the parts of a plan in place of those that it had. Notes those that are beyond a bound.
    fn replace(
        &mut self,
        name: &PlanName,
        parts: Vec<Part>,
        refused: &mut BTreeMap<Arc<v1::PlanId>, Excess>,
    ) {
        let first = encode::id(name);
        let last = v1::PlanId {
            part: MAX_PARTS,
            ..first.clone()
        };
        let outdated = self.refused.range::<v1::PlanId, _>(&first..=&last);
        let outdated: Vec<_> = outdated.map(|(id, _)| Arc::clone(id)).collect();
        for id in outdated {
            self.refused.remove(&id);
        }
        let mut number = 0;
        for part in parts {
            number += 1;
            match self.excess(&part) {
                Some(excess) => {
                    refused.insert(Arc::clone(&part.id), excess);
                    self.refused.insert(Arc::clone(&part.id), part);
                }
                None => self.put(part),
            }
        }
        let next = v1::PlanId {
            part: number,
            ..first
        };
        // Not all numbers: a part that was refused is missing between others.
        for id in self.ledger.ids_between(&next, &last) {
            self.ledger.remove(&id);
            self.changed(&id);
        }
    }

    fn put(&mut self, part: Part) {
        let id = Arc::clone(&part.id);
        if self.ledger.put(part.id, part.entry) {
            self.changed(&id);
        }
    }

    /// Puts the refused parts that fit by now: others have gone since, or by the same changes.
    fn put_refused(&mut self) {
        for (id, part) in std::mem::take(&mut self.refused) {
            match self.excess(&part) {
                Some(_) => _ = self.refused.insert(id, part),
                None => self.put(part),
            }
        }
    }

    /// The bound of an edge that a plan would break, if it would: the edge ends the stream at such a commit.
    fn excess(&self, Part { id, entry }: &Part) -> Option<Excess> {
        let size = entry.bytes.len();
        if size > MAX_PLAN_BYTES {
            return Some(Excess::Plan(size));
        }
        let sums = self.ledger.sums_with([(&**id, Some(&**entry))].into_iter());
        let bounds = [
            (sums.objects, MAX_PLANS, "plans"),
            (sums.endpoints, MAX_ENDPOINTS, "endpoints of all plans"),
            (sums.bytes, MAX_BYTES, "bytes of all plans"),
        ];
        let broken = bounds.into_iter().find(|(count, most, _)| count > most);
        broken.map(|(_, most, what)| Excess::All(most, what))
    }

    fn changed(&mut self, id: &Arc<v1::PlanId>) {
        for cursor in self.streams.values_mut() {
            cursor.dirty.insert(Arc::clone(id));
        }
    }

    /// Begins a stream, which is to be ended: its first transition makes the edge, which has buckets of these hashes,
    /// equal.
    ///
    /// # Errors
    /// If these are no hashes of buckets.
    pub fn begin(&mut self, bucket_hashes: &[u8]) -> Result<StreamId, BadHashes> {
        let (count, differing) = self.ledger.differing(bucket_hashes)?;
        let plans = self.ledger.ids();
        let lacking = plans.filter(|id| differing.contains(&bucket_of(&***id, count)));
        let cursor = Cursor {
            dirty: lacking.cloned().collect(),
            replaced: Some(differing),
            number: 0,
            leading: false,
        };
        self.next += 1;
        let stream = StreamId::new(self.next);
        self.streams.insert(stream, cursor);
        Ok(stream)
    }

    /// Ends a stream.
    pub fn end(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Returns `true` if the plans are all that there are.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The next transition of a stream; `None` if it has been sent all and said the same, or before the plans are
    /// complete.
    pub fn take(&mut self, stream: StreamId, leading: bool) -> Option<PlanTransition> {
        if !self.is_complete {
            return None;
        }
        let cursor = self.streams.get_mut(&stream)?;
        let listing = cursor.replaced.take();
        let is_said = std::mem::replace(&mut cursor.leading, leading) == leading;
        if cursor.dirty.is_empty() && listing.is_none() && is_said {
            return None;
        }
        cursor.number += 1;
        let commit = v1::CentrePlanCommit {
            number: cursor.number,
            listing: listing.is_some(),
            leading,
            hash: self.ledger.total().to_bytes().into(),
        };
        let (mut put, mut delete) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut cursor.dirty) {
            match self.ledger.get(&id) {
                Some(entry) => put.push(entry.bytes.clone()),
                None => delete.push((*id).clone()),
            }
        }
        Some(PlanTransition {
            put,
            delete,
            replace_buckets: listing.into_iter().flatten().collect(),
            commit,
        })
    }
}

fn too_large(id: &v1::PlanId, why: String) -> PlanTooLarge {
    let (kind, name) = (id.kind(), &id.name);
    PlanTooLarge {
        plan: format!("{kind:?} {} {}/{name}", id.cluster, id.namespace),
        why,
    }
}

impl PlanTransition {
    /// The parts of the transition, each with about `bytes` bytes of plans, in order.
    pub fn into_parts(self, bytes: usize) -> (Vec<v1::CentrePlans>, v1::CentrePlanCommit) {
        let first = v1::CentrePlans {
            replace_buckets: self.replace_buckets,
            ..v1::CentrePlans::default()
        };
        let mut parts = Split::new(first, bytes);
        for plan in self.put {
            parts.add(plan.len(), |part| part.put.push(plan));
        }
        for id in self.delete {
            parts.add(id.encoded_len(), |part| part.delete.push(id));
        }
        (parts.finish(), self.commit)
    }
}

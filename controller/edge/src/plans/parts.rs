// SPDX-License-Identifier: Apache-2.0

//! Encoded parts of plans, which all outboxes share: most plans are the same for each cluster that imports a Service.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use portolan_federate::plans::{ExportName, ServicePlan};
use portolan_model::ContentHash;
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;
use v1::plan_item::Plan as Message;

use super::{PLAN_KEY, PlanName, decode, encode};
use crate::ledger::Entry;

/// The number of parts below which unused ones are not looked for.
const FEW: usize = 1_024;
/// The most Services whose parts are kept by their plans.
const RECENT: usize = 4_096;

/// A part of a plan.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) id: Arc<v1::PlanId>,
    pub(super) entry: Arc<Entry>,
}

/// Parts of plans that outboxes have. Equal ones are there once.
#[derive(Debug, Default)]
pub struct PlanParts {
    /// By the hashes of their contents, which have the ids.
    known: HashMap<ContentHash, Part>,
    /// Number of parts in use at the last look.
    used: usize,
    /// The parts of plans that were encoded last: the next cluster mostly has the same plan.
    recent: HashMap<ExportName, (Weak<ServicePlan>, Vec<Part>)>,
}

impl PlanParts {
    /// The parts of a Service.
    pub(super) fn service(&mut self, name: &ExportName, plan: &Arc<ServicePlan>) -> Vec<Part> {
        if let Some((of, parts)) = self.recent.get(name)
            && of.as_ptr() == Arc::as_ptr(plan)
            && of.strong_count() > 0
        {
            return parts.clone();
        }
        let parts = self.parts(&PlanName::Service(name.clone()), encode::service(plan));
        if self.recent.len() >= RECENT {
            self.recent.clear();
        }
        let known = (Arc::downgrade(plan), parts.clone());
        self.recent.insert(name.clone(), known);
        parts
    }

    /// The parts of a plan, which has these messages.
    pub(super) fn parts(&mut self, name: &PlanName, messages: Vec<Message>) -> Vec<Part> {
        let first = encode::id(name);
        let messages = messages.into_iter().zip(0..);
        let parts = messages.map(|(plan, part)| {
            let id = v1::PlanId {
                part,
                ..first.clone()
            };
            self.part(id, plan)
        });
        parts.collect()
    }

    fn part(&mut self, id: v1::PlanId, plan: Message) -> Part {
        let endpoints = decode::Item::endpoints(Some(&plan));
        let item = v1::PlanItem {
            id: Some(id.clone()),
            plan: Some(plan),
        };
        let bytes = Bytes::from(item.encode_to_vec());
        let entry = Entry::keyed(PLAN_KEY, bytes, endpoints);
        self.sweep();
        let known = self.known.entry(entry.hash).or_insert_with(|| Part {
            id: Arc::new(id),
            entry: Arc::new(entry),
        });
        known.clone()
    }

    /// Forgets parts that no outbox has, when they may be as many as the others: a part costs O(1).
    fn sweep(&mut self) {
        if self.known.len() < FEW.max(2 * self.used) {
            return;
        }
        self.recent.clear();
        let is_used = |_: &ContentHash, part: &mut Part| Arc::strong_count(&part.entry) > 1;
        self.known.retain(is_used);
        self.used = self.known.len();
    }

    /// Number of parts.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

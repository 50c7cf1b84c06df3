// SPDX-License-Identifier: Apache-2.0

//! The edge's side: the plans that it has, and what one stream brings. The plans before a commit are staged; the commit
//! takes them in, or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_federate::plans::{PlanChanges, ServicePlan};
use portolan_model::{SetHash, TableSize};
use portolan_proto::v1;
use prost::Message as _;
use prost::bytes::{Bytes, BytesMut};
use v1::centre_message::Message as Answer;

use super::decode::{Item, item, plan_name};
use super::{
    MAX_BYTES, MAX_ENDPOINTS, MAX_PARTS, MAX_PLAN_BYTES, MAX_PLANS, PLAN_KEY, PlanName, encode,
};
use crate::ledger::{Entry, Ledger};
use crate::wire::WireError;

/// The longest text about a plan, in bytes.
const MAX_NAMED: usize = 256;
/// About the size of a message in a file, in bytes.
const PART_BYTES: usize = 256 << 10;

/// Error that ends a stream to a replica of the centre.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A plan has no readable id, so that nobody knows which one it is.
    #[error("plans.put: {0}")]
    Item(String),
    /// There is too much of something.
    #[error("plans: more than {most} {what}")]
    TooMany {
        /// Things that are bounded, as the message names them.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// A bucket that there is not.
    #[error("plans.replace_buckets: {0} is out of range")]
    Bucket(u32),
    /// The plans are not those that the centre has.
    #[error("plan_commit.hash: not that of the plans")]
    Mismatch,
    /// A commit is missing, or the first one is no listing, or a later one is.
    #[error("plan_commit: number {0} is not the next one, or not of the kind that it must be")]
    Commit(u64),
}

/// A plan that is refused. Its last version stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{plan}: {error}")]
pub struct RefusedPlan {
    /// Its kind and name, as far as they are text.
    pub plan: String,
    /// Reason.
    pub error: WireError,
}

/// Saved plans that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// They are no messages of a stream, or not whole.
    #[error("not the plans of a stream, or not whole")]
    Broken,
    /// They break a rule.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The plans that an edge has.
#[derive(Debug, Clone, Default)]
pub struct Plans {
    ledger: Ledger<v1::PlanId>,
    /// Those that could be read, the last good version of each.
    items: BTreeMap<v1::PlanId, Arc<Item>>,
    /// The last good versions of those that are refused now, as they came. The ledger has the refused ones.
    good: BTreeMap<v1::PlanId, Entry>,
}

/// Plans that one stream brings.
#[derive(Debug)]
pub struct PlanInbox {
    plans: Plans,
    /// Number of buckets of this stream.
    buckets: u32,
    staged: BTreeMap<v1::PlanId, Option<Staged>>,
    replaced: BTreeSet<u32>,
    staged_bytes: usize,
    number: u64,
}

#[derive(Debug)]
struct Staged {
    entry: Entry,
    /// `None` if it is refused, or of an unknown kind.
    item: Option<Arc<Item>>,
}

impl Plans {
    /// The hashes of their buckets, for EdgeHello.
    #[must_use]
    pub fn bucket_hashes(&self) -> Vec<u8> {
        self.ledger.bucket_hashes(self.ledger.bucket_count())
    }

    /// Number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ledger.size().0
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of imports, and of endpoints of other clusters.
    #[must_use]
    pub fn size(&self) -> TableSize {
        let is_import = |item: &&Arc<Item>| matches!(***item, Item::Import(_));
        TableSize {
            records: self.items.values().filter(is_import).count(),
            endpoints: self.ledger.size().1,
        }
    }

    /// Returns the changes since former plans.
    #[must_use]
    pub fn since(&self, before: &Self) -> PlanChanges {
        let has_changed = |id: &&v1::PlanId| {
            let of = |plans: &Self| plans.items.get(*id).cloned();
            let (before, now) = (of(before), of(self));
            before != now
        };
        let ids = self.items.keys().chain(before.items.keys());
        self.changes(ids.filter(has_changed))
    }

    /// The plans with these ids as they are now.
    fn changes<'i>(&self, ids: impl Iterator<Item = &'i v1::PlanId>) -> PlanChanges {
        let names = ids.filter_map(|id| plan_name(id).ok().flatten());
        let names: BTreeSet<PlanName> = names.collect();
        let mut changes = PlanChanges::default();
        for name in names {
            let id = encode::id(&name);
            let item = self.items.get(&id).map(|item| &**item);
            match name {
                PlanName::Cluster(name) => {
                    let plan = match item {
                        Some(Item::Cluster(plan)) => Some(plan.clone()),
                        _ => None,
                    };
                    changes.clusters.insert(name, plan);
                }
                PlanName::Group(name) => {
                    let plan = match item {
                        Some(Item::Group(plan)) => Some(plan.clone()),
                        _ => None,
                    };
                    changes.groups.insert(name, plan);
                }
                PlanName::Import(name) => {
                    let plan = match item {
                        Some(Item::Import(plan)) => Some((**plan).clone()),
                        _ => None,
                    };
                    changes.imports.insert(name, plan);
                }
                PlanName::Service(name) => {
                    let plan = self.service(&id).map(Arc::new);
                    changes.services.insert(name, plan);
                }
                PlanName::Gateway(name) => {
                    let plan = match item {
                        Some(Item::Gateway(plan)) => Some(plan.clone()),
                        _ => None,
                    };
                    changes.gateways.insert(name, plan);
                }
            }
        }
        changes
    }

    /// Puts a plan in place of the one that it had, or deletes it.
    fn replace(&mut self, id: v1::PlanId, staged: Option<Staged>) {
        let Self {
            ledger,
            items,
            good,
        } = self;
        let Some(Staged { entry, item }) = staged else {
            ledger.remove(&id);
            items.remove(&id);
            good.remove(&id);
            return;
        };
        if let Some(item) = item {
            good.remove(&id);
            items.insert(id.clone(), item);
        } else if items.contains_key(&id)
            && let Some(last) = ledger.get(&id)
        {
            // Of several refused ones in a row, the version before the first.
            good.entry(id.clone()).or_insert_with(|| last.clone());
        }
        ledger.put(id, entry);
    }

    /// The parts of a Service together.
    fn service(&self, first: &v1::PlanId) -> Option<ServicePlan> {
        let last = v1::PlanId {
            part: MAX_PARTS,
            ..first.clone()
        };
        let parts = self.items.range(first..=&last);
        let parts = parts.filter_map(|(_, item)| match &**item {
            Item::Service(part) => Some(part),
            _ => None,
        });
        let mut whole: Option<ServicePlan> = None;
        for part in parts {
            let whole = whole.get_or_insert_with(|| ServicePlan {
                by_gateways: part.by_gateways,
                ..ServicePlan::default()
            });
            for (port, plan) in &part.ports {
                let place = whole.ports.entry(port.clone()).or_default();
                let endpoints = plan.endpoints.iter();
                let endpoints = endpoints.map(|(address, endpoint)| (*address, endpoint.clone()));
                place.endpoints.extend(endpoints);
                let gateways = plan.gateways.iter();
                place
                    .gateways
                    .extend(gateways.map(|(address, zone)| (*address, zone.clone())));
            }
        }
        whole
    }

    /// The plans as messages of a stream, for a file. Where plans are refused, a first transition has their last good
    /// versions, and a second one what is refused.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        let good = self.good.iter().map(|(id, entry)| (id, Some(entry)));
        let sums = self.ledger.sums_with(good);
        let total = self.ledger.total();
        // A file beyond a bound could not be read.
        let fits = sums.bytes <= MAX_BYTES && sums.endpoints <= MAX_ENDPOINTS;
        if self.good.is_empty() || !fits {
            let all = self.ledger.iter().map(|(_, entry)| entry);
            save(&mut bytes, all, 1, total);
        } else {
            let all = self.ledger.iter();
            let all = all.map(|(id, entry)| self.good.get(id).unwrap_or(entry));
            save(&mut bytes, all, 1, sums.hash);
            let refused = self.good.keys().filter_map(|id| self.ledger.get(id));
            save(&mut bytes, refused, 2, total);
        }
        bytes.into()
    }

    /// Plans of a file, and those in it that are refused.
    ///
    /// # Errors
    /// If the file is not whole, or has too much.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<(Self, Vec<RefusedPlan>), SavedError> {
        let mut bytes = Bytes::from(bytes);
        let (mut inbox, mut refused) = (PlanInbox::default(), Vec::new());
        while !bytes.is_empty() {
            let message = v1::CentreMessage::decode_length_delimited(&mut bytes);
            match message.ok().and_then(|message| message.message) {
                Some(Answer::Plans(part)) => refused.extend(inbox.stage(part)?),
                Some(Answer::PlanCommit(commit)) => _ = inbox.commit(&commit)?,
                _ => return Err(SavedError::Broken),
            }
        }
        match inbox.number > 0 && inbox.staged.is_empty() {
            true => Ok((inbox.plans, refused)),
            false => Err(SavedError::Broken),
        }
    }
}

impl Default for PlanInbox {
    fn default() -> Self {
        Self::new(Plans::default())
    }
}

impl PlanInbox {
    /// Begins a stream with the plans that its EdgeHello told.
    #[must_use]
    pub fn new(plans: Plans) -> Self {
        Self {
            buckets: plans.ledger.bucket_count(),
            plans,
            staged: BTreeMap::new(),
            replaced: BTreeSet::new(),
            staged_bytes: 0,
            number: 0,
        }
    }

    /// The plans as of the last commit.
    #[must_use]
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The plans as of the last commit.
    #[must_use]
    pub fn into_plans(self) -> Plans {
        self.plans
    }

    /// Stages a part of a transition. Returns the plans that are refused.
    ///
    /// # Errors
    /// If a plan has no id, or there is too much. The stream is to be ended; nothing has changed.
    pub fn stage(&mut self, part: v1::CentrePlans) -> Result<Vec<RefusedPlan>, PlanError> {
        let mut refused = Vec::new();
        for bytes in part.put {
            self.staged_bytes += bytes.len();
            bound("bytes of a plan", bytes.len(), MAX_PLAN_BYTES)?;
            let message = v1::PlanItem::decode(bytes.clone());
            let message = message.map_err(|error| PlanError::Item(error.to_string()))?;
            let missing = || PlanError::Item("id: missing".to_owned());
            let id = message.id.ok_or_else(missing)?;
            let name = plan_name(&id).map_err(|error| PlanError::Item(error.to_string()))?;
            let plan = message.plan.as_ref();
            let item = name.map(|name| item(&name, plan)).transpose();
            let item = item.unwrap_or_else(|error| {
                let plan = named(&id);
                refused.push(RefusedPlan { plan, error });
                None
            });
            let staged = Staged {
                entry: Entry::keyed(PLAN_KEY, bytes, Item::endpoints(plan)),
                item: item.map(Arc::new),
            };
            self.staged.insert(id, Some(staged));
        }
        for id in part.delete {
            plan_name(&id).map_err(|error| PlanError::Item(error.to_string()))?;
            self.staged_bytes += id.encoded_len();
            self.staged.insert(id, None);
        }
        for bucket in part.replace_buckets {
            if bucket >= self.buckets {
                return Err(PlanError::Bucket(bucket));
            }
            self.replaced.insert(bucket);
        }
        bound("plans", self.staged.len(), MAX_PLANS)?;
        bound("bytes before a commit", self.staged_bytes, MAX_BYTES)?;
        Ok(refused)
    }

    /// Takes in what is staged. Returns the plans that may differ now.
    ///
    /// # Errors
    /// If that is not what the centre has, or too much. The stream is to be ended; nothing has changed.
    pub fn commit(&mut self, commit: &v1::CentrePlanCommit) -> Result<PlanChanges, PlanError> {
        let is_first = self.number == 0;
        if commit.number != self.number + 1 || commit.listing != is_first {
            return Err(PlanError::Commit(commit.number));
        }
        self.number = commit.number;
        self.staged_bytes = 0;
        let replaced = std::mem::take(&mut self.replaced);
        let mut staged = std::mem::take(&mut self.staged);
        let ledger = &self.plans.ledger;
        for id in ledger.in_buckets(&replaced, self.buckets) {
            staged.entry(id).or_insert(None);
        }
        let changes = staged.iter();
        let changes = changes.map(|(id, staged)| (id, staged.as_ref().map(|one| &one.entry)));
        let sums = ledger.sums_with(changes);
        if sums.hash.to_bytes().as_slice() != commit.hash {
            return Err(PlanError::Mismatch);
        }
        bound("plans", sums.objects, MAX_PLANS)?;
        bound("endpoints", sums.endpoints, MAX_ENDPOINTS)?;
        bound("bytes of all plans", sums.bytes, MAX_BYTES)?;
        let changed: Vec<v1::PlanId> = staged.keys().cloned().collect();
        for (id, staged) in staged {
            self.plans.replace(id, staged);
        }
        Ok(self.plans.changes(changed.iter()))
    }
}

/// Appends a transition with these plans to a file: a listing if it is the first one.
fn save<'e>(
    bytes: &mut BytesMut,
    entries: impl Iterator<Item = &'e Entry>,
    number: u64,
    hash: SetHash,
) {
    let mut say = |message| {
        let message = v1::CentreMessage {
            message: Some(message),
        };
        let length = message.encoded_len();
        bytes.reserve(length + 10);
        // A buffer that grows takes all.
        let _ = message.encode_length_delimited(bytes);
    };
    let (mut part, mut size) = (v1::CentrePlans::default(), 0);
    for entry in entries {
        part.put.push(entry.bytes.clone());
        size += entry.bytes.len();
        if size >= PART_BYTES {
            size = 0;
            say(Answer::Plans(std::mem::take(&mut part)));
        }
    }
    say(Answer::Plans(part));
    say(Answer::PlanCommit(v1::CentrePlanCommit {
        number,
        listing: number == 1,
        leading: true,
        hash: hash.to_bytes().into(),
    }));
}

fn named(id: &v1::PlanId) -> String {
    let kind = id.kind().as_str_name();
    let parts = [&id.cluster, &id.namespace, &id.name];
    let parts: Vec<&str> = parts.map(String::as_str).into_iter().collect();
    let mut text = format!("{kind} {}", parts.join("/"));
    text.truncate(text.floor_char_boundary(MAX_NAMED));
    text
}

fn bound(what: &'static str, count: usize, most: usize) -> Result<(), PlanError> {
    match count > most {
        true => Err(PlanError::TooMany { what, most }),
        false => Ok(()),
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The health of records, from the verdicts of checks and the commands of operators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use portolan_health::{Administrative, BackendStatus, Presence, State, Verdict, Verdicts};
use portolan_model::{ByRecord, Record, RecordHealth, RecordKey, Standing};
use portolan_probe::Overrides;

use super::Health;

/// The health of all records of a table.
pub(crate) fn health_of(
    records: &ByRecord<Record>,
    verdicts: Health,
    commanded: Overrides<RecordKey>,
) -> ByRecord<RecordHealth> {
    HealthOfRecords::default().update(records, verdicts, commanded)
}

/// The health of all records of the last table, with what it was computed from.
///
/// Only the health of records is computed whose inputs changed. A health that is equal to the one before is the same
/// allocation.
#[derive(Debug, Default)]
pub(super) struct HealthOfRecords {
    records: ByRecord<Record>,
    verdicts: Health,
    commanded: Overrides<RecordKey>,
    health: ByRecord<RecordHealth>,
}

impl HealthOfRecords {
    /// Computes the health of records that have verdicts or commands.
    pub(super) fn update(
        &mut self,
        records: &ByRecord<Record>,
        verdicts: Health,
        commanded: Overrides<RecordKey>,
    ) -> ByRecord<RecordHealth> {
        let mut changed = BTreeSet::new();
        changed.extend(changed_keys(&self.records, records));
        changed.extend(changed_keys(&self.verdicts, &verdicts));
        let of_commands = changed_keys(&self.commanded, &commanded);
        changed.extend(of_commands.map(|(key, _)| key));
        let before = std::mem::take(&mut self.health);
        self.health = before.clone();
        for key in changed {
            match known_health(&key, records, &verdicts, &commanded) {
                None => drop(self.health.remove(&key)),
                Some(health) if before.get(&key).is_some_and(|old| **old == health) => {}
                Some(health) => drop(self.health.insert(key, Arc::new(health))),
            }
        }
        self.records = records.clone();
        (self.verdicts, self.commanded) = (verdicts, commanded);
        self.health.clone()
    }
}

/// The keys whose values differ.
fn changed_keys<'m, K: Ord + Clone, V: PartialEq>(
    before: &'m OrdMap<K, V>,
    after: &'m OrdMap<K, V>,
) -> impl Iterator<Item = K> + 'm {
    before.diff(after).map(|change| match change {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) => key.clone(),
        DiffItem::Update { new, .. } => new.0.clone(),
    })
}

/// The health of one record; `None` if it has neither verdicts nor commands, or is not in the table.
fn known_health(
    key: &RecordKey,
    records: &ByRecord<Record>,
    verdicts: &Health,
    commanded: &Overrides<RecordKey>,
) -> Option<RecordHealth> {
    if !records.contains_key(key) {
        return None;
    }
    let verdicts = verdicts.get(key).map(|each| &**each);
    let is_known = verdicts.is_some() || commands_of(key, commanded).next().is_some();
    is_known.then(|| health_of_record(key, verdicts, commanded))
}

/// The health of one record.
pub(super) fn health_of_record(
    key: &RecordKey,
    verdicts: Option<&Verdicts>,
    commanded: &Overrides<RecordKey>,
) -> RecordHealth {
    health(verdicts, &commands_of(key, commanded).collect())
}

/// The commands about the backends of a record.
fn commands_of(
    key: &RecordKey,
    commanded: &Overrides<RecordKey>,
) -> impl Iterator<Item = (SocketAddr, Administrative)> {
    let first = (key.clone(), SocketAddr::from(([0, 0, 0, 0], 0)));
    let own = commanded.range(first..);
    let own = own.take_while(move |((each, _), _)| each == key);
    own.map(|((_, address), state)| (*address, *state))
}

/// Health of a record. A backend that no check has judged yet is left out: it keeps the weight that it has in
/// the kernel. A command to drain or disable one needs no check and no verdict.
pub(super) fn health(
    verdicts: Option<&Verdicts>,
    commanded: &BTreeMap<SocketAddr, Administrative>,
) -> RecordHealth {
    let judged = verdicts.iter().flat_map(|verdicts| {
        let states = verdicts.states.iter();
        let states = states.filter(|(address, status)| is_judged(status, commanded.get(*address)));
        states.filter_map(|(address, status)| {
            let verdict = verdicts.backends.get(address)?;
            Some((*address, standing(*verdict, status.administrative)))
        })
    });
    let mut backends: BTreeMap<_, _> = judged.collect();
    backends.extend(commanded.iter().filter_map(|(address, state)| match state {
        Administrative::Enabled => None,
        Administrative::Drain => Some((*address, Standing::Weight(0))),
        Administrative::Disabled => Some((*address, Standing::Disabled)),
    }));
    let known = verdicts.filter(|verdicts| knows_quorum(verdicts));
    RecordHealth {
        is_sorry: known.map(|verdicts| verdicts.sorry),
        lacks_quorum: known.is_some_and(|verdicts| !verdicts.quorum),
        backends,
        commanded: commanded.keys().copied().collect(),
    }
}

/// Returns the standing of a real server by a verdict. One that is drained stays until it is disabled, or no more in
/// the table.
fn standing(verdict: Verdict, administrative: Administrative) -> Standing {
    match (verdict.presence, administrative) {
        (Presence::Present, _) | (_, Administrative::Drain) => {
            Standing::Weight(verdict.weight.into())
        }
        (Presence::Leaving, _) => Standing::Disabled,
        (Presence::Absent, _) => Standing::Failed,
    }
}

/// True if a verdict is to be followed. One from before a command is not.
fn is_judged(status: &BackendStatus, commanded: Option<&Administrative>) -> bool {
    let is_probed = status.state != State::Probing;
    let is_out = status.administrative != Administrative::Enabled;
    (is_probed || is_out) && status.commanded.as_ref() == commanded
}

/// Quorum of a record; `None` while nothing is known about it.
pub(crate) fn quorum(verdicts: &Verdicts) -> Option<bool> {
    knows_quorum(verdicts).then_some(verdicts.quorum)
}

/// True if the quorum is known: it is not as long as no backend that may serve has a result, or those without one
/// decide.
fn knows_quorum(verdicts: &Verdicts) -> bool {
    if verdicts.is_quorum_open {
        return false;
    }
    let states = verdicts.states.values();
    let may_serve = |status: &&BackendStatus| status.administrative == Administrative::Enabled;
    let mut may_serve = states.filter(may_serve).peekable();
    may_serve.peek().is_none() || may_serve.any(|status| status.state != State::Probing)
}

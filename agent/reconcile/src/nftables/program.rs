// SPDX-License-Identifier: Apache-2.0

//! Transactions that make the table of a family the desired one.

use std::collections::BTreeMap;
use std::time::Instant;

use portolan_dataplane::DataplaneError;
use portolan_model::{Family, NodeTable, RecordKey};
use portolan_netlink::nftables::{CommitError, Request, TableContent};
use portolan_nftables::{
    LeftOut, Surplus, TABLE, Touched, Ways, advance, changes_udp, desire, plan, plan_touched,
    renew_sources, renews_sources, strands_clients, transactions, unmark,
};

use super::{NftablesReconciler, Observed};
use crate::{FormerIpvs, Outcome};

/// Transactions that lost against others, before one is made whatever others do.
const ATTEMPTS: usize = 3;

/// The records that were left out, with the reasons, or the reason for which nothing was programmed.
pub(super) type Programmed = Result<BTreeMap<RecordKey, String>, CommitError>;

impl NftablesReconciler {
    /// Programs one family. The outer error means that the kernel cannot be read.
    pub(super) fn family(
        &mut self,
        family: Family,
        table: &NodeTable,
        surplus: Surplus,
        mut touched: Option<&Touched>,
        outcome: &mut Outcome,
    ) -> Result<Programmed, DataplaneError> {
        let mut is_refused = false;
        for attempt in 0..=ATTEMPTS {
            let (mut observed, is_fresh) = match self.observed.take() {
                Some(observed) => (observed, false),
                None => {
                    touched = None;
                    (self.read()?, true)
                }
            };
            let there = observed.tables.entry(family).or_default();
            let began = Instant::now();
            let change = touched.zip(there.as_ref()).and_then(|(touched, there)| {
                plan_touched(family, &self.config, &self.ways, touched, there)
            });
            let is_whole = change.is_none();
            // In a new set the permitted sources of a record that is left out would be missing.
            let renews = surplus == Surplus::Delete
                && !is_refused
                && self.failed.is_empty()
                && attempt < ATTEMPTS;
            let requests =
                change.unwrap_or_else(|| self.plan(family, table, there.as_ref(), surplus, renews));
            outcome.planned_in += began.elapsed();
            if attempt == 0 {
                outcome.repaired += self.repaired(family, table, surplus, &requests, renews);
            }
            if requests.is_empty() {
                self.programmed(family, observed, is_whole);
                return Ok(Ok(BTreeMap::new()));
            }
            // Other programs may change their tables before each attempt. The last one names no generation, so that the
            // kernel takes it all the same, and relies on our table being as it was read.
            observed.generation = observed.generation.filter(|_| attempt < ATTEMPTS);
            // After an older reading, a refusal may be due to changes since then, and a new set has nothing of a record
            // that is left out. No record is left out then: the kernel is read, and the change planned, again.
            let is_new_set = renews && renews_sources(&requests);
            let leaves_out = is_fresh && !is_new_set;
            let table = leaves_out.then_some(table);
            match self.commit(family, table, requests, &mut observed, outcome)? {
                Err(CommitError::Outdated) => {}
                // Against a fresh reading, it was the new set.
                Err(CommitError::Refused(_)) if !leaves_out => is_refused |= is_fresh,
                Err(error) => return Ok(Err(error)),
                Ok(left_out) => {
                    self.programmed(family, observed, is_whole);
                    return Ok(Ok(left_out));
                }
            }
        }
        Ok(Err(CommitError::Outdated))
    }

    /// Follows the end of the transactions of a family.
    fn programmed(&mut self, family: Family, observed: Observed, is_whole: bool) {
        self.observed = Some(observed);
        if is_whole {
            self.whole.insert(family);
        }
    }

    /// Makes the transactions of a change, and follows what the kernel has of them in `observed`. With a table, those
    /// of its records are left out of which the kernel refuses a part. The outer error means that the kernel cannot be
    /// read.
    fn commit(
        &mut self,
        family: Family,
        table: Option<&NodeTable>,
        requests: Vec<Request>,
        observed: &mut Observed,
        outcome: &mut Outcome,
    ) -> Result<Programmed, DataplaneError> {
        let Self {
            kernel,
            ways,
            flows_due,
            clients_due,
            is_doubtful,
            ..
        } = self;
        let ways: &Ways = ways;
        // The kernel counts without 0.
        let next = |generation: u32| generation.checked_add(1).unwrap_or(1);
        let mut left_out = table.map(|table| LeftOut::new(family, table, ways));
        for requests in transactions(requests) {
            let before = observed.generation;
            // Before it is made: the kernel may make it and the answer be lost.
            if changes_udp(family, &requests) {
                flows_due.insert(family);
            }
            if strands_clients(&requests) {
                clients_due.insert(family);
            }
            let mut commit = |requests: &[Request]| {
                let committed = kernel.commit(family, TABLE, requests, before);
                committed.inspect_err(|error| describe(family, error, requests))
            };
            let made = match &mut left_out {
                Some(left_out) => left_out.commit(requests, commit),
                None => commit(&requests).map(|()| requests),
            };
            let made = match made {
                Ok(made) => made,
                Err(error) => return Ok(Err(error)),
            };
            if made.is_empty() {
                continue;
            }
            advance(observed.tables.entry(family).or_default(), &made);
            let now = kernel.generation()?;
            observed.generation = before.map(next).filter(|next| *next == now);
            *is_doubtful |= observed.generation.is_none();
            outcome.objects += made.iter().map(Request::objects).sum::<usize>();
        }
        Ok(Ok(
            left_out.map_or_else(BTreeMap::new, LeftOut::into_records)
        ))
    }

    fn plan(
        &self,
        family: Family,
        table: &NodeTable,
        there: Option<&TableContent>,
        surplus: Surplus,
        renews: bool,
    ) -> Vec<Request> {
        let mut desired = desire(family, &self.ways, &self.config, &table.node, there);
        if let Some(there) = there.filter(|_| renews) {
            renew_sources(&mut desired.content, there);
        }
        let marks = self.former.as_ref().map_or(0, FormerIpvs::marks);
        if marks != 0 {
            unmark(&mut desired.content, marks);
        }
        plan(&desired.content, there, surplus)
    }

    /// Number of objects that requests repair after changes of others: all but those that our tables
    /// lacked before.
    fn repaired(
        &self,
        family: Family,
        table: &NodeTable,
        surplus: Surplus,
        requests: &[Request],
        renews: bool,
    ) -> usize {
        let objects = |requests: &[Request]| requests.iter().map(Request::objects).sum::<usize>();
        let forgotten = self.forgotten.as_ref().filter(|_| !requests.is_empty());
        forgotten.map_or(0, |forgotten| {
            let before = forgotten.tables.get(&family).and_then(Option::as_ref);
            let lacked = self.plan(family, table, before, surplus, renews);
            objects(requests).saturating_sub(objects(&lacked))
        })
    }
}

/// Returns `true` if there are ways of a family, and all of them are those of records that were left out.
pub(super) fn is_everything(
    family: Family,
    ways: &Ways,
    left_out: &BTreeMap<RecordKey, String>,
) -> bool {
    let of_family = ways.ways.iter();
    let mut of_family = of_family.filter(|(key, _)| Family::of(key.address) == family);
    !left_out.is_empty() && of_family.all(|(_, way)| left_out.contains_key(&way.record.key))
}

/// Logs what the kernel refused.
pub(super) fn describe(family: Family, error: &CommitError, requests: &[Request]) {
    if let CommitError::Refused(refused) = error {
        for (index, errno) in refused.iter().take(8) {
            let request = requests.get(*index);
            tracing::debug!(%family, %errno, ?request, "the kernel refused a request");
        }
    }
}

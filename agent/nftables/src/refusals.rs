// SPDX-License-Identifier: Apache-2.0

//! Transactions that leave out the records of which the kernel refuses a part.
//!
//! The kernel makes a transaction as a whole or not at all, and answers each message that it refuses, but not with the
//! element. So the elements of refused messages are sent again, those of each way in a message of their own: the
//! answers tell the ways then, and these the records. What the table has of such a record stays as it is.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{Family, FrontendKind, NodeTable, RecordKey};
use portolan_netlink::Errno;
use portolan_netlink::nftables::{CommitError, Key, Request, Value, Verdict};

use crate::incremental::OF_WAYS;
use crate::layout::{
    ALLOWED_MANY, CLUSTER_IPS, HAIRPIN, REMOTE, address_len, first_name, read_address, read_way,
    way_of_source,
};
use crate::{Hairpin, WayKey, Ways};

/// Most attempts at a transaction. The second has messages of single ways, the third leaves records out, and the others
/// leave out records that were refused because of these.
const ATTEMPTS: usize = 6;

/// The records of a family that transactions leave out.
#[derive(Debug)]
pub struct LeftOut<'a> {
    family: Family,
    table: &'a NodeTable,
    ways: &'a Ways,
    /// The records, and the reasons.
    records: BTreeMap<RecordKey, String>,
    /// Chains that only these records need.
    chains: BTreeSet<Arc<str>>,
}

impl<'a> LeftOut<'a> {
    /// Leaves no record out. The ways are those of the table.
    #[must_use]
    pub fn new(family: Family, table: &'a NodeTable, ways: &'a Ways) -> Self {
        Self {
            family,
            table,
            ways,
            records: BTreeMap::new(),
            chains: BTreeSet::new(),
        }
    }

    /// The records that are left out, each with what the kernel refused.
    #[must_use]
    pub fn into_records(self) -> BTreeMap<RecordKey, String> {
        self.records
    }

    /// Makes a transaction by `commit`, without the records that are left out already and those that the kernel
    /// refuses. Returns the requests that were made.
    ///
    /// # Errors
    /// The last error of `commit`, if it concerns more than records. Nothing was made then.
    pub fn commit(
        &mut self,
        requests: Vec<Request>,
        mut commit: impl FnMut(&[Request]) -> Result<(), CommitError>,
    ) -> Result<Vec<Request>, CommitError> {
        let mut requests = self.without(requests);
        let mut attempt = 1;
        while !requests.is_empty() {
            let refused = match commit(&requests) {
                Ok(()) => break,
                Err(CommitError::Refused(refused)) => refused,
                Err(error) => return Err(error),
            };
            let numbers: BTreeMap<usize, Errno> = refused.iter().copied().collect();
            if attempt == ATTEMPTS || numbers.values().any(|errno| *errno == Errno::EPERM) {
                return Err(CommitError::Refused(refused));
            }
            attempt += 1;
            requests = match self.split(&requests, &numbers) {
                Some(split) => split,
                None if self.blame(&requests, &numbers) => self.without(requests),
                None => return Err(CommitError::Refused(refused)),
            };
        }
        Ok(requests)
    }

    /// The requests with one for each way of those that were refused; `None` if they are so already.
    fn split(
        &self,
        requests: &[Request],
        refused: &BTreeMap<usize, Errno>,
    ) -> Option<Vec<Request>> {
        let mut split = Vec::with_capacity(requests.len());
        for (number, request) in requests.iter().enumerate() {
            match request {
                Request::AddElements(set, elements) if refused.contains_key(&number) => {
                    let parts = self.parts(set, elements);
                    split.extend(parts.map(|part| Request::AddElements(Arc::clone(set), part)));
                }
                Request::DelElements(set, elements) if refused.contains_key(&number) => {
                    let parts = self.parts(set, elements);
                    split.extend(parts.map(|part| Request::DelElements(Arc::clone(set), part)));
                }
                _ => split.push(request.clone()),
            }
        }
        (split.len() > requests.len()).then_some(split)
    }

    /// The elements of each way in a set, or each element where records share them.
    fn parts(
        &self,
        set: &str,
        elements: &[(Key, Value)],
    ) -> impl Iterator<Item = Vec<(Key, Value)>> {
        let parts = elements.chunk_by(move |(one, _), (other, _)| {
            let way = self.way_of(set, one);
            way.is_some() && way == self.way_of(set, other)
        });
        parts.map(<[_]>::to_vec)
    }

    /// Leaves out the records of refused requests; returns `false` if one of these belongs to none.
    fn blame(&mut self, requests: &[Request], refused: &BTreeMap<usize, Errno>) -> bool {
        let sharers = self.sharers(refused.keys().filter_map(|number| requests.get(*number)));
        for (number, errno) in refused {
            let Some(request) = requests.get(*number) else {
                return false;
            };
            let (what, records) = match request {
                Request::AddElements(set, elements) | Request::DelElements(set, elements) => {
                    let of = |(key, _): &(Key, Value)| self.blamed(set, key, &sharers);
                    let records = elements.iter().flat_map(of).collect();
                    (format!("an element of {set}"), records)
                }
                Request::AddChain(chain) if chain.base.is_none() => {
                    self.chain(&chain.name, requests)
                }
                Request::AddRule(chain, _) => self.chain(chain, requests),
                _ => return false,
            };
            let mut is_known = false;
            for record in records {
                is_known = true;
                let reason = format!("{record}: the kernel refused {what}: {errno}");
                self.records.entry(record).or_insert(reason);
            }
            if !is_known {
                return false;
            }
        }
        true
    }

    /// Leaves out a new chain; the records of the elements that lead there.
    fn chain(&mut self, name: &Arc<str>, requests: &[Request]) -> (String, BTreeSet<RecordKey>) {
        let is_new = requests.iter().any(
            |request| matches!(request, Request::AddChain(new) if new.base.is_none() && new.name == *name),
        );
        let mut records = BTreeSet::new();
        for request in requests.iter().filter(|_| is_new) {
            let Request::AddElements(set, elements) = request else {
                continue;
            };
            let leads_there =
                |value: &Value| matches!(value, Value::Verdict(Verdict::Goto(to)) if to == name);
            for (key, _) in elements.iter().filter(|(_, value)| leads_there(value)) {
                records.extend(self.owners(set, key));
            }
        }
        if !records.is_empty() {
            self.chains.insert(Arc::clone(name));
        }
        (format!("the chain {name}"), records)
    }

    /// The records that share the endpoints of refused requests. All records are walked over once, however many
    /// endpoints there are.
    fn sharers<'r>(&self, refused: impl Iterator<Item = &'r Request>) -> Sharers {
        let mut sharers = Sharers::default();
        for request in refused {
            let (Request::AddElements(set, elements) | Request::DelElements(set, elements)) =
                request
            else {
                continue;
            };
            for (key, _) in elements {
                match &**set {
                    HAIRPIN => {
                        if let Some(endpoint) = self.endpoint(key) {
                            sharers.hairpins.entry(Hairpin(endpoint)).or_default();
                        }
                    }
                    REMOTE => {
                        if let Some(endpoint) = self.way(key) {
                            sharers.remote.entry(endpoint).or_default();
                        }
                    }
                    _ => {}
                }
            }
        }
        if sharers.hairpins.is_empty() && sharers.remote.is_empty() {
            return sharers;
        }
        for record in self.table.records.values() {
            for hairpin in Ways::hairpins_of(self.table, record) {
                if let Some(records) = sharers.hairpins.get_mut(&hairpin) {
                    records.insert(record.key.clone());
                }
            }
            for endpoint in Ways::remote_of(self.table, record) {
                if let Some(records) = sharers.remote.get_mut(&endpoint) {
                    records.insert(record.key.clone());
                }
            }
        }
        sharers
    }

    /// The records that a refused element belongs to.
    fn blamed(&self, set: &str, key: &[u8], sharers: &Sharers) -> BTreeSet<RecordKey> {
        let records = match set {
            HAIRPIN => {
                let endpoint = self.endpoint(key).map(Hairpin);
                endpoint.and_then(|endpoint| sharers.hairpins.get(&endpoint))
            }
            REMOTE => self.way(key).and_then(|way| sharers.remote.get(&way)),
            _ => return self.owners(set, key),
        };
        records.cloned().unwrap_or_default()
    }

    /// The records that an element belongs to, but for endpoints that records share.
    fn owners(&self, set: &str, key: &[u8]) -> BTreeSet<RecordKey> {
        if let Some(way) = self.way_of(set, key) {
            let way = self.ways.ways.get(&way);
            way.map(|way| way.record.key.clone()).into_iter().collect()
        } else if set == CLUSTER_IPS {
            self.owners_of_address(key)
        } else {
            BTreeSet::new()
        }
    }

    /// The records of which an address is a cluster IP, or those of its other ways.
    fn owners_of_address(&self, key: &[u8]) -> BTreeSet<RecordKey> {
        let Some(address) = read_address(self.family, key) else {
            return BTreeSet::new();
        };
        let of_kind = |is_cluster_ip: bool| -> BTreeSet<RecordKey> {
            let ways = self.ways.ways_of_address(address);
            let ways =
                ways.filter(|(_, way)| (way.kind == FrontendKind::ClusterIp) == is_cluster_ip);
            ways.map(|(_, way)| way.record.key.clone()).collect()
        };
        let of_cluster_ip = of_kind(true);
        match of_cluster_ip.is_empty() {
            true => of_kind(false),
            false => of_cluster_ip,
        }
    }

    /// The way in a key of a set that has one way in each.
    fn way_of(&self, set: &str, key: &[u8]) -> Option<WayKey> {
        match first_name(set) {
            ALLOWED_MANY => self.way(way_of_source(set, key)?),
            name if OF_WAYS.contains(&name) => self.way(key),
            _ => None,
        }
    }

    fn way(&self, key: &[u8]) -> Option<WayKey> {
        read_way(self.family, key)
    }

    /// The endpoint of a key that has its address twice.
    fn endpoint(&self, key: &[u8]) -> Option<WayKey> {
        self.way(key.get(address_len(self.family)..)?)
    }

    /// The requests without what only records that are left out have.
    fn without(&self, requests: Vec<Request>) -> Vec<Request> {
        if self.records.is_empty() {
            return requests;
        }
        let shared = self.shared();
        let needed = self.still_needed(&requests, &shared);
        let keep = |set: &str, mut elements: Vec<(Key, Value)>| {
            elements.retain(|(key, _)| !self.is_left_out(set, key, &shared));
            elements
        };
        let has_elements = |request: &Request| match request {
            Request::AddElements(_, elements) | Request::DelElements(_, elements) => {
                !elements.is_empty()
            }
            Request::AddChain(chain) => !self.chains.contains(&chain.name),
            Request::AddRule(chain, _) => !self.chains.contains(chain),
            Request::FlushChain(chain) | Request::DelChain(chain) => !needed.contains(chain),
            _ => true,
        };
        let requests = requests.into_iter().map(|request| match request {
            Request::AddElements(set, elements) => {
                let elements = keep(&set, elements);
                Request::AddElements(set, elements)
            }
            Request::DelElements(set, elements) => {
                let elements = keep(&set, elements);
                Request::DelElements(set, elements)
            }
            other => other,
        });
        requests.filter(has_elements).collect()
    }

    /// The chains that would be deleted and stay: all of them, if elements of records that are left out still lead to one,
    /// which may lead to others.
    fn still_needed(&self, requests: &[Request], shared: &Shared) -> BTreeSet<Arc<str>> {
        let deleted = requests.iter().filter_map(|request| match request {
            Request::DelChain(chain) => Some(chain),
            _ => None,
        });
        let deleted: BTreeSet<Arc<str>> = deleted.cloned().collect();
        let leads_there = |value: &Value| match value {
            Value::Verdict(Verdict::Goto(to) | Verdict::Jump(to)) => deleted.contains(to),
            _ => false,
        };
        let is_needed = |request: &Request| match request {
            Request::DelElements(set, elements) => elements
                .iter()
                .any(|(key, value)| leads_there(value) && self.is_left_out(set, key, shared)),
            _ => false,
        };
        match !deleted.is_empty() && requests.iter().any(is_needed) {
            true => deleted,
            false => BTreeSet::new(),
        }
    }

    /// Counts the records that are left out by each endpoint that records share.
    fn shared(&self) -> Shared {
        let mut shared = Shared::default();
        for key in self.records.keys() {
            let Some(record) = self.table.records.get(key) else {
                continue;
            };
            for hairpin in Ways::hairpins_of(self.table, record) {
                *shared.hairpins.entry(hairpin).or_default() += 1;
            }
            for endpoint in Ways::remote_of(self.table, record) {
                *shared.remote.entry(endpoint).or_default() += 1;
            }
        }
        shared
    }

    /// Returns `true` if an element belongs to records that are left out, and to no other.
    fn is_left_out(&self, set: &str, key: &[u8], shared: &Shared) -> bool {
        // Records that are too large have endpoints too, and are not among all.
        let all_of = |left_out: Option<&u32>, all: Option<&u32>| {
            left_out
                .zip(all)
                .is_some_and(|(left_out, all)| left_out >= all)
        };
        if set == HAIRPIN {
            let endpoint = self.endpoint(key).map(Hairpin);
            endpoint.is_some_and(|e| all_of(shared.hairpins.get(&e), self.ways.hairpins.get(&e)))
        } else if set == REMOTE {
            let endpoint = self.way(key);
            endpoint.is_some_and(|e| all_of(shared.remote.get(&e), self.ways.remote.get(&e)))
        } else {
            let owners = self.owners(set, key);
            !owners.is_empty() && owners.iter().all(|key| self.records.contains_key(key))
        }
    }
}

/// Records that share endpoints.
#[derive(Debug, Default)]
struct Sharers {
    hairpins: BTreeMap<Hairpin, BTreeSet<RecordKey>>,
    remote: BTreeMap<WayKey, BTreeSet<RecordKey>>,
}

/// Numbers of records that have endpoints.
#[derive(Debug, Default)]
struct Shared {
    hairpins: BTreeMap<Hairpin, u32>,
    remote: BTreeMap<WayKey, u32>,
}

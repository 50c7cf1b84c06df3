// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use portolan_model::{Affinity, Destination, Frontend, FrontendAddress, NodeOverlay, Record};
use portolan_netlink::nftables::TableContent;
use portolan_plan::{Config, NodeFacts};

use super::*;
use crate::layout::{ENDPOINTS, SERVICES, STICKY, way_key};
use crate::tests::{key, table, way};
use crate::{Surplus, advance, desire, has_way, plan, transactions};

/// Decides on an element by its set and key.
type Refuses = dyn Fn(&str, &[u8]) -> bool;

/// A kernel that makes a transaction as a whole or not at all, and answers every request that it refuses.
struct Kernel {
    content: Option<TableContent>,
    /// Asked for each element of a set, and for chains without a key.
    refuses: Box<Refuses>,
    attempts: usize,
}

impl Kernel {
    fn new(refuses: impl Fn(&str, &[u8]) -> bool + 'static) -> Self {
        Self {
            content: None,
            refuses: Box::new(refuses),
            attempts: 0,
        }
    }

    fn commit(&mut self, requests: &[Request]) -> Result<(), CommitError> {
        self.attempts += 1;
        let mut content = self.content.clone();
        let mut refused = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            match self.answer(request, content.as_ref()) {
                Ok(()) => advance(&mut content, std::slice::from_ref(request)),
                Err(errno) => refused.push((number, errno)),
            }
        }
        if !refused.is_empty() {
            return Err(CommitError::Refused(refused));
        }
        self.content = content;
        Ok(())
    }

    /// Answers a request after those before it.
    fn answer(&self, request: &Request, content: Option<&TableContent>) -> Result<(), Errno> {
        let is_there = |chain: &Arc<str>| content.is_some_and(|c| c.chains.contains_key(chain));
        let leads_to = |value: &Value, chain: &Arc<str>| match value {
            Value::Verdict(Verdict::Goto(to)) => to == chain,
            _ => false,
        };
        match request {
            Request::AddChain(chain) if (self.refuses)(&chain.name, &[]) => Err(Errno::EINVAL),
            Request::AddRule(chain, _) if !is_there(chain) => Err(Errno::ENOENT),
            Request::DelChain(chain) => {
                let sets = content.into_iter().flat_map(|c| c.sets.values());
                let mut values = sets.flat_map(|(_, elements)| elements.values());
                match values.any(|value| leads_to(value, chain)) {
                    // EBUSY.
                    true => Err(Errno::new(16)),
                    false => Ok(()),
                }
            }
            Request::AddElements(set, elements) => {
                let is_refused = |(key, _): &(Key, Value)| (self.refuses)(set, key);
                let leads_nowhere = |(_, value): &(Key, Value)| match value {
                    Value::Verdict(Verdict::Goto(chain)) => !is_there(chain),
                    _ => false,
                };
                if elements.iter().any(is_refused) {
                    return Err(Errno::EINVAL);
                }
                match elements.iter().any(leads_nowhere) {
                    true => Err(Errno::ENOENT),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Programs a table as the agent does; the records that were left out.
    fn program(&mut self, table: &NodeTable) -> Result<Vec<String>, CommitError> {
        let (config, facts) = (Config::default(), NodeFacts::default());
        let ways = Ways::new(table, &facts);
        let there = self.content.clone();
        let wanted = desire(Family::V4, &ways, &config, &table.node, there.as_ref()).content;
        let mut left_out = LeftOut::new(Family::V4, table, &ways);
        for requests in transactions(plan(&wanted, there.as_ref(), Surplus::Delete)) {
            left_out.commit(requests, |requests| self.commit(requests))?;
        }
        let records = left_out.into_records().into_keys();
        Ok(records.map(|key| key.service.to_string()).collect())
    }

    fn has(&self, address: &str) -> bool {
        let content = self.content.as_ref();
        content.is_some_and(|content| has_way(content, &way(address)))
    }

    /// All elements of a way.
    fn elements(&self, address: &str) -> Vec<(Arc<str>, Key, Value)> {
        let prefix = way_key(&way(address));
        let sets = &self.content.as_ref().unwrap().sets;
        let all = sets.iter().flat_map(|(name, (_, elements))| {
            let pair =
                |(key, value): (&Key, &Value)| (Arc::clone(name), key.clone(), value.clone());
            elements.iter().map(pair)
        });
        all.filter(|(_, key, _)| key.starts_with(&prefix)).collect()
    }
}

/// Returns `true` for the elements of a way in a set.
fn of_way(name: &'static str, address: &str) -> impl Fn(&str, &[u8]) -> bool + 'static {
    let prefix = way_key(&way(address));
    move |set, key| set == name && key.starts_with(&prefix)
}

fn record(service: &str, address: &str, endpoints: u8) -> Record {
    let vip = FrontendAddress::Vip(address.parse().unwrap());
    let destination = |n| Destination::new(SocketAddr::from(([10, 244, 0, n], 8080)));
    Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: (1..=endpoints).map(destination).collect(),
        ..Record::new(key(service))
    }
}

#[test]
fn a_refused_record_is_left_out_and_no_other() {
    let mut kernel = Kernel::new(of_way(ENDPOINTS, "10.96.0.2"));
    let all = table([
        record("a", "10.96.0.1", 2),
        record("b", "10.96.0.2", 2),
        record("c", "10.96.0.3", 2),
    ]);
    assert_eq!(kernel.program(&all), Ok(vec!["b".to_owned()]));
    // As usual, with a message for each way, and without the record.
    assert_eq!(kernel.attempts, 3);
    let served = ["10.96.0.1", "10.96.0.2", "10.96.0.3"].map(|address| kernel.has(address));
    assert_eq!(served, [true, false, true]);
    assert_eq!(kernel.elements("10.96.0.2"), []);
    // Its address is no cluster IP of ours, or all of its ports would be refused.
    let (_, cluster_ips) = &kernel.content.as_ref().unwrap().sets[CLUSTER_IPS];
    assert_eq!(cluster_ips.len(), 2);

    // The kernel takes it later.
    kernel.refuses = Box::new(|_, _| false);
    assert_eq!(kernel.program(&all), Ok(Vec::new()));
    assert!(kernel.has("10.96.0.2"));
    let mut whole = Kernel::new(|_, _| false);
    assert_eq!(whole.program(&all), Ok(Vec::new()));
    assert_eq!(kernel.content, whole.content);
}

#[test]
fn a_refused_change_leaves_what_was_there_in_force() {
    let mut kernel = Kernel::new(|_, _| false);
    let before = table([
        record("a", "10.96.0.1", 1),
        record("b", "10.96.0.2", 4),
        record("gone", "10.96.0.3", 1),
    ]);
    assert_eq!(kernel.program(&before), Ok(Vec::new()));
    let of_b = kernel.elements("10.96.0.2");

    kernel.refuses = Box::new(of_way(SERVICES, "10.96.0.2"));
    let after = table([record("a", "10.96.0.1", 3), record("b", "10.96.0.2", 9)]);
    assert_eq!(kernel.program(&after), Ok(vec!["b".to_owned()]));
    assert_eq!(kernel.elements("10.96.0.2"), of_b);
    assert_eq!(kernel.elements("10.96.0.3"), []);
    let slots = kernel.elements("10.96.0.1").into_iter();
    assert_eq!(slots.filter(|(set, ..)| **set == *ENDPOINTS).count(), 3);
}

#[test]
fn a_refused_chain_takes_the_records_that_lead_there() {
    let sticky = |service: &str, address: &str, timeout_seconds: u32| Record {
        affinity: Some(Affinity { timeout_seconds }),
        ..record(service, address, 2)
    };
    let mut kernel = Kernel::new(|name, _| name == "remember-60");
    let all = table([
        record("a", "10.96.0.1", 2),
        sticky("b", "10.96.0.2", 60),
        sticky("c", "10.96.0.3", 90),
    ]);
    assert_eq!(kernel.program(&all), Ok(vec!["b".to_owned()]));
    let content = kernel.content.as_ref().unwrap();
    assert!(content.chains.contains_key("remember-90"));
    assert!(!content.chains.contains_key("remember-60"));
    assert_eq!(content.sets[STICKY].1.len(), 1);
    assert!(kernel.has("10.96.0.1") && kernel.has("10.96.0.3"));
}

#[test]
fn a_chain_that_a_refused_record_still_needs_stays() {
    let mut kernel = Kernel::new(|_, _| false);
    let all = table([record("a", "10.96.0.1", 1), record("b", "10.96.0.2", 1)]);
    assert_eq!(kernel.program(&all), Ok(Vec::new()));
    let wanted = kernel.content.clone();

    // A way leads to a chain of another name, as somebody else or another version of the agent has made it.
    let other: Arc<str> = "other".into();
    let content = kernel.content.as_mut().unwrap();
    let (mut chain, rules) = content.chains["pick-0"].clone();
    chain.name = Arc::clone(&other);
    let rewritten = (chain, rules);
    content.chains.insert(Arc::clone(&other), rewritten.clone());
    let (_, ways) = content.sets.get_mut(SERVICES).unwrap();
    let to = Value::Verdict(Verdict::Goto(other));
    ways.insert(way_key(&way("10.96.0.2")), to);

    kernel.refuses = Box::new(of_way(SERVICES, "10.96.0.2"));
    assert_eq!(kernel.program(&all), Ok(vec!["b".to_owned()]));
    let chains = &kernel.content.as_ref().unwrap().chains;
    assert_eq!(chains["other"], rewritten);
    kernel.refuses = Box::new(|_, _| false);
    assert_eq!(kernel.program(&all), Ok(Vec::new()));
    assert_eq!(kernel.content, wanted);
}

#[test]
fn a_refused_shared_element_takes_all_its_records() {
    let mut other = record("b", "10.96.0.1", 2);
    other.frontends[0].port = 443;
    let mut kernel = Kernel::new(|set, key| set == CLUSTER_IPS && key == [10, 96, 0, 1]);
    let all = table([
        record("a", "10.96.0.1", 2),
        other,
        record("c", "10.96.0.3", 2),
    ]);
    let expected = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(kernel.program(&all), Ok(expected));
    assert!(kernel.has("10.96.0.3"));
}

/// Gives a record an endpoint of this node.
fn add_own(table: &mut NodeTable, service: &str, number: u16) {
    let [high, low] = number.to_be_bytes();
    let overlay = NodeOverlay {
        own: vec![SocketAddr::from(([10, 244, high, low], 8080))],
        ..NodeOverlay::default()
    };
    table.lists.insert(key(service), Arc::new(overlay));
}

#[test]
fn a_refused_endpoint_takes_the_records_that_have_it() {
    let mut kernel = Kernel::new(|set, key| set == HAIRPIN && key.starts_with(&[10, 244, 0, 7]));
    let mut all = table([
        record("a", "10.96.0.1", 1),
        record("b", "10.96.0.2", 1),
        record("c", "10.96.0.3", 1),
    ]);
    for (service, number) in [("a", 7), ("b", 7), ("c", 8)] {
        add_own(&mut all, service, number);
    }
    let expected = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(kernel.program(&all), Ok(expected));
    assert!(kernel.has("10.96.0.3"));
    assert_eq!(kernel.content.unwrap().sets[HAIRPIN].1.len(), 1);
}

#[test]
fn many_refused_endpoints_take_their_records_in_one_attempt() {
    const RECORDS: u16 = 3_000;
    let mut kernel = Kernel::new(|set, _| set == HAIRPIN);
    let record_of = |number: u16| {
        let [high, low] = number.to_be_bytes();
        record(&number.to_string(), &format!("10.96.{high}.{low}"), 1)
    };
    let mut all = table((0..RECORDS).map(record_of));
    for number in 0..RECORDS {
        add_own(&mut all, &number.to_string(), number);
    }
    // Each endpoint compared with those of each record would be nine million comparisons.
    let left_out = kernel.program(&all).unwrap();
    assert_eq!(left_out.len(), usize::from(RECORDS));
    assert_eq!(kernel.attempts, 3);
}

#[test]
fn what_belongs_to_no_record_fails_as_a_whole() {
    let mut kernel = Kernel::new(|name, _| name == "nat-in");
    let all = table([record("a", "10.96.0.1", 2)]);
    let failed = kernel.program(&all);
    assert!(matches!(failed, Err(CommitError::Refused(_))), "{failed:?}");
    assert_eq!((kernel.content, kernel.attempts), (None, 1));
}

#[test]
fn a_missing_right_concerns_no_record() {
    let all = table([record("a", "10.96.0.1", 2)]);
    let ways = Ways::new(&all, &NodeFacts::default());
    let elements = vec![(way_key(&way("10.96.0.1")), Value::Present)];
    let requests = vec![Request::AddElements(SERVICES.into(), elements)];
    let denied = || CommitError::Refused(vec![(0, Errno::EPERM)]);
    let mut left_out = LeftOut::new(Family::V4, &all, &ways);
    let result = left_out.commit(requests, |_| Err(denied()));
    assert_eq!(result, Err(denied()));
    assert!(left_out.into_records().is_empty());
}

#[test]
fn attempts_end() {
    let records = (1..=20).map(|n| record(&n.to_string(), &format!("10.96.0.{n}"), 2));
    let all = table(records);
    let ways = Ways::new(&all, &NodeFacts::default());
    let wanted = desire(Family::V4, &ways, &Config::default(), &all.node, None).content;
    let requests = plan(&wanted, None, Surplus::Delete);
    let mut attempts = 0;
    // There is always another one.
    let refuse = |requests: &[Request]| {
        attempts += 1;
        let is_of_elements = |request: &Request| matches!(request, Request::AddElements(..));
        let first = requests.iter().position(is_of_elements).unwrap();
        Err(CommitError::Refused(vec![(first, Errno::EINVAL)]))
    };
    let result = LeftOut::new(Family::V4, &all, &ways).commit(requests, refuse);
    assert!(result.is_err());
    assert_eq!(attempts, ATTEMPTS);
}

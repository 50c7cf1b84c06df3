// SPDX-License-Identifier: Apache-2.0

//! Chains that not every node needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_netlink::nftables::{TableContent, Value, Verdict};

use crate::layout::{OUTSIDE, STICKY};
use crate::rules::SEGMENTS;

/// The chains that remember clients, before the seconds that they do so.
const REMEMBER: &str = "remember-";

/// The chains and rules that are needed, of those that not every node needs. What is there stays, also of an earlier
/// agent: the next list that grows, or the next Service of its kind, needs it again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The highest class of lists, if there is any.
    pub(crate) inside: Option<u32>,
    /// The same of lists for connections from outside.
    pub(crate) outside: Option<u32>,
    /// `true` if connections from outside have their own destinations on a way. Without the rules for them a new
    /// connection costs less.
    pub(crate) from_outside: bool,
    /// Timeouts of affinity, in seconds.
    pub(crate) timeouts: BTreeSet<u32>,
    /// True if an import has segments to be clamped.
    pub(crate) clamps: bool,
}

/// The chain of a list of a class: `pick-2`, `local-stick-0`.
pub(crate) fn list_chain(is_outside: bool, is_sticky: bool, class: u32) -> Arc<str> {
    let prefix = if is_outside { "local-" } else { "" };
    let kind = if is_sticky { "stick" } else { "pick" };
    format!("{prefix}{kind}-{class}").into()
}

/// The chain that remembers clients for so many seconds.
pub(crate) fn remember_chain(seconds: u32) -> Arc<str> {
    format!("{REMEMBER}{seconds}").into()
}

/// Timeouts whose chains stay although no way has them.
const TIMEOUTS_KEPT: usize = 64;

/// Returns `true` if a table has more chains of timeouts than stay without need.
pub(crate) fn has_many_timeouts(observed: &TableContent) -> bool {
    let chains = observed.chains.keys();
    let of_timeouts = chains.filter(|name| name.starts_with(REMEMBER));
    of_timeouts.count() > TIMEOUTS_KEPT
}

impl Needs {
    /// Adds what chains and maps in the kernel are there for. Of very many timeouts, those that a way has.
    pub(crate) fn add_observed(&mut self, observed: &TableContent) {
        self.from_outside |= observed.sets.contains_key(OUTSIDE);
        for name in observed.chains.keys() {
            self.add_chain(name);
        }
        if has_many_timeouts(observed) {
            self.timeouts.clear();
            let sticky = observed.sets.get(STICKY).into_iter();
            for value in sticky.flat_map(|(_, elements)| elements.values()) {
                if let Value::Verdict(Verdict::Goto(chain)) = value {
                    self.add_chain(chain);
                }
            }
        }
    }

    /// Adds what a chain in the kernel was there for.
    pub(crate) fn add_chain(&mut self, name: &str) {
        let number = |prefix: &str| name.strip_prefix(prefix)?.parse::<u32>().ok();
        if let Some(class) = number("pick-") {
            self.inside = self.inside.max(Some(class.min(32)));
        }
        if let Some(class) = number("local-pick-") {
            self.outside = self.outside.max(Some(class.min(32)));
        }
        self.timeouts.extend(number(REMEMBER));
        self.clamps |= name == SEGMENTS;
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::{
        Affinity, Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeTable,
        Record,
    };
    use portolan_plan::{Config, NodeFacts};

    use super::*;
    use crate::tests::{key, record, vip};
    use crate::{Surplus, Ways, advance, desire, plan, plan_touched};

    fn table(seconds: Option<u32>) -> NodeTable {
        let vip = FrontendAddress::Vip([10, 96, 0, 1].into());
        let record = Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
            destinations: vec![Destination::new(([10, 244, 0, 1], 8080).into())],
            affinity: seconds.map(|timeout_seconds| Affinity { timeout_seconds }),
            ..Record::new(key("web"))
        };
        crate::tests::table([record])
    }

    /// Chains of timeouts after the last of changes, each followed as the agent does.
    fn chains_after(surplus: Surplus, timeouts: impl Iterator<Item = Option<u32>>) -> usize {
        let (config, facts) = (Config::default(), NodeFacts::default());
        let mut content = None;
        let mut followed: Option<(NodeTable, Ways)> = None;
        for seconds in timeouts {
            let table = table(seconds);
            let change = followed.take().and_then(|(from, mut ways)| {
                let touched = ways.update(&from, &table, &facts)?;
                plan_touched(Family::V4, &config, &ways, &touched, content.as_ref()?)
            });
            let ways = Ways::new(&table, &facts);
            let wanted = desire(Family::V4, &ways, &config, &table.node, content.as_ref()).content;
            let requests = change.unwrap_or_else(|| plan(&wanted, content.as_ref(), surplus));
            advance(&mut content, &requests);
            followed = Some((table, ways));
        }
        let chains = content.unwrap().chains;
        let of_timeouts = chains.keys().filter(|name| name.starts_with(REMEMBER));
        of_timeouts.count()
    }

    #[test]
    fn chains_of_timeouts_do_not_grow_without_end() {
        let chains = chains_after(Surplus::Delete, (1..=1_000).map(Some));
        assert!(chains <= TIMEOUTS_KEPT + 2, "{chains}");
        let chains = chains_after(Surplus::Delete, (1..=50).map(Some));
        assert_eq!(chains, 50, "few stay");
    }

    #[test]
    fn rules_for_connections_from_outside_come_with_the_first_way_that_needs_them() {
        let (config, facts) = (Config::default(), NodeFacts::default());
        let balanced = vip("192.0.2.1", FrontendKind::LoadBalancer, Lists::Local);
        let inside = table(None);
        let web = inside.records.values().map(|record| (**record).clone());
        let outside = crate::tests::table(web.chain([record("balanced", vec![balanced], 1)]));
        let desired = |table: &NodeTable, there: Option<&TableContent>| {
            let ways = Ways::new(table, &facts);
            desire(Family::V4, &ways, &config, &table.node, there).content
        };
        let rules = |content: &TableContent| content.chains["nat-in"].1.len();
        let before = desired(&inside, None);
        assert!(!before.sets.contains_key(OUTSIDE));

        let mut ways = Ways::new(&inside, &facts);
        let touched = ways.update(&inside, &outside, &facts).unwrap();
        let followed = plan_touched(Family::V4, &config, &ways, &touched, &before);
        assert_eq!(followed, None, "a map and rules are new");
        let with = desired(&outside, Some(&before));
        assert!(with.sets.contains_key(OUTSIDE) && rules(&with) > rules(&before));
        // What is there stays, and the next way changes elements alone.
        let after = desired(&inside, Some(&with));
        assert_eq!(after.chains, with.chains);
        assert!(after.sets[OUTSIDE].1.is_empty());
        let mut ways = Ways::new(&inside, &facts);
        let touched = ways.update(&inside, &outside, &facts).unwrap();
        let followed = plan_touched(Family::V4, &config, &ways, &touched, &after);
        assert_eq!(followed, Some(plan(&with, Some(&after), Surplus::Delete)));
    }

    #[test]
    fn a_chain_that_an_element_leads_to_stays() {
        // A table from disk leaves the way as it is.
        let (config, facts) = (Config::default(), NodeFacts::default());
        let many = everything_with(1..=100);
        let table = table(None);
        let ways = Ways::new(&table, &facts);
        let wanted = desire(Family::V4, &ways, &config, &table.node, Some(&many)).content;
        let left = wanted
            .chains
            .keys()
            .filter(|name| name.starts_with(REMEMBER));
        assert_eq!(
            left.map(|name| &**name).collect::<Vec<_>>(),
            ["remember-100"]
        );
        let requests = plan(&wanted, Some(&many), Surplus::Keep);
        let mut content = Some(many);
        advance(&mut content, &requests);
        assert_eq!(content.unwrap().sets[STICKY].1.len(), 1);
    }

    /// A table with chains of these timeouts, the last of which a way has.
    fn everything_with(timeouts: std::ops::RangeInclusive<u32>) -> TableContent {
        let config = Config::default();
        let last = *timeouts.end();
        let table = table(Some(last));
        let ways = Ways::new(&table, &NodeFacts::default());
        let mut content = desire(Family::V4, &ways, &config, &table.node, None).content;
        let (chain, rules) = content.chains[&*remember_chain(last)].clone();
        for seconds in timeouts {
            let name = remember_chain(seconds);
            let mut chain = chain.clone();
            chain.name = Arc::clone(&name);
            content.chains.insert(name, (chain, rules.clone()));
        }
        content
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Rules of a family, and the sets that they match: made for the records that need them.

use portolan_model::Family;

use super::{Builder, Desired};
use crate::config::RulesMode;
use crate::{KernelState, Names, SetName, rules};

impl Builder<'_> {
    /// Adds the rules of a family, or leaves their sets out if nothing needs them.
    pub(super) fn make_rules(&mut self, family: Family, observed: &KernelState) {
        let config = self.config;
        if self.needs_rules(family, observed) {
            let mut rules = rules(family, config, &self.table.node);
            if !self.needs_clamp(family, observed) {
                rules = rules.without_clamp();
                let name = config.names.set(SetName::Remote, family);
                self.desired.state.sets.remove(&name);
            }
            self.desired.state.rules.insert(family, rules);
            return;
        }
        for set in SetName::of_rules() {
            let name = config.names.set(set, family);
            self.desired.state.sets.remove(&name);
        }
    }

    /// The rule about imports comes with the first import. In the kernel it stays, with an empty set; without
    /// `--clamp-remote-mss` with an empty chain.
    fn needs_clamp(&self, family: Family, observed: &KernelState) -> bool {
        let name = self.config.names.set(SetName::Remote, family);
        let set = self.desired.state.sets.get(&name);
        set.is_some_and(|set| !set.entries.is_empty()) || observed.sets.contains_key(&name)
    }

    /// Rules that are in the kernel stay, and with them their sets: a set that the plan leaves out would keep its
    /// entries, and the rules would match them.
    fn needs_rules(&self, family: Family, observed: &KernelState) -> bool {
        let names = &self.config.names;
        let has_entries = |set: SetName| {
            let set = self.desired.state.sets.get(&names.set(set, family));
            set.is_some_and(|set| !set.entries.is_empty())
        };
        self.config.rules_mode == RulesMode::Always
            || self.kubernetes.contains(family)
            || observed.has_rules_of(names, family)
            || SetName::of_rules().any(has_entries)
    }
}

impl KernelState {
    /// Returns `true` if the kernel has the sets of our rules, and so most likely the rules.
    fn has_rules_of(&self, names: &Names, family: Family) -> bool {
        // No other program has a set of this name, not even a kube-proxy.
        let only_ours = names.set(SetName::ShortCircuit, family);
        self.sets.contains_key(&only_ours)
    }
}

impl Desired {
    /// Returns `true` if a part of a desired state has entries for sets that this one leaves out.
    pub(super) fn lacks_sets_of(&self, part: &Self) -> bool {
        let mut sets = part.state.sets.iter();
        sets.any(|(name, set)| !set.entries.is_empty() && !self.state.sets.contains_key(name))
    }
}

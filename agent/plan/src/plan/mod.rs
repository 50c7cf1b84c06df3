// SPDX-License-Identifier: Apache-2.0

//! Steps from the observed to the desired state.

mod servers;
mod sets;

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::{Family, FrontendAddress};

use crate::{Config, Desired, KernelState, Step, Touched};

/// Returns the ordered steps from `observed` to `desired`; empty if both are equal.
///
/// Dependencies are added first: sets, entries, rules, routes, virtual servers by mark with their real
/// servers, the entries that give packets these marks, the entries that drop packets, virtual servers by
/// address with their real servers. Removals follow all additions, in reverse order. Therefore
///
/// * no packet is forwarded un-masqueraded, or gets a mark without a virtual server;
/// * a frontend with the Local policy drops outside packets before its last local destination is
///   removed and until its first one is added, but never short-circuited ones.
///
/// Foreign objects are left untouched: only virtual servers in the ownership record and sets with our
/// names change. Virtual servers of excluded networks are never deleted, nor is anything of a family
/// that is not served.
///
/// Of the real servers of one virtual server, additions and larger weights come before smaller weights, and
/// removals last: new connections find a real server at every moment if they do before and after.
///
/// A TCP real server that is no longer desired gets weight 0; the reconciler deletes it when its
/// connections have ended. UDP and SCTP real servers are deleted at once, as kube-proxy does, and so are those
/// of the scheduler `dh`, which with weight 0 would refuse their clients.
#[must_use]
pub fn plan(desired: &Desired, observed: &KernelState, config: &Config) -> Vec<Step> {
    Planner::new(desired, observed, config).finish(|_| true)
}

/// Like [`plan`], for a table that may be older than the kernel's state. What the table does not know stays, and
/// such real servers keep their weight. Removed is only what the table has and this host decides about:
///
/// * backends and sorry servers of load balancers, which their health takes out;
/// * virtual addresses of load balancers, which a director on standby gives up.
#[must_use]
pub fn plan_additions(desired: &Desired, observed: &KernelState, config: &Config) -> Vec<Step> {
    Planner::new(desired, observed, config).finish(|removal| removal.of == Of::Table)
}

/// Like [`plan`], limited to touched objects, at a cost proportional to their number. All other objects
/// must be equal in both states.
#[must_use]
pub fn plan_touched(
    desired: &Desired,
    observed: &KernelState,
    config: &Config,
    touched: &Touched,
) -> Vec<Step> {
    let records = touched.servers.iter();
    let records = records.filter_map(|key| Some((*key, desired.records.get(key)?.clone())));
    let part = Desired {
        state: touched.part_of(&desired.state, &desired.state),
        records: records.collect(),
        health: desired.health.clone(),
        ..Desired::default()
    };
    // With the desired headers: sizes of sets are not compared here.
    let observed = touched.part_of(observed, &desired.state);
    plan(&part, &observed, config)
}

struct Planner<'a> {
    config: &'a Config,
    additions: Vec<Step>,
    /// In the order of additions; reversed at the end.
    removals: Vec<Removal>,
}

/// A step that removes something from the kernel.
struct Removal {
    step: Step,
    of: Of,
}

/// Origin of a removed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Something that the table has, and that is out by a decision of this host.
    Table,
    /// Something that the table does not have.
    Kernel,
}

impl<'a> Planner<'a> {
    fn new(desired: &Desired, observed: &KernelState, config: &'a Config) -> Self {
        let mut planner = Self {
            config,
            additions: Vec::new(),
            removals: Vec::new(),
        };
        planner.sets(&desired.state, observed);
        planner.rules(&desired.state, observed);
        planner.routes(desired, observed);
        planner.reserve(&desired.state, observed);
        planner.virtual_servers(desired, observed, true);
        planner.late_entries(&desired.state, observed);
        planner.virtual_servers(desired, observed, false);
        planner
    }

    /// Reserves memory for filling an empty kernel: growing the list step by step would copy it many times.
    fn reserve(&mut self, desired: &KernelState, observed: &KernelState) {
        if observed.virtual_servers.is_empty() {
            self.additions.reserve(2 * desired.virtual_servers.len());
        }
    }

    fn remove(&mut self, of: Of, step: Step) {
        self.removals.push(Removal { step, of });
    }

    /// The additions, then those removals that are taken.
    fn finish(self, is_taken: impl Fn(&Removal) -> bool) -> Vec<Step> {
        let mut steps = self.additions;
        let removals = self.removals.into_iter().rev();
        let taken = removals.filter(|removal| is_taken(removal));
        steps.extend(taken.map(|removal| removal.step));
        steps
    }

    fn rules(&mut self, desired: &KernelState, observed: &KernelState) {
        for (family, rules) in &desired.rules {
            if observed.rules.get(family) != Some(rules) {
                self.additions.push(Step::WriteRules {
                    family: *family,
                    rules: Box::new(rules.clone()),
                });
            }
        }
    }

    fn routes(&mut self, desired: &Desired, observed: &KernelState) {
        let given_up = self.given_up(desired);
        let desired = &desired.state;
        for (vip, source) in &desired.routes {
            let (vip, source) = (*vip, *source);
            match observed.routes.get(&vip) {
                None => self.additions.push(Step::AddRoute { vip, source }),
                Some(before) if *before != source => {
                    self.additions.push(Step::SetRoute { vip, source });
                }
                Some(_) => {}
            }
        }
        for vip in observed.routes.keys() {
            let is_served = self.config.families.contains(&Family::of(*vip));
            if is_served && !desired.routes.contains_key(vip) {
                let of = match given_up.contains(vip) {
                    true => Of::Table,
                    false => Of::Kernel,
                };
                self.remove(of, Step::DelRoute { vip: *vip });
            }
        }
    }

    /// The virtual addresses of load balancers that this host leaves to another one.
    fn given_up(&self, desired: &Desired) -> BTreeSet<IpAddr> {
        if self.config.binds_balancers {
            return BTreeSet::new();
        }
        let records = desired.records.values();
        let balanced = records.filter(|record| record.balancing.is_some());
        let frontends = balanced.flat_map(|record| &record.frontends);
        let vips = frontends.filter_map(|frontend| match frontend.address {
            FrontendAddress::Vip(vip) => Some(vip),
            _ => None,
        });
        vips.collect()
    }
}

#[cfg(test)]
mod tests;

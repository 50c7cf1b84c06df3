//! The steps from what the kernel holds to what it should hold.

mod servers;
mod sets;

use portolan_model::Family;

use crate::{Config, Desired, KernelState, Step, Touched};

/// The steps, in order, from `observed` to `desired`; empty if there is nothing to do.
///
/// Additions go from what packets need to what leads them there: sets, entries, rules, routes,
/// virtual servers by mark with their real servers, the entries that give packets these marks, those
/// that drop packets, virtual servers by address with their real servers. Removals go the other way
/// round and come after all additions. So
///
/// * no packet is forwarded un-masqueraded, or gets a mark that leads nowhere;
/// * a way in drops what comes from outside before its last local destination goes, and until its
///   first one is there, but never what is short-circuited.
///
/// What is not ours is not touched: of the virtual servers only those that we own, of
/// the sets only those that we name. Virtual servers of excluded networks are never deleted, and nothing
/// of a family that is not served.
///
/// A TCP real server that is no longer wanted gets weight 0 and stays: whoever watches its
/// connections deletes it when they have ended. UDP and SCTP ones go at once, as upstream does.
#[must_use]
pub fn plan(desired: &Desired, observed: &KernelState, config: &Config) -> Vec<Step> {
    Planner::new(desired, observed, config).finish()
}

/// As [`plan`], without removals: what is there and not desired stays as it is, and no real server's
/// weight becomes 0 for not being desired.
#[must_use]
pub fn plan_additions(desired: &Desired, observed: &KernelState, config: &Config) -> Vec<Step> {
    Planner::new(desired, observed, config).additions
}

/// As [`plan`], as far as what was touched goes: what it costs depends on that alone. What the
/// kernel holds must have been equal to the desired state before it was touched.
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
        ..Desired::default()
    };
    // With the headers that are desired: a set's size is nothing that is touched.
    let observed = touched.part_of(observed, &desired.state);
    plan(&part, &observed, config)
}

struct Planner<'a> {
    config: &'a Config,
    additions: Vec<Step>,
    /// In the order of additions; turned round at the end.
    removals: Vec<Step>,
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
        planner.routes(&desired.state, observed);
        planner.reserve(&desired.state, observed);
        planner.virtual_servers(desired, observed, true);
        planner.late_entries(&desired.state, observed);
        planner.virtual_servers(desired, observed, false);
        planner
    }

    /// Makes room for what it takes to fill an empty kernel: then a list that grows by and by would
    /// be copied many times.
    fn reserve(&mut self, desired: &KernelState, observed: &KernelState) {
        if observed.virtual_servers.is_empty() {
            self.additions.reserve(2 * desired.virtual_servers.len());
        }
    }

    fn finish(self) -> Vec<Step> {
        let mut steps = self.additions;
        steps.extend(self.removals.into_iter().rev());
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

    fn routes(&mut self, desired: &KernelState, observed: &KernelState) {
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
                self.removals.push(Step::DelRoute { vip: *vip });
            }
        }
    }
}

#[cfg(test)]
mod tests;

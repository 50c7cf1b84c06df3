// SPDX-License-Identifier: Apache-2.0

//! One load balancer: quorum, the floor, the sorry server, and the weights.

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_model::check::{HealthPolicy, OnFailure};

use crate::backend::Machine;
use crate::weight;
use crate::{
    Administrative, Backend, BackendStatus, Change, LoadBalancer, Outcome, Presence, SavedBalancer,
    State, Verdict, Verdicts,
};

/// The health of one load balancer.
#[derive(Debug)]
pub struct Balancer {
    wanted: Arc<LoadBalancer>,
    /// Exactly the backends of `wanted`.
    machines: BTreeMap<SocketAddr, Machine>,
    overrides: BTreeMap<SocketAddr, Administrative>,
    /// `None` until it is decided for the first time.
    quorum: Option<bool>,
    /// Loss of the quorum by results, not for want of them, at the last decision.
    is_lost: bool,
}

/// Effect of one outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The change of state, if there was one.
    pub change: Option<Change>,
    /// Whether verdicts may be others now.
    pub is_news: bool,
    /// The time until the next probe, without jitter.
    pub next: Duration,
}

impl Balancer {
    /// A load balancer that has just become known, with its state of the last run if that is usable.
    #[must_use]
    pub fn new<K>(
        wanted: Arc<LoadBalancer>,
        saved: Option<&SavedBalancer<K>>,
        now: Duration,
    ) -> Self {
        let backends = saved.map_or(&[][..], |saved| &saved.backends);
        let machine = |(address, backend): (&SocketAddr, &Backend)| {
            let saved = backends.iter().find(|each| each.address == *address);
            (*address, Machine::new(backend, &wanted.policy, saved, now))
        };
        let machines = wanted.backends.iter().map(machine).collect();
        Self {
            wanted,
            machines,
            overrides: BTreeMap::new(),
            quorum: saved.and_then(|saved| saved.quorum),
            is_lost: saved.is_some_and(|saved| saved.is_lost),
        }
    }

    /// The load balancer that is checked.
    #[must_use]
    pub fn wanted(&self) -> &Arc<LoadBalancer> {
        &self.wanted
    }

    /// Takes another configuration, and gives the changes of state. Backends that stay keep their
    /// states, overrides included.
    pub fn update(
        &mut self,
        wanted: Arc<LoadBalancer>,
        now: Duration,
    ) -> Vec<(SocketAddr, Change)> {
        self.machines
            .retain(|address, _| wanted.backends.contains_key(address));
        let mut changes = Vec::new();
        for (address, backend) in &wanted.backends {
            let Some(machine) = self.machines.get_mut(address) else {
                let new = Machine::new(backend, &wanted.policy, None, now);
                self.machines.insert(*address, new);
                continue;
            };
            let change = machine.update(backend, &wanted.policy, now);
            changes.extend(change.map(|change| (*address, change)));
        }
        self.wanted = wanted;
        changes
    }

    /// Sets the state of a backend against configuration and checks' words, or no more. An override
    /// stays for a backend that goes and comes back.
    pub fn set_override(&mut self, backend: SocketAddr, state: Option<Administrative>) {
        match state {
            Some(state) => self.overrides.insert(backend, state),
            None => self.overrides.remove(&backend),
        };
    }

    /// Takes the outcome of a probe of a backend by one of its checks, counted from 0; `None` if the
    /// load balancer has no such check any more.
    pub fn take(
        &mut self,
        backend: SocketAddr,
        check: usize,
        outcome: &Outcome,
        now: Duration,
    ) -> Option<Told> {
        let machine = self.machines.get_mut(&backend)?;
        machine.next_probe(check)?;
        let configured = self.wanted.backends.get(&backend)?.weight;
        let wishes = |machine: &Machine| (machine.dynamic(configured), machine.administrative());
        let before = wishes(machine);
        let change = machine.take(check, outcome, &self.wanted.policy, now);
        let is_news = change.is_some() || wishes(machine) != before;
        let next = machine.next_probe(check)?;
        Some(Told {
            change,
            is_news,
            next,
        })
    }

    /// Ends ramps whose time is over, and gives the changes of state.
    pub fn tick(&mut self, now: Duration) -> Vec<(SocketAddr, Change)> {
        let policy = self.wanted.policy;
        let tick = |(address, machine): (&SocketAddr, &mut Machine)| {
            machine.tick(&policy, now).map(|change| (*address, change))
        };
        self.machines.iter_mut().filter_map(tick).collect()
    }

    /// When verdicts may change by time alone; `None` for never.
    #[must_use]
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let next = |machine: &Machine| machine.next_tick(&self.wanted.policy, now);
        self.machines.values().filter_map(next).min()
    }

    /// The form to be saved.
    pub fn save<K>(&self, key: K) -> SavedBalancer<K> {
        let backends = self.machines.iter();
        SavedBalancer {
            key,
            quorum: self.quorum,
            is_lost: self.is_lost,
            backends: backends
                .map(|(address, machine)| machine.save(*address))
                .collect(),
        }
    }

    /// The verdicts of now. Decides quorum.
    pub fn verdicts(&mut self, now: Duration) -> Verdicts {
        let views: Vec<View<'_>> = self.views(now).collect();
        let healthy: u64 = views
            .iter()
            .filter(|each| each.is_healthy())
            .map(View::weight)
            .sum();
        let kept = kept(&views, &self.wanted.policy, healthy);
        let probing = views.iter().filter(|each| each.is_probing());
        let possible = healthy + probing.map(View::weight).sum::<u64>();
        let quorum = decide_quorum(self.quorum, &self.wanted.policy, healthy);
        // From now on it is gained as one that is not there.
        let can_be_gained = decide_quorum(Some(false), &self.wanted.policy, possible);
        // A quorum that is lost stays so until it is gained.
        let is_quorum_open = !quorum && !self.is_lost && can_be_gained;
        let sorry = self.wanted.has_sorry_server && !quorum && !is_quorum_open;
        let all = self.wanted.backends.values().map(|each| each.weight);
        let factor = weight::factor(self.wanted.policy.slow_start, all.max().unwrap_or(0));
        let mut verdicts = Verdicts {
            sorry,
            quorum,
            is_quorum_open,
            healthy_weight: healthy,
            ..Verdicts::default()
        };
        for view in &views {
            let is_kept = kept.contains(&view.address);
            let mut verdict = view.verdict(&self.wanted.policy, is_kept, factor);
            if sorry {
                verdict.weight = 0;
            }
            verdicts.backends.insert(view.address, verdict);
            verdicts.states.insert(view.address, view.status(is_kept));
        }
        self.quorum = Some(quorum);
        self.is_lost = !quorum && !is_quorum_open;
        verdicts
    }

    fn views(&self, now: Duration) -> impl Iterator<Item = View<'_>> {
        let pairs = self.wanted.backends.iter().zip(self.machines.values());
        pairs.map(move |((address, backend), machine)| {
            let asked = backend.administrative.max(machine.administrative());
            let commanded = self.overrides.get(address).copied();
            let administrative = commanded.unwrap_or(asked);
            View {
                address: *address,
                backend,
                machine,
                administrative,
                commanded,
                share: machine.share(&self.wanted.policy, now),
            }
        })
    }
}

/// One backend with all that decides about it.
struct View<'a> {
    address: SocketAddr,
    backend: &'a Backend,
    machine: &'a Machine,
    administrative: Administrative,
    commanded: Option<Administrative>,
    share: u32,
}

impl View<'_> {
    /// Its configured weight.
    fn weight(&self) -> u64 {
        u64::from(self.backend.weight)
    }

    /// Returns `true` if it takes connections because it is up. One that asks for weight 0 takes
    /// none.
    fn is_healthy(&self) -> bool {
        self.is_enabled() && self.machine.state.is_up() && self.kernel_weight(1) > 0
    }

    /// Returns `true` if it takes connections as soon as its checks pass.
    fn is_probing(&self) -> bool {
        self.is_enabled() && self.machine.state == State::Probing
    }

    fn is_enabled(&self) -> bool {
        self.administrative == Administrative::Enabled
    }

    fn kernel_weight(&self, factor: u32) -> u16 {
        let dynamic = self.machine.dynamic(self.backend.weight);
        weight::serving(self.backend.weight, dynamic, self.share, factor)
    }

    fn verdict(&self, policy: &HealthPolicy, is_kept: bool, factor: u32) -> Verdict {
        let (weight, presence) = match (self.administrative, self.machine.state) {
            (Administrative::Drain | Administrative::Disabled, _) => (0, Presence::Leaving),
            (_, State::Up | State::Ramping) => (self.kernel_weight(factor), Presence::Present),
            (_, State::Down) if is_kept => (self.kernel_weight(factor), Presence::Present),
            (_, State::Down | State::Probing) => match policy.on_failure {
                OnFailure::Quiesce => (0, Presence::Present),
                OnFailure::Remove => (0, Presence::Absent),
            },
        };
        Verdict { weight, presence }
    }

    fn status(&self, is_kept: bool) -> BackendStatus {
        BackendStatus {
            state: self.machine.state,
            since: self.machine.since,
            administrative: self.administrative,
            commanded: self.commanded,
            said: self.machine.administrative(),
            reason: self.machine.reason.clone(),
            is_kept,
            changes: self.machine.changes,
            flap_factor: self.machine.factor,
        }
    }
}

/// The failing backends that keep their weight because too little is healthy: those that failed last,
/// as many as it takes to reach the share.
fn kept(views: &[View<'_>], policy: &HealthPolicy, healthy: u64) -> BTreeSet<SocketAddr> {
    let enabled = views.iter().filter(|each| each.is_enabled());
    let total: u64 = enabled.clone().map(View::weight).sum();
    let needed = total * u64::from(policy.minimum_healthy_percent.min(100));
    let mut down: Vec<_> = enabled
        .filter(|each| each.machine.state == State::Down)
        .collect();
    down.sort_by_key(|each| (Reverse(each.machine.since), each.address));
    let mut serving = healthy;
    let below = |view: &&View<'_>| {
        let is_below = serving * 100 < needed;
        serving += view.weight();
        is_below
    };
    let kept = down.into_iter().take_while(below);
    kept.map(|each| each.address).collect()
}

/// Gained at `quorum + hysteresis`, lost below `quorum - hysteresis`. The first decision knows no
/// hysteresis.
fn decide_quorum(before: Option<bool>, policy: &HealthPolicy, healthy: u64) -> bool {
    let (quorum, hysteresis) = (
        u64::from(policy.quorum.max(1)),
        u64::from(policy.hysteresis),
    );
    match before {
        None => healthy >= quorum,
        Some(false) => healthy >= quorum + hysteresis,
        Some(true) => healthy >= quorum.saturating_sub(hysteresis).max(1),
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Settings of a director's host: they follow its `Director` object and the virtual addresses.
//!
//! Settings that go, go before virtual servers change; settings that come, come after it. So a director that goes to
//! standby gives its addresses up first, and no address is announced before its virtual servers are there.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use portolan_dataplane::{Dataplane, HostPlane};
use portolan_model::ipvs::{ForwardingMethod, VirtualServerKey};
use portolan_model::{
    Family, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record,
};
use portolan_plan::host::{
    Host, HostDesired, HostState, HostStep, Owned, SYNC_PORTS, Vips, plan_host,
};
use portolan_plan::{Config, Desired, KernelState};

use crate::Reconciler;

/// The host as it was asked for and made.
#[derive(Debug, Default)]
pub(crate) struct HostKeeper {
    /// Desired settings; `None` while they are unknown, and then nothing changes.
    host: Option<Arc<Host>>,
    owned: Owned,
    /// Virtual addresses that the host answered for at the last time.
    bound: BTreeSet<IpAddr>,
    /// Set once a host that asks for nothing was made so. Changes of the table then cost nothing here.
    is_settled: bool,
    /// Set once the host was looked at with a load balancer whose answers it forwards by IPv6.
    knows_answers: bool,
}

/// Outcome of a host's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostOutcome {
    /// Number of changed settings.
    pub changed: usize,
    /// Errors in the settings, and of changes that failed. Everything is tried again.
    pub errors: Vec<String>,
    /// Warnings for an operator. They are no errors: a second attempt would not change them.
    pub warnings: Vec<String>,
    /// Virtual addresses that the host newly answers for: neighbours are to be told.
    pub new: BTreeSet<IpAddr>,
    /// The kernel's settings afterwards; `None` if they were not looked at.
    pub state: Option<HostState>,
}

/// Steps of a host that would be taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPreview {
    /// State of the kernel.
    pub observed: HostState,
    /// The steps, in order.
    pub steps: Vec<HostStep>,
    /// Wrong settings that would not be changed.
    pub problems: Vec<String>,
    /// Warnings for an operator, which are no errors.
    pub warnings: Vec<String>,
}

/// Outcome of the settings of a host without IPVS: they are about IPVS, and are refused.
#[must_use]
pub fn refused_host(host: Option<&Host>) -> HostOutcome {
    let asks = host.is_some_and(Host::asks_for_anything);
    let error = "the settings of the host's Director need --dataplane ipvs".to_owned();
    HostOutcome {
        errors: asks.then_some(error).into_iter().collect(),
        ..HostOutcome::default()
    }
}

impl<D: Dataplane + HostPlane> Reconciler<D> {
    /// Sets what the host's `Director` asks for, and what earlier runs have made.
    pub fn set_host(&mut self, host: Option<Arc<Host>>, owned: Owned) {
        if let Some(host) = &host {
            let binds = host.answers();
            let binding = host.binding.unwrap_or(self.config.vip_binding);
            if (binds, binding) != (self.config.binds_balancers, self.config.vip_binding) {
                (self.config.binds_balancers, self.config.vip_binding) = (binds, binding);
                self.dataplane.bind_by(binding);
                self.forget();
            }
            self.ask_for_marks(host.marks);
        }
        let interface =
            |host: &Option<Arc<Host>>| host.as_ref().and_then(|it| it.interface.clone());
        if interface(&self.host.host) != interface(&host) {
            // Clients have to learn of the interface that answers now.
            self.host.bound.clear();
        }
        (self.host.host, self.host.owned) = (host, owned);
        (self.host.is_settled, self.host.knows_answers) = (false, false);
    }

    /// Returns the state that is ours once the settings that the host asks for are in the kernel, together with the
    /// state that is ours already. To be saved before [`Self::finish_host`].
    #[must_use]
    pub fn owned_then(&self, table: &NodeTable) -> Owned {
        match self.asking() {
            Some(host) => {
                let desired = self.desired_host(host, table);
                self.host.owned.with(&desired).of(host)
            }
            None => self.host.owned.clone(),
        }
    }

    /// Ends what the host no longer does, before virtual servers change.
    pub async fn begin_host(&mut self) -> HostOutcome {
        let Some(host) = self.asking().cloned() else {
            return HostOutcome::default();
        };
        // The addresses are not known yet: only what does not depend on them ends now.
        let desired = HostDesired::new(&host, &Vips::default());
        let is_final = |step: &HostStep| match step {
            HostStep::DelDaemon { role } => !desired.daemons.contains_key(role),
            HostStep::DelNeighbour(_) | HostStep::Withdraw { .. } => !host.is_active,
            _ => false,
        };
        let (steps, mut outcome) = self.planned(&desired).await;
        // Errors and problems are told at the end.
        outcome.errors.clear();
        let steps: Vec<_> = steps.into_iter().filter(is_final).collect();
        self.take(&steps, outcome).await
    }

    /// Makes the host's settings equal to what is asked for.
    pub async fn finish_host(&mut self, table: &NodeTable) -> HostOutcome {
        let Some(host) = self.asking().cloned() else {
            return HostOutcome::default();
        };
        let desired = self.desired_host(&host, table);
        self.host.owned = self.host.owned.with(&desired).of(&host);
        let (steps, outcome) = self.planned(&desired).await;
        let (steps, outcome) = self.set_threads(&desired, steps, outcome).await;
        let mut outcome = self.take(&steps, outcome).await;
        if outcome.errors.is_empty() {
            self.host.owned = Owned::only(&desired).of(&host);
            self.host.is_settled = !host.asks_for_anything();
            self.host.knows_answers = self.desired.read(forwards);
        }
        let bound = match host.answers() {
            true => self.bound(),
            false => BTreeSet::new(),
        };
        outcome.new = bound.difference(&self.host.bound).copied().collect();
        self.host.bound = bound;
        outcome
    }

    /// Settings asked for, if there is anything to do about them.
    fn asking(&self) -> Option<&Arc<Host>> {
        let (is_settled, knows_answers) = (self.host.is_settled, self.host.knows_answers);
        // Ways and answers to forward may be new since.
        let is_new =
            |desired: &Desired| !desired.ways.is_empty() || !knows_answers && forwards(desired);
        let has_work = || !is_settled || self.desired.read(is_new);
        self.host.host.as_ref().filter(|_| has_work())
    }

    /// Returns the state that is ours now.
    #[must_use]
    pub fn owned(&self) -> &Owned {
        &self.host.owned
    }

    /// The steps that [`Self::finish_host`] would take for a desired state.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn preview_host(
        &mut self,
        desired: &Desired,
        table: &NodeTable,
    ) -> Result<HostPreview, portolan_dataplane::DataplaneError> {
        let Some(host) = self.host.host.clone() else {
            return Ok(HostPreview::default());
        };
        let desired = HostDesired::new(&host, &vips_of(desired, table, &self.config));
        let owned = self.host.owned.with(&desired);
        let observed = self.dataplane.observe_host(&desired, &owned).await?;
        let (steps, problems) = plan_host(&desired, &observed, &owned);
        Ok(HostPreview {
            warnings: portolan_plan::host::warnings(&desired, &observed, &steps),
            observed,
            steps,
            problems,
        })
    }

    fn desired_host(&self, host: &Host, table: &NodeTable) -> HostDesired {
        let vips = self
            .desired
            .read(|desired| vips_of(desired, table, &self.config));
        HostDesired::new(host, &vips)
    }

    async fn planned(&mut self, desired: &HostDesired) -> (Vec<HostStep>, HostOutcome) {
        let owned = self.host.owned.clone();
        match self.dataplane.observe_host(desired, &owned).await {
            Ok(observed) => {
                let (steps, errors) = plan_host(desired, &observed, &owned);
                let outcome = HostOutcome {
                    errors,
                    warnings: portolan_plan::host::warnings(desired, &observed, &steps),
                    state: Some(observed),
                    ..HostOutcome::default()
                };
                (steps, outcome)
            }
            Err(error) => {
                let outcome = HostOutcome {
                    errors: vec![format!("settings of the host cannot be read: {error}")],
                    ..HostOutcome::default()
                };
                (Vec::new(), outcome)
            }
        }
    }

    /// Writes the number of threads of the sync daemons, if that is among the steps, and returns the steps that are
    /// left. A running daemon keeps its threads: it is started again for a new number. If the number cannot be
    /// written, a restart would change nothing, and would come again with each attempt.
    async fn set_threads(
        &mut self,
        desired: &HostDesired,
        mut steps: Vec<HostStep>,
        outcome: HostOutcome,
    ) -> (Vec<HostStep>, HostOutcome) {
        let is_threads = |step: &HostStep| matches!(step, HostStep::SetSysctl { name, .. } if name == SYNC_PORTS);
        let Some(at) = steps.iter().position(is_threads) else {
            return (steps, outcome);
        };
        let set = steps.remove(at);
        let outcome = self.take(&[set], outcome).await;
        if outcome.changed == 0
            && let Some(observed) = &outcome.state
        {
            let mut others = desired.clone();
            others.sysctls.remove(SYNC_PORTS);
            // The outcome has the problems already.
            (steps, _) = plan_host(&others, observed, &self.host.owned);
        }
        (steps, outcome)
    }

    async fn take(&mut self, steps: &[HostStep], mut outcome: HostOutcome) -> HostOutcome {
        if steps.is_empty() {
            return outcome;
        }
        for step in steps {
            tracing::debug!(%step, "step");
        }
        let failed = self.dataplane.apply_host(steps).await;
        outcome.changed += steps.len() - failed.len();
        if let Some(state) = &mut outcome.state {
            let is_done = |step: &&HostStep| failed.iter().all(|(other, _)| other != *step);
            steps
                .iter()
                .filter(is_done)
                .for_each(|step| state.advance(step));
        }
        let texts = failed
            .iter()
            .map(|(step, error)| format!("{step}: {error}"));
        outcome.errors.extend(texts);
        outcome
    }

    /// Virtual addresses of load balancers that are bound in the kernel as far as that is known.
    fn bound(&mut self) -> BTreeSet<IpAddr> {
        self.merge_pending();
        let there = self.observed.as_ref().map(|observed| &observed.routes);
        self.desired.read(|desired| {
            let wanted = addresses(desired, |_, _| true);
            let is_there = |ip: &IpAddr| there.is_some_and(|there| there.contains_key(ip));
            wanted.into_iter().filter(is_there).collect()
        })
    }
}

/// The virtual addresses of load balancers: those that are bound, and those that serve.
fn vips_of(desired: &Desired, table: &NodeTable, config: &Config) -> Vips {
    let routes = &desired.state.routes;
    let bound = match config.binds_balancers {
        true => addresses(desired, |_, address| routes.contains_key(&address)),
        false => BTreeSet::new(),
    };
    let serves = |key: &portolan_model::ipvs::VirtualServerKey| {
        let Some(record) = desired.records.get(key) else {
            return false;
        };
        let health = table.health.get(&record.key);
        let has_quorum =
            health.is_none_or(|health| health.is_sorry == Some(true) || !health.lacks_quorum);
        has_quorum && takes_connections(&desired.state, key)
    };
    // Answers of backends that keep the packet's addresses come from the virtual address.
    let comes_back = |to: &portolan_plan::WayTo| {
        to.family == Family::V4 && to.forwarding != ForwardingMethod::Masquerade
    };
    Vips {
        bound,
        served: addresses(desired, |key, _| serves(key)),
        answer: desired.ways.keys().any(comes_back),
        forwards: forwards(desired),
    }
}

/// Returns `true` if a load balancer with an IPv6 address has a server behind masquerading: the host forwards its
/// answers. With source NAT it does too: conntrack puts the client's address back before the packet is routed.
fn forwards(desired: &Desired) -> bool {
    // Only those of IPv6 are looked at: a settled host asks at each change of the table.
    let by_address = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| {
        let first = VirtualServerKey::new(protocol, Ipv6Addr::UNSPECIFIED.into(), 0);
        let after = desired.records.range(first..);
        after.take_while(move |(key, _)| key.protocol() == Some(protocol))
    });
    let first = VirtualServerKey::Mark {
        family: Family::V6,
        mark: 0,
    };
    let by_mark = desired.records.range(first..);
    let mut of_v6 = by_address.into_iter().flatten().chain(by_mark);
    of_v6.any(|(_, record)| is_masqueraded_v6(record))
}

/// Returns `true` if a load balancer has an IPv6 backend or sorry server behind masquerading.
fn is_masqueraded_v6(record: &Record) -> bool {
    let Some(balancing) = &record.balancing else {
        return false;
    };
    let is_nat = |method: ForwardingMethod| method == ForwardingMethod::Masquerade;
    let mut backends = record.destinations.iter().enumerate();
    let backend = backends.any(|(index, destination)| {
        let profile = balancing.profile(index);
        destination.address.is_ipv6() && profile.is_some_and(|profile| is_nat(profile.forwarding))
    });
    let sorry = balancing.sorry_server.as_ref();
    backend || sorry.is_some_and(|sorry| sorry.address.is_ipv6() && is_nat(sorry.forwarding))
}

/// Addresses of load balancers' virtual servers that are chosen.
fn addresses(
    desired: &Desired,
    is_chosen: impl Fn(&portolan_model::ipvs::VirtualServerKey, IpAddr) -> bool,
) -> BTreeSet<IpAddr> {
    let of_balancers = desired
        .records
        .iter()
        .filter(|(_, record)| record.balancing.is_some());
    let chosen = of_balancers.flat_map(|(key, record)| {
        let own = key.socket().map(|socket| socket.ip());
        // Ranges of ports have one virtual server for all addresses of a family.
        let is_ranged = |frontend: &&Frontend| {
            let is_family = frontend.family() == key.family();
            key.mark().is_some() && frontend.kind == FrontendKind::BalancedRanges && is_family
        };
        let ranged = record.frontends.iter().filter(is_ranged);
        let ranged = ranged.filter_map(|frontend| match frontend.address {
            FrontendAddress::Vip(address) => Some(address),
            _ => None,
        });
        let all = own.into_iter().chain(ranged);
        all.filter(|address| is_chosen(key, *address))
            .collect::<Vec<_>>()
    });
    chosen.collect()
}

/// Returns `true` if a virtual server has a real server with a weight.
fn takes_connections(state: &KernelState, key: &portolan_model::ipvs::VirtualServerKey) -> bool {
    let server = state.virtual_servers.get(key);
    server.is_some_and(|server| server.real_servers.values().any(|real| real.weight > 0))
}

#[cfg(test)]
mod tests;

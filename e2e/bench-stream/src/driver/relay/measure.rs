// SPDX-License-Identifier: Apache-2.0

//! Measurements at a root alone, and at a tree.

use anyhow::Result;
use portolan_e2e::scale::{Costs, TableCosts};

use super::RelayArgs;
use super::tree::Tree;
use crate::driver::child::Client;
use crate::driver::delta::{WARM_UP, changes, leave};
use crate::driver::figures::quantile;
use crate::driver::{Bench, Running};
use crate::server::Kind;

/// Costs of single changes.
pub(super) struct Measured {
    /// Time of each change until the last agent had it, sorted, in nanoseconds.
    pub(super) last_ns: Vec<u64>,
    /// Processor time of the root, in microseconds for each change.
    pub(super) root_us: f64,
    /// Processor time of all relays of the lower tier, in microseconds for each change.
    pub(super) lower_us: f64,
    /// Memory of each agent at its relay, in KiB.
    pub(super) kib: f64,
}

/// Agents at the root itself.
pub(super) struct Direct {
    /// With one agent.
    one: Measured,
    /// With as many as a relay of the lower tier has.
    pub(super) many: Measured,
    /// Processor time of an agent, in nanoseconds for each change.
    agent_ns: u64,
    /// Costs of whole tables.
    pub(super) table: TableCosts,
}

/// Measures agents at the root itself.
pub(super) fn direct(bench: &Bench<'_>, args: &RelayArgs) -> Result<Direct> {
    let mut running = bench.serve(Kind::Ours, &[])?;
    let mut client = bench.agents()?;
    let resident = running.server.usage()?.resident as f64;
    let (one, _, _) = at_root(&mut running, &mut client, args, 1)?;
    leave(&mut running, &mut client, 0)?;
    let (many, agent_ns, intake) = at_root(&mut running, &mut client, args, args.each())?;
    let endpoints = f64::from(args.all_endpoints());
    let empty = bench.serve_small()?.server.usage()?.resident as f64;
    let table = TableCosts {
        empty_bytes: empty,
        endpoint_bytes: (resident - empty) / endpoints,
        stream_bytes: many.kib * 1024.0,
        wire_bytes: intake.down / endpoints,
        send_ns: intake.cpu_us * 1e3 / endpoints,
    };
    // In the reverse order of their dependence.
    drop(client);
    Ok(Direct {
        one,
        many,
        agent_ns,
        table,
    })
}

impl Direct {
    /// The costs of single steps: those of a root from agents at it, those of a relay from a tree with one agent for each
    /// relay.
    pub(super) fn costs(&self, args: &RelayArgs, few: &Measured) -> Costs {
        let ns = |us: f64| (us * 1e3).max(0.0).round() as u64;
        let streams = f64::from(args.each().saturating_sub(1).max(1));
        let send = (self.many.root_us - self.one.root_us) / streams;
        let (work_in_ns, send_ns) = (ns(self.one.root_us - send), ns(send));
        let one = quantile(&self.one.last_ns, 0.5).unwrap_or_default() as u64;
        let hop_ns = one.saturating_sub(work_in_ns + send_ns + self.agent_ns);
        let relay_in_ns = ns(few.lower_us / f64::from(args.lower())).saturating_sub(send_ns);
        let few = quantile(&few.last_ns, 0.5).unwrap_or_default() as u64;
        // The rest of the time of a change through two relays, all of which share two processors.
        let upper = relay_in_ns + u64::from(args.lower_each) * send_ns;
        let lower = (relay_in_ns + send_ns) * u64::from(args.lower()) / 2;
        let known = one + u64::from(args.upper) * send_ns + upper + lower + 2 * hop_ns;
        Costs {
            work_in_ns,
            relay_in_ns,
            relay_wait_ns: few.saturating_sub(known) / 2,
            send_ns,
            agent_ns: self.agent_ns,
            hop_ns,
        }
    }
}

fn at_root(
    running: &mut Running,
    client: &mut Client,
    args: &RelayArgs,
    agents: u32,
) -> Result<(Measured, u64, crate::driver::Intake)> {
    let how = running.fresh(agents);
    let intake = running.take_in(client, how)?;
    let before = client.cpu_ns()?;
    let made = changes(running, client, agents, args.changes)?;
    let messages = u64::from(agents) * u64::from(args.changes + WARM_UP);
    let agent_ns = (client.cpu_ns()? - before) / messages.max(1);
    let measured = Measured {
        root_us: made.cpu_us * f64::from(agents),
        last_ns: made.last_ns,
        lower_us: 0.0,
        kib: intake.kib,
    };
    Ok((measured, agent_ns, intake))
}

/// Measures a tree with this many agents at each relay of the lower tier.
pub(super) fn tree_costs(tree: &mut Tree, args: &RelayArgs, each: u32) -> Result<Measured> {
    let kib = tree.connect(each)?;
    for _ in 0..WARM_UP {
        tree.change()?;
    }
    let (root, lower) = tree.cpu()?;
    let mut last_ns = Vec::new();
    for _ in 0..args.changes {
        last_ns.push(tree.change()?);
    }
    let after = tree.cpu()?;
    last_ns.sort_unstable();
    let us = |ns: u64| ns as f64 / 1e3 / f64::from(args.changes);
    Ok(Measured {
        last_ns,
        root_us: us(after.0 - root),
        lower_us: us(after.1 - lower),
        kib,
    })
}

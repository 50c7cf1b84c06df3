// SPDX-License-Identifier: Apache-2.0

//! The processes of a tree: a root, two tiers of relays, and a process of agents for each relay of the lower tier.

use anyhow::{Context as _, Result};

use super::RelayArgs;
use crate::driver::child::Client;
use crate::driver::{Bench, Running};
use crate::server::Kind;
use crate::words::Connect;

/// A tree. Fields are dropped in their order: agents first, which report the end of a stream as an error.
pub(super) struct Tree {
    leaves: Vec<Leaf>,
    _upper: Vec<Running>,
    pub(super) root: Running,
}

/// A relay of the lower tier with its agents.
pub(super) struct Leaf {
    client: Client,
    pub(super) relay: Running,
    /// The relay's revision that all its agents have.
    revision: u64,
    agents: u32,
}

impl Tree {
    pub(super) fn start(bench: &Bench<'_>, args: &RelayArgs) -> Result<Self> {
        let root = bench.serve(Kind::Ours, &[])?;
        let below = |upstream: u16, number: u32| {
            bench.serve_on(number, Kind::Relay, &[format!("--upstream={upstream}")])
        };
        let mut upper = Vec::new();
        let mut leaves = Vec::new();
        for number in 0..args.upper {
            upper.push(below(root.port, number)?);
        }
        for number in 0..args.lower() {
            let above = &upper[(number % args.upper) as usize];
            leaves.push(Leaf {
                relay: below(above.port, number)?,
                client: bench.agents_on(number + 1)?,
                revision: 0,
                agents: 0,
            });
        }
        Ok(Self {
            leaves,
            _upper: upper,
            root,
        })
    }

    /// Connects this many agents to each relay of the lower tier, in place of those before. Returns the memory for each
    /// at its relay, in KiB.
    pub(super) fn connect(&mut self, each: u32) -> Result<f64> {
        let mut kib = 0.0;
        for leaf in &mut self.leaves {
            kib += leaf.connect(each)?;
        }
        Ok(kib / self.leaves.len() as f64)
    }

    /// Makes one change, and waits until all agents have it. Returns the time that this took, in nanoseconds.
    pub(super) fn change(&mut self) -> Result<u64> {
        let published = self.root.server.change(1)?;
        let mut last = 0;
        for leaf in &mut self.leaves {
            // A relay makes one revision of each change that it is not given another one with.
            leaf.revision += 1;
            let (at_ns, _) = leaf.client.reach(leaf.revision)?;
            last = last.max(at_ns);
        }
        Ok(last.saturating_sub(published.at_ns))
    }

    /// Processor time of the root, and of all relays of the lower tier, in nanoseconds.
    pub(super) fn cpu(&mut self) -> Result<(u64, u64)> {
        let root = self.root.server.usage()?.cpu_ns;
        let mut lower = 0;
        for leaf in &mut self.leaves {
            lower += leaf.relay.server.usage()?.cpu_ns;
        }
        Ok((root, lower))
    }
}

impl Leaf {
    fn connect(&mut self, agents: u32) -> Result<f64> {
        if self.agents > 0 {
            self.client.ask(&crate::words::Order::Leave)?;
            self.relay.server.streams(0)?;
        }
        let how: Connect = self.relay.fresh(agents);
        let intake = self.relay.take_in(&mut self.client, how);
        let intake = intake.context("agents of a relay")?;
        self.agents = agents;
        self.revision = intake.connected.revision;
        Ok(intake.kib)
    }
}

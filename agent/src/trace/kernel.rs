// SPDX-License-Identifier: Apache-2.0

//! Reading of the kernel, and the two ways of a packet.

use portolan_dataplane::nftables::TableContent;
use portolan_dataplane::{
    Dataplane as _, DataplaneError, Kernel, KernelConfig, NftablesKernel, read_usage,
};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::trace::{Difference, Outcome, Packet, Trace};
use portolan_model::{Family, NodeInfo, NodeTable};
use portolan_nftables::trace::{Place, chain_differences};
use portolan_nftables::{TABLE, Ways as ServedWays};
use portolan_plan::{KernelState, NodeFacts, Rules, desire};

use super::{Plane, PlaneKind, Ways};

/// The kernel as a table wants it, and as it was read.
pub(super) enum Sides<'a> {
    /// IPVS, sets, routes and rules.
    Ipvs {
        wanted: Box<KernelState>,
        found: &'a KernelState,
        /// The wanted rules.
        rules: Rules,
    },
    /// The table of the reading's family.
    Nftables {
        wanted: TableContent,
        found: Option<&'a TableContent>,
        /// Differences of chains, which are the same for all packets.
        others: Vec<Difference>,
    },
}

/// The kernel as it was read.
#[derive(Debug)]
pub(super) enum Reading {
    /// IPVS, sets, routes and rules.
    Ipvs(Box<KernelState>),
    /// The table of the packet's family, if there is one.
    Nftables(Option<TableContent>),
}

impl Plane {
    /// Reads the kernel, and facts about the node.
    pub(super) async fn read(
        &self,
        family: Family,
    ) -> Result<(NodeFacts, Reading), DataplaneError> {
        // A look loads no modules.
        let config = KernelConfig {
            load_modules: false,
            ..self.kernel.clone()
        };
        Ok(match self.kind {
            PlaneKind::Ipvs => {
                let mut kernel = Kernel::open(config).await?;
                let state = kernel.observe().await?;
                (kernel.facts().await?, Reading::Ipvs(Box::new(state)))
            }
            PlaneKind::Nftables => {
                let mut kernel = NftablesKernel::open(config)?;
                let (tables, _) = kernel.observe(&[family], TABLE)?;
                let table = tables.into_iter().find_map(|(_, content)| content);
                (kernel.facts().await?, Reading::Nftables(table))
            }
        })
    }

    /// Returns the desired state of a table in the family of the reading, beside the reading.
    pub(super) fn sides<'a>(
        &self,
        table: &NodeTable,
        facts: &NodeFacts,
        reading: &'a Reading,
        family: Family,
    ) -> Sides<'a> {
        let config = &self.config;
        match reading {
            Reading::Ipvs(found) => {
                let wanted = desire(table, facts, config, found).state;
                let rules = wanted.rules.get(&family).cloned();
                let constant = || portolan_plan::rules(family, config, &table.node).without_clamp();
                Sides::Ipvs {
                    rules: rules.unwrap_or_else(constant),
                    wanted: Box::new(wanted),
                    found,
                }
            }
            Reading::Nftables(found) => {
                let served = ServedWays::new(table, facts);
                let (node, found) = (&table.node, found.as_ref());
                let desired = portolan_nftables::desire(family, &served, config, node, found);
                let wanted = desired.content;
                Sides::Nftables {
                    others: chain_differences(&wanted, found),
                    wanted,
                    found,
                }
            }
        }
    }

    /// The way of a packet on both sides.
    pub(super) fn ways(
        &self,
        node: &NodeInfo,
        facts: &NodeFacts,
        sides: &Sides<'_>,
        packet: &Packet,
    ) -> Ways {
        match sides {
            Sides::Ipvs {
                wanted,
                found,
                rules,
            } => self.by_ipvs(facts, (wanted, found), rules, packet),
            Sides::Nftables {
                wanted,
                found,
                others,
            } => {
                let place = Place {
                    config: &self.config,
                    node,
                    facts,
                };
                let trace = |content| portolan_nftables::trace::trace(content, place, packet);
                Ways {
                    wanted: trace(Some(wanted)),
                    found: trace(*found),
                    others: others.clone(),
                    notes: Vec::new(),
                    key: None,
                }
            }
        }
    }

    fn by_ipvs(
        &self,
        facts: &NodeFacts,
        (wanted, found): (&KernelState, &KernelState),
        rules: &Rules,
        packet: &Packet,
    ) -> Ways {
        let family = Family::of(packet.destination.ip());
        let trace = |state: &KernelState| portolan_plan::trace::trace(state, rules, facts, packet);
        let (mut others, mut notes) = (Vec::new(), Vec::new());
        // Rules are recognised by the agent's record of what it wrote.
        match (found.rules.get(&family), &self.kernel.rules_record) {
            (Some(found), _) if found == rules => {}
            (None, None) => notes.push("the rules are not compared: there is no record".to_owned()),
            (found, _) => others.push(Difference {
                place: format!("the {family} rules"),
                wanted: "the agent's rules".to_owned(),
                found: match found {
                    Some(_) => "rules of another configuration".to_owned(),
                    None => "other rules, or none".to_owned(),
                },
            }),
        }
        let (wanted, _) = trace(wanted);
        let (found, key) = trace(found);
        Ways {
            wanted,
            found,
            others,
            notes,
            key,
        }
    }
}

/// Adds what IPVS counted of each real server of the kernel's way so far.
pub(super) async fn add_counters(trace: &mut Trace, key: VirtualServerKey) {
    let read = tokio::task::spawn_blocking(move || read_usage(&[key])).await;
    let usage = match read {
        Ok(Ok(usage)) => usage.get(&key).cloned().unwrap_or_default(),
        Ok(Err(error)) => {
            trace.notes.push(format!("no counters: {error}"));
            return;
        }
        // It ends with the agent.
        Err(_) => return,
    };
    if let Outcome::Forwarded { servers, .. } = &mut trace.found.outcome {
        for server in servers {
            let counted = usage.get(&server.address);
            server.connections = counted.map(|usage| usage.total_connections);
        }
    }
}

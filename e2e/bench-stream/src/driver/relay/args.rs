// SPDX-License-Identifier: Apache-2.0

//! Sizes of the tree.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::driver::DriverArgs;
use crate::world::Size;

/// Sizes of the tree. The defaults take some minutes and some GB on two processors.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Services, of one port each
    #[arg(long, env = "PORTOLAN_RELAY_SERVICES", default_value_t = 2_000)]
    services: u32,
    /// Endpoints of each Service
    #[arg(long, env = "PORTOLAN_RELAY_ENDPOINTS", default_value_t = 10)]
    endpoints: u32,
    /// Relays of the upper tier, at the root
    #[arg(long, env = "PORTOLAN_RELAY_UPPER", default_value_t = 2)]
    pub(super) upper: u32,
    /// Relays of the lower tier, at each upper one
    #[arg(long, env = "PORTOLAN_RELAY_LOWER_EACH", default_value_t = 4)]
    pub(super) lower_each: u32,
    /// Agents at all relays of the lower tier together
    #[arg(long, env = "PORTOLAN_RELAY_AGENTS", default_value_t = 40_000)]
    agents: u32,
    /// Changes measured, each after the one before has reached all agents
    #[arg(long, env = "PORTOLAN_RELAY_CHANGES", default_value_t = 100)]
    pub(super) changes: u32,
}

impl RelayArgs {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.lower() > 0, "no relays");
        ensure!(self.each() >= 10, "fewer than ten agents for each relay");
        ensure!(self.changes >= 10, "fewer than ten changes");
        Ok(())
    }

    /// Relays of the lower tier.
    pub(super) fn lower(&self) -> u32 {
        self.upper * self.lower_each
    }

    /// Agents of each relay of the lower tier.
    pub(super) fn each(&self) -> u32 {
        self.agents / self.lower().max(1)
    }

    /// All agents.
    pub(super) fn agents(&self) -> u32 {
        self.each() * self.lower()
    }

    /// Endpoints of all Services.
    pub(super) fn all_endpoints(&self) -> u32 {
        self.services * self.endpoints
    }

    pub(super) fn driver(&self) -> DriverArgs {
        DriverArgs {
            size: Size {
                services: self.services,
                endpoints: self.endpoints,
                // Agents of different relays have the names of the same nodes.
                nodes: (self.each() + 10).max(2 * self.endpoints),
            },
            cpu: 0,
            only: Vec::new(),
            few: self.each(),
            many: self.each(),
            naive: 0,
            changes_few: 0,
            changes_many: 0,
            rate: 0,
            seconds: 0,
            queue_seconds: 0,
            sweep: Vec::new(),
            kubernetes_bytes: PathBuf::new(),
        }
    }
}

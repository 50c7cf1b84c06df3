// SPDX-License-Identifier: Apache-2.0

//! The kernel's nftables, addresses and conntrack, in the network namespace of the calling process.

mod watched;

use portolan_model::Family;
use portolan_netlink::nftables::{
    Changes, CommitError, Key, Nftables, Request, TableContent, Value,
};
use portolan_plan::NodeFacts;

use super::blocking::blocking;
use super::conntrack::LateConntrack;
use super::machine::{kernel_version, missing_admin};
use super::removal::delete_tables;
use super::routes::Routes;
use super::settings::{self, settings};
use super::{KernelConfig, Setting, Tuning};
use crate::{DataplaneError, Flow};
use watched::Watched;

/// Attempts to read tables that another program keeps changing.
const ATTEMPTS: usize = 5;

/// Content of the tables of one name in the kernel, by family, and the generation of all tables.
pub type Observed = (Vec<(Family, Option<TableContent>)>, u32);

/// The kernel as a node without IPVS needs it.
#[derive(Debug)]
pub struct NftablesKernel {
    config: KernelConfig,
    nftables: Nftables,
    routes: Routes,
    /// Notifications of changes; `None` if the kernel gives us none.
    changes: Option<Watched>,
    /// Whether somebody else has changed our tables, or may have, since that was asked last.
    is_disturbed: bool,
    conntrack: LateConntrack,
}

/// The settings that a run without IPVS writes.
#[must_use]
pub fn settings_without_ipvs(tuning: &Tuning) -> Vec<Setting> {
    let is_of_ipvs = |setting: &Setting| setting.name().starts_with("net/ipv4/vs/");
    let all = settings(tuning).into_iter();
    all.filter(|setting| !is_of_ipvs(setting)).collect()
}

impl NftablesKernel {
    /// Opens all sockets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a capability is missing, or a socket cannot be made.
    pub fn open(config: KernelConfig) -> Result<Self, DataplaneError> {
        let missing = missing_admin();
        if !missing.is_empty() {
            return Err(DataplaneError::Capabilities(missing));
        }
        Ok(Self {
            config,
            nftables: Nftables::open().map_err(DataplaneError::Nftables)?,
            changes: Watched::open(),
            is_disturbed: false,
            routes: Routes::open()?,
            conntrack: LateConntrack::default(),
        })
    }

    /// Returns `true` if the kernel can change the size of a set. Linux 6.12 is the first that was tried.
    #[must_use]
    pub fn resizes_sets() -> bool {
        kernel_version().is_some_and(|version| version >= (6, 12))
    }

    /// Writes kernel settings.
    ///
    /// # Errors
    /// If Services would not be forwarded with those that stay wrong.
    pub fn prepare(&mut self) -> Result<(), DataplaneError> {
        let all = settings_without_ipvs(&self.config.tuning);
        blocking(|| settings::write(&all))
    }

    /// Has the kernel check a transaction that is not made. It loads the modules that the rules need.
    ///
    /// # Errors
    /// With what the kernel lacks.
    pub fn check(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
    ) -> Result<(), CommitError> {
        blocking(|| self.nftables.check(family, table, requests))
    }

    /// Reads the table of each family, all of the same generation unless tables keep changing. That generation is a past
    /// one then, so that they are read again.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn observe(
        &mut self,
        families: &[Family],
        table: &str,
    ) -> Result<Observed, DataplaneError> {
        let nftables = &mut self.nftables;
        let read = || {
            let mut after = nftables.generation()?;
            let (mut before, mut contents) = (after, Vec::new());
            for _ in 0..ATTEMPTS {
                before = after;
                contents = Vec::new();
                for family in families {
                    contents.push((*family, nftables.content(*family, table)?));
                }
                after = nftables.generation()?;
                if after == before {
                    break;
                }
            }
            Ok((contents, before))
        };
        blocking(read).map_err(DataplaneError::Nftables)
    }

    /// The generation of all tables, which changes with every change of anybody.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn generation(&mut self) -> Result<u32, DataplaneError> {
        blocking(|| self.nftables.generation()).map_err(DataplaneError::Nftables)
    }

    /// The elements of a set, those that rules wrote included.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<(Key, Value)>, DataplaneError> {
        let read = || self.nftables.elements(family, table, set);
        blocking(read).map_err(DataplaneError::Nftables)
    }

    /// Makes a transaction; with a generation, only if no table has changed since.
    ///
    /// # Errors
    /// If the kernel refuses it. Nothing of it was made then.
    pub fn commit(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
        generation: Option<u32>,
    ) -> Result<(), CommitError> {
        // The kernel makes no messages of our own changes then.
        let changes = self.changes.as_ref().map(Watched::changes);
        let paused = changes.map_or(Ok(()), Changes::pause);
        let committed = blocking(|| self.nftables.commit(family, table, requests, generation));
        if let Err(error) = paused.and(changes.map_or(Ok(()), Changes::resume)) {
            tracing::warn!(%error, "changes of tables are not notified any more");
            self.changes = None;
        }
        committed
    }

    /// Deletes our tables of families, each of which must have one. A packet in their rules goes on to what others
    /// have for its address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn delete_tables(&mut self, families: &[Family]) -> Result<(), DataplaneError> {
        delete_tables(&mut self.nftables, families)
    }

    /// Waits until somebody else has changed a table of this name, or may have; for ever without notifications.
    pub async fn disturbed(&mut self, table: &str) {
        let Some(changes) = &mut self.changes else {
            return std::future::pending().await;
        };
        changes.touched(table).await;
        self.is_disturbed = true;
    }

    /// Whether somebody else has changed a table of this name since the last call, or may have; `None` without
    /// notifications. Changes of ours are not told, nor are changes while these were made.
    pub fn take_disturbed(&mut self, table: &str) -> Option<bool> {
        let now = self.changes.as_mut()?.read(table);
        Some(std::mem::take(&mut self.is_disturbed) || now)
    }

    /// Reads the facts about the node.
    ///
    /// # Errors
    /// If addresses cannot be read.
    pub async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        let config = &self.config;
        let facts = self
            .routes
            .facts(&config.node_ips, &config.node_port_addresses);
        facts.await
    }

    /// Deletes the UDP flows of a family in conntrack that `is_stale` selects; returns how many still
    /// existed.
    ///
    /// # Errors
    /// If they cannot be read or deleted.
    pub fn delete_flows(
        &mut self,
        family: Family,
        is_stale: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, DataplaneError> {
        let conntrack = self.conntrack.get()?;
        let delete = || {
            let flows = conntrack.udp_flows(family, is_stale)?;
            match flows.is_empty() {
                true => Ok(0),
                false => conntrack.delete(&flows),
            }
        };
        blocking(delete).map_err(DataplaneError::Conntrack)
    }
}

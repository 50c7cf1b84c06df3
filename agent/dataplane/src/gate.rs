// SPDX-License-Identifier: Apache-2.0

//! Gate that holds back steps whose dependencies failed.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{Step, ownership_entry};

/// Reason a step is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HoldReason {
    /// The rules or sets of its family could not be written.
    #[error("held back: the masquerade rules are not in place")]
    RulesMissing,
    /// A set entry of the virtual server could not be added.
    #[error("held back: a set entry that it needs is missing")]
    EntryMissing,
    /// The virtual server of the real server was itself held back or refused.
    #[error("held back: its virtual server is missing")]
    ServerMissing,
    /// A virtual server could not be deleted, so its entries and routes stay.
    #[error("held back: a virtual server could not be deleted")]
    ServerStays,
}

/// Failed steps, and the steps to hold back because of them: a virtual server without its masquerade
/// rules forwards packets whose replies never come back.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    families: BTreeSet<Family>,
    entries: BTreeSet<SetEntry>,
    /// Virtual servers that were held back or failed, whose real servers are pointless.
    servers: BTreeSet<VirtualServerKey>,
    /// Set when the deletion of a virtual server failed: entries and routes of its packets stay.
    stays: bool,
}

impl Gate {
    /// Records a failed step.
    pub(crate) fn failed(&mut self, step: &Step) {
        match step {
            Step::CreateSet { header, .. } => {
                self.families.insert(header.family);
            }
            Step::ReplaceSet { set, .. } => {
                self.families.insert(set.header.family);
            }
            Step::WriteRules { family, .. } => {
                self.families.insert(*family);
            }
            Step::AddEntries { entries, .. } => self.entries.extend(entries.iter().cloned()),
            Step::AddVirtualServer { key, .. } => {
                self.servers.insert(*key);
            }
            Step::DelVirtualServer { .. } => self.stays = true,
            _ => {}
        }
    }

    /// Records a failed entry of a [`Step::AddEntries`].
    pub(crate) fn failed_entry(&mut self, entry: SetEntry) {
        self.entries.insert(entry);
    }

    /// The reason to hold a step back, if any.
    pub(crate) fn holds(&mut self, step: &Step) -> Option<HoldReason> {
        let reason = match step {
            Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. }
                if self.families.contains(&Family::of(*vip)) =>
            {
                Some(HoldReason::RulesMissing)
            }
            Step::AddVirtualServer { key, .. } => self.holds_server(*key),
            Step::AddRealServer { key, .. } | Step::FillVirtualServer { key, .. }
                if self.servers.contains(key) =>
            {
                Some(HoldReason::ServerMissing)
            }
            Step::DelEntries { .. } | Step::DelRoute { .. } if self.stays => {
                Some(HoldReason::ServerStays)
            }
            _ => None,
        };
        if let (Some(_), Step::AddVirtualServer { key, .. }) = (reason, step) {
            self.servers.insert(*key);
        }
        reason
    }

    fn holds_server(&self, key: VirtualServerKey) -> Option<HoldReason> {
        let by_port = key.socket().map(|socket| SetEntry::Port(socket.port()));
        if self.families.contains(&key.family()) {
            Some(HoldReason::RulesMissing)
        } else if self.entries.contains(&ownership_entry(&key))
            || by_port.is_some_and(|entry| self.entries.contains(&entry))
        {
            Some(HoldReason::EntryMissing)
        } else {
            None
        }
    }
}

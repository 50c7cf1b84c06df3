//! Which steps must not be taken because of one that failed.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{Step, ownership_entry};

/// Why a real server is held back: of its virtual server it was said already what is wrong.
pub const HELD_WITH_SERVER: &str = "held back: its virtual server is missing";

/// Remembers failed steps and holds back what would be harmful without them: a virtual server
/// without its masquerade rules forwards packets whose answers never come back.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    families: BTreeSet<Family>,
    entries: BTreeSet<SetEntry>,
    /// Virtual servers that were held back or failed: their real servers are pointless.
    servers: BTreeSet<VirtualServerKey>,
    /// A virtual server could not be deleted: what its packets need must stay.
    stays: bool,
}

impl Gate {
    /// Notes that a step failed.
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

    /// Notes that one entry of an [`Step::AddEntries`] failed.
    pub(crate) fn failed_entry(&mut self, entry: SetEntry) {
        self.entries.insert(entry);
    }

    /// Why a step must not be taken, if so.
    pub(crate) fn holds(&mut self, step: &Step) -> Option<&'static str> {
        let reason = match step {
            Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. }
                if self.families.contains(&Family::of(*vip)) =>
            {
                Some("held back: the masquerade rules are not in place")
            }
            Step::AddVirtualServer { key, .. } => self.holds_server(*key),
            Step::AddRealServer { key, .. } | Step::FillVirtualServer { key, .. }
                if self.servers.contains(key) =>
            {
                Some(HELD_WITH_SERVER)
            }
            Step::DelEntries { .. } | Step::DelRoute { .. } if self.stays => {
                Some("held back: a virtual server could not be deleted")
            }
            _ => None,
        };
        if let (Some(_), Step::AddVirtualServer { key, .. }) = (reason, step) {
            self.servers.insert(*key);
        }
        reason
    }

    fn holds_server(&self, key: VirtualServerKey) -> Option<&'static str> {
        let by_port = key.socket().map(|socket| SetEntry::Port(socket.port()));
        if self.families.contains(&key.family()) {
            Some("held back: the masquerade rules are not in place")
        } else if self.entries.contains(&ownership_entry(&key))
            || by_port.is_some_and(|entry| self.entries.contains(&entry))
        {
            Some("held back: a set entry that it needs is missing")
        } else {
            None
        }
    }
}

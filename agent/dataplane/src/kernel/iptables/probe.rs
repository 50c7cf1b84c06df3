//! Probe at start: can the rules of a family be written on this node?

use portolan_model::{Families, Family};

use super::Iptables;
use crate::DataplaneError;

/// The tables that our rules are in. `nat` is the one that kernels lack most often.
const TABLES: &str = "*nat\nCOMMIT\n*mangle\nCOMMIT\n*filter\nCOMMIT\n";

/// Attempts per tool: it may have been killed for the machine's lack of memory or time.
const ATTEMPTS: usize = 3;

impl Iptables {
    /// Tries the tools that read and write the rules of a family. Nothing is written.
    pub(in crate::kernel) async fn probe(&self, family: Family) -> Result<(), DataplaneError> {
        let mut attempt = 1;
        loop {
            match self.probe_once(family).await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                tried => return tried,
            }
        }
    }

    async fn probe_once(&self, family: Family) -> Result<(), DataplaneError> {
        self.tools.try_out(family, TABLES).await
    }

    /// Forgets what was written for other families: their rules are not looked at any more.
    pub(in crate::kernel) fn keep_only(&mut self, families: Families) {
        self.written.retain(|family, _| families.contains(*family));
        self.fresh.retain(|family, _| families.contains(*family));
        self.seen.retain(|family| families.contains(*family));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Probe at start of the tools that write rules.

use portolan_model::{Families, Family};

use super::Iptables;
use crate::DataplaneError;

/// Tables with our rules. Kernels lack `nat` most often.
const TABLES: &str = "*nat\nCOMMIT\n*mangle\nCOMMIT\n*filter\nCOMMIT\n";

/// Attempts per tool, which may be killed for lack of memory or time.
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

    /// The rules of a family in every variant of iptables on this node: other programs may use the other
    /// one. A variant that does not work has no rules.
    pub(in crate::kernel) async fn save_all_variants(&self, family: Family) -> Vec<Vec<String>> {
        self.tools.save_all_variants(family).await
    }

    /// Forgets the rules of other families, which are no longer read.
    pub(in crate::kernel) fn keep_only(&mut self, families: Families) {
        self.written.retain(|family, _| families.contains(*family));
        self.fresh.retain(|family, _| families.contains(*family));
        self.seen.retain(|family| families.contains(*family));
    }
}

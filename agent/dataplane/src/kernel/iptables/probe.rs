// SPDX-License-Identifier: Apache-2.0

//! Probe at start of the tools that write rules.

use portolan_model::{Families, Family};

use super::Iptables;
use crate::DataplaneError;

/// Tables with our rules. Kernels lack `nat` most often.
const TABLES: &str = "*nat\nCOMMIT\n*mangle\nCOMMIT\n*filter\nCOMMIT\n";

/// Deletion of the chains of [`trial`], existing or not.
const TRIAL_DELETION: &str = "*nat\n:PORTOLAN-TRIAL - [0:0]\n-X PORTOLAN-TRIAL\nCOMMIT\n\
                              *mangle\n:PORTOLAN-TRIAL - [0:0]\n-X PORTOLAN-TRIAL\nCOMMIT\n\
                              *filter\n:PORTOLAN-TRIAL - [0:0]\n-X PORTOLAN-TRIAL\nCOMMIT\n";

/// Chains to which nothing jumps, with each match and target of our rules.
fn trial(set: &str) -> String {
    format!(
        "*nat\n:PORTOLAN-TRIAL - [0:0]\n\
         -A PORTOLAN-TRIAL -m set --match-set {set} dst,dst -m mark --mark 0x1/0x1 \
         -m connmark --mark 0x1/0x1 -m addrtype --dst-type LOCAL -j MARK --set-xmark 0x1/0x1\n\
         -A PORTOLAN-TRIAL -j MASQUERADE --random-fully\nCOMMIT\n\
         *mangle\n:PORTOLAN-TRIAL - [0:0]\n\
         -A PORTOLAN-TRIAL -m conntrack ! --ctstate NEW -j CONNMARK --set-xmark 0x1/0x1\nCOMMIT\n"
    )
}

/// Attempts per tool, which may be killed for lack of memory or time.
const ATTEMPTS: usize = 3;

impl Iptables {
    /// Tries the tools that read and write the rules of a family. Nothing is written.
    pub(in crate::kernel) async fn probe(&mut self, family: Family) -> Result<(), DataplaneError> {
        let mut attempt = 1;
        loop {
            match self.tools.try_out(family, TABLES).await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                tried => return tried,
            }
        }
    }

    /// Writes a chain of ours with each match and target of the rules, and deletes it. Tries the tool that reads too.
    pub(in crate::kernel) async fn write_trial(
        &mut self,
        family: Family,
        set: &str,
    ) -> Result<(), DataplaneError> {
        let mut attempt = 1;
        loop {
            match self.write_trial_once(family, set).await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                tried => return tried,
            }
        }
    }

    async fn write_trial_once(&mut self, family: Family, set: &str) -> Result<(), DataplaneError> {
        self.tools.try_reading(family).await?;
        // The tables are written one by one, so that one run does both.
        let text = trial(set) + TRIAL_DELETION;
        let tried = self.tools.write_at_start(family, &text).await;
        if tried.is_err() {
            // Some may be there. The first error is the reason.
            let _ = self.tools.write_at_start(family, TRIAL_DELETION).await;
        }
        tried
    }

    /// The rules of a family in every variant of iptables on this node: other programs may use the other
    /// one. A variant that does not work has no rules.
    pub(in crate::kernel) async fn save_all_variants(
        &mut self,
        family: Family,
    ) -> Vec<Vec<String>> {
        self.tools.save_all_variants(family).await
    }

    /// Forgets the rules of other families, which are no longer read.
    pub(in crate::kernel) fn keep_only(&mut self, families: Families) {
        self.written.retain(|family, _| families.contains(*family));
        self.fresh.retain(|family, _| families.contains(*family));
        self.seen.retain(|family| families.contains(*family));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Readiness of the agent: from the first table on, while any family can be programmed.

use portolan_model::Families;
use portolan_runtime::{BlockReady, Readiness};

/// Readiness of the agent, with the reason if it is not ready.
#[derive(Debug)]
pub struct Ready {
    readiness: Readiness,
    families: Families,
    block: Option<BlockReady>,
}

impl Ready {
    /// Blocks readiness until the first table is programmed.
    #[must_use]
    pub fn new(readiness: Readiness, families: Families) -> Self {
        let block = Some(readiness.block("first table"));
        Self {
            readiness,
            families,
            block,
        }
    }

    /// Follows a reconciliation that could not program the families in `broken`.
    ///
    /// Refused records do not matter, nor does a single broken family after the first table.
    pub fn follow(&mut self, broken: Families) {
        if broken.is_empty() {
            self.block = None;
        } else if self.block.is_none() && self.families.iter().all(|f| broken.contains(f)) {
            self.block = Some(self.readiness.block("a kernel that can be programmed"));
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Family;

    use super::*;

    #[test]
    fn ready_while_any_family_can_be_programmed() {
        let readiness = Readiness::default();
        let both: Families = Family::ALL.into_iter().collect();
        let v4: Families = [Family::V4].into_iter().collect();
        let mut ready = Ready::new(readiness.clone(), both);
        for (broken, expected) in [
            (v4, &["first table"][..]),
            (Families::NONE, &[]),
            (v4, &[]),
            (both, &["a kernel that can be programmed"]),
            (v4, &["a kernel that can be programmed"]),
            (Families::NONE, &[]),
        ] {
            ready.follow(broken);
            assert_eq!(readiness.pending(), expected);
        }
        let mut single = Ready::new(readiness.clone(), v4);
        single.follow(Families::NONE);
        single.follow(both);
        assert_eq!(readiness.pending().len(), 1);
    }
}

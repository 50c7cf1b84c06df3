// SPDX-License-Identifier: Apache-2.0

//! Ways of health checks, for those that send probes.

use portolan_dataplane::Dataplane;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{WayTo, Ways};

use crate::Reconciler;

impl<D: Dataplane> Reconciler<D> {
    /// The ways of health checks that are in the kernel as desired; `None` while the kernel's state is uncertain.
    pub fn ways(&mut self) -> Option<Ways> {
        self.merge_pending();
        let (observed, facts) = (self.observed.as_ref()?, self.facts.as_ref()?);
        let marks = self.desired.read(|desired| {
            let is_there = |(to, mark): &(&WayTo, &u32)| {
                let key = VirtualServerKey::Mark {
                    family: to.family,
                    mark: **mark,
                };
                let there = observed.virtual_servers.get(&key);
                there.is_some() && there == desired.state.virtual_servers.get(&key)
            };
            let there = desired.ways.iter().filter(is_there);
            there.map(|(to, mark)| (*to, *mark)).collect()
        });
        Some(Ways {
            marks,
            sources: facts.source.clone(),
        })
    }
}

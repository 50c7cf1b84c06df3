// SPDX-License-Identifier: Apache-2.0

//! Families of which the kernel refuses every virtual server.

use std::collections::BTreeSet;

use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family};
use portolan_plan::{Desired, KernelState, Step};

/// Kept across reconciliations: one of changed records alone says nothing of the others.
#[derive(Debug, Default)]
pub(crate) struct Unserved(Families);

impl Unserved {
    /// Updates the families after a run, given its steps, the indices of the failed ones, the desired state,
    /// and the state observed before the run. A family is unserved once every desired virtual server was refused,
    /// until one is accepted or there, or none is desired. One may be there although its answer was lost.
    /// Refusals of schedulers that Services name say nothing about the family.
    pub(crate) fn follow(
        &mut self,
        steps: &[Step],
        refused: &BTreeSet<usize>,
        desired: &Desired,
        observed: &KernelState,
    ) -> Families {
        if self.0.is_empty() && refused.is_empty() {
            return self.0;
        }
        let is_unserved = |family: &Family| {
            let added = steps
                .iter()
                .enumerate()
                .filter_map(|(index, step)| match step {
                    Step::AddVirtualServer { key, .. } if key.family() == *family => {
                        Some((index, key))
                    }
                    _ => None,
                });
            let (failed, taken): (Vec<_>, Vec<_>) =
                added.partition(|(index, _)| refused.contains(index));
            let servers = desired.state.virtual_servers.keys();
            let mut servers = servers.filter(|key| key.family() == *family);
            let wanted = servers.clone().count();
            let is_there = |key: &VirtualServerKey| observed.virtual_servers.contains_key(key);
            let is_plain = |(_, key): &(usize, &VirtualServerKey)| {
                let record = desired.records.get(key);
                record.is_none_or(|record| record.scheduling.scheduler.is_none())
            };
            let all_failed = failed.len() >= wanted && failed.iter().any(is_plain);
            let still = self.0.contains(*family);
            taken.is_empty() && wanted > 0 && (all_failed || still) && !servers.any(is_there)
        };
        self.0 = Family::ALL.into_iter().filter(is_unserved).collect();
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use portolan_model::ipvs::{VirtualServer, VirtualServerConfig};
    use portolan_model::{Protocol, Record, RecordKey};

    use super::*;

    fn key(ip: &str) -> VirtualServerKey {
        let ip: IpAddr = ip.parse().unwrap();
        VirtualServerKey::new(Protocol::Tcp, ip, 80)
    }

    fn add(ip: &str) -> Step {
        let config = VirtualServerConfig::round_robin();
        Step::AddVirtualServer {
            key: key(ip),
            config: config.into(),
        }
    }

    fn desired(ips: &[&str]) -> Desired {
        let mut desired = Desired::default();
        for ip in ips {
            let config = VirtualServerConfig::round_robin();
            let real_servers = std::sync::Arc::default();
            let server = VirtualServer {
                config: config.into(),
                real_servers,
            };
            desired.state.virtual_servers.insert(key(ip), server);
        }
        desired
    }

    #[test]
    fn family_is_unserved_until_one_virtual_server_is_accepted() {
        let (mut unserved, none) = (Unserved::default(), KernelState::default());
        let mut follow = |steps: &[Step], refused: &[usize], wanted: &[&str]| {
            let refused = refused.iter().copied().collect();
            let families = unserved.follow(steps, &refused, &desired(wanted), &none);
            families.iter().collect::<Vec<_>>()
        };
        let both = ["10.96.0.1", "10.96.0.2", "fd00::1"];
        let steps = both.map(add);
        // One refusal of two is not enough.
        assert_eq!(follow(&steps, &[0], &both), []);
        assert_eq!(follow(&steps, &[0, 1], &both), [Family::V4]);
        // A change elsewhere has no influence.
        assert_eq!(follow(&[], &[], &both), [Family::V4]);
        assert_eq!(follow(&steps[..1], &[0], &both), [Family::V4]);
        assert_eq!(follow(&steps[..1], &[], &both), []);
        assert_eq!(follow(&steps[2..], &[0], &both), [Family::V6]);
        assert_eq!(follow(&[], &[], &both[..2]), []);
    }

    #[test]
    fn a_family_with_a_virtual_server_in_the_kernel_is_served_whatever_the_answer_was() {
        let (mut unserved, wanted) = (Unserved::default(), desired(&["10.96.0.1"]));
        let mut follow = |steps: &[Step], refused: &[usize], observed: &KernelState| {
            let refused = refused.iter().copied().collect();
            let families = unserved.follow(steps, &refused, &wanted, observed);
            families.iter().collect::<Vec<_>>()
        };
        let none = KernelState::default();
        assert_eq!(follow(&[add("10.96.0.1")], &[0], &none), [Family::V4]);
        // One of another family, and one that is not desired, say nothing.
        for other in ["fd00::1", "10.96.0.2"] {
            let others = desired(&[other]).state;
            assert_eq!(follow(&[], &[], &others), [Family::V4], "{other}");
        }
        assert_eq!(follow(&[], &[], &wanted.state), []);
        assert_eq!(follow(&[], &[], &none), []);
    }

    #[test]
    fn refused_scheduler_of_a_service_leaves_its_family_served() {
        let mut wanted = desired(&["10.96.0.1"]);
        let mut record = Record::new(RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: "svc".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        });
        record.scheduling.scheduler = Some("nosuch".into());
        wanted.records.insert(key("10.96.0.1"), record.into());
        let follow = |wanted: &Desired| {
            let (steps, none) = ([add("10.96.0.1")], KernelState::default());
            let families = Unserved::default().follow(&steps, &[0].into(), wanted, &none);
            families.iter().collect::<Vec<_>>()
        };
        assert_eq!(follow(&wanted), []);
        wanted.records.clear();
        assert_eq!(follow(&wanted), [Family::V4]);
    }
}

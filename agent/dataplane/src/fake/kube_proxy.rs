// SPDX-License-Identifier: Apache-2.0

//! Model of a kube-proxy's objects: its device, and its rules as a whole. The fake has no jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_model::Family;
use portolan_plan::Rules;
use portolan_plan::kube_proxy::PacketRules;

use super::FakeKernel;
use crate::{DataplaneError, KubeProxyObjects};

impl KubeProxyObjects for FakeKernel {
    async fn vip_device(&mut self, name: &str) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
        Ok(self.devices.get(name).cloned())
    }

    async fn delete_vips(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
    ) -> Result<(), DataplaneError> {
        self.work()?;
        if let Some(device) = self.devices.get_mut(name) {
            device.retain(|ip| !addresses.contains(ip));
        }
        Ok(())
    }

    async fn delete_vip_device(&mut self, name: &str) -> Result<(), DataplaneError> {
        self.work()?;
        self.devices.remove(name);
        Ok(())
    }

    async fn remove_second_jumps(&mut self, _: &Rules, _: Family) -> Result<(), DataplaneError> {
        self.work()
    }

    async fn packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<PacketRules, DataplaneError> {
        let mut rules = self.packet_rules.clone();
        rules
            .frontends
            .retain(|key| families.contains(&key.family()));
        Ok(rules)
    }

    async fn keep_packet_rules(&mut self, _: &BTreeSet<Family>) -> Result<(), DataplaneError> {
        self.work()?;
        self.packet_rules_kept = true;
        Ok(())
    }

    async fn delete_packet_rules(
        &mut self,
        ours: &BTreeMap<Family, Rules>,
    ) -> Result<(), DataplaneError> {
        self.work()?;
        self.note_unserved();
        let frontends = &mut self.packet_rules.frontends;
        frontends.retain(|key| !ours.contains_key(&key.family()));
        if frontends.is_empty() {
            self.packet_rules = PacketRules::default();
        }
        Ok(())
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Model of a kube-proxy's objects: its device. The fake has no jumps.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::Family;
use portolan_plan::Rules;

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
}

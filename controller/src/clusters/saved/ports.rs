// SPDX-License-Identifier: Apache-2.0

//! Ports of exports at the gateways of their clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_federate::gateway::PortName;
use portolan_federate::imports::ImportName;
use portolan_model::Protocol;
use portolan_select::GatewayPorts;
use serde::{Deserialize, Serialize};

/// The port of one port of an export.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedPort {
    cluster: Arc<str>,
    namespace: Arc<str>,
    name: Arc<str>,
    port: Arc<str>,
    protocol: Protocol,
    gateway_port: u16,
}

/// The ports as they are saved.
pub(super) fn saved(ports: &BTreeMap<Arc<str>, GatewayPorts>) -> Vec<SavedPort> {
    let all = ports.iter().flat_map(|(cluster, ports)| {
        ports.iter().map(|(name, number)| SavedPort {
            cluster: Arc::clone(cluster),
            namespace: Arc::clone(&name.service.namespace),
            name: Arc::clone(&name.service.name),
            port: Arc::clone(&name.port),
            protocol: name.protocol,
            gateway_port: *number,
        })
    });
    all.collect()
}

/// Saved ports by cluster.
pub(super) fn by_cluster(saved: Vec<SavedPort>) -> BTreeMap<Arc<str>, GatewayPorts> {
    let mut ports = BTreeMap::<_, GatewayPorts>::new();
    for one in saved {
        let name = PortName {
            service: ImportName {
                namespace: one.namespace,
                name: one.name,
            },
            port: one.port,
            protocol: one.protocol,
        };
        let of_cluster = ports.entry(one.cluster).or_default();
        of_cluster.insert(name, one.gateway_port);
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_back() {
        let name = |port: &str, protocol| PortName {
            service: ImportName {
                namespace: "shop".into(),
                name: "web".into(),
            },
            port: port.into(),
            protocol,
        };
        let of_eu = [
            (name("", Protocol::Tcp), 20_001),
            (name("dns", Protocol::Udp), 20_001),
        ];
        let ports = [("eu-1".into(), of_eu.into())].into();
        let text = serde_saphyr::to_string(&saved(&ports)).unwrap();
        let read: Vec<SavedPort> = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(by_cluster(read), ports);
    }
}

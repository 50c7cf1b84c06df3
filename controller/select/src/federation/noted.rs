// SPDX-License-Identifier: Apache-2.0

//! Ports of exports at gateways in the annotation of a ServiceImport, which is their record as its `spec.ips` are that
//! of virtual addresses.

use std::sync::Arc;

use portolan_catalog::ServiceExport;
use portolan_federate::gateway::PortName;
use portolan_federate::imports::ImportName;

use super::GatewayPorts;

/// The annotation of the ServiceImport in the exporting cluster.
pub(super) const GATEWAY_PORTS: &str = "portolan.dev/gateway-ports";

/// The most ports that are read: as many as an export has.
const MOST: usize = ServiceExport::MAX_PORTS;

/// The ports of one export: `NAME/PROTOCOL=PORT`, separated by commas; none if it has none.
pub(super) fn spell(ports: &GatewayPorts, service: &ImportName) -> Option<String> {
    let own = ports.iter().filter(|(name, _)| name.service == *service);
    let own = own.map(|(name, number)| format!("{}/{}={number}", name.port, name.protocol));
    let own: Vec<_> = own.collect();
    (!own.is_empty()).then(|| own.join(","))
}

/// The ports of one export, without what is none.
pub(super) fn read(namespace: &Arc<str>, name: &Arc<str>, text: &str) -> GatewayPorts {
    let parts = text.split(',').take(MOST);
    let ports = parts.filter_map(|part| {
        let (port, number) = part.split_once('=')?;
        let (port, protocol) = port.split_once('/')?;
        let name = PortName {
            service: ImportName {
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
            },
            port: port.into(),
            protocol: protocol.parse().ok()?,
        };
        Some((name, number.parse().ok().filter(|number| *number > 0)?))
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    #[test]
    fn all_ports_that_an_export_may_have_are_read() {
        let service = ImportName {
            namespace: "shop".into(),
            name: "web".into(),
        };
        let all = (1..=256_u16).map(|number| {
            let name = PortName {
                service: service.clone(),
                port: format!("p{number}").into(),
                protocol: Protocol::Tcp,
            };
            (name, 20_000 + number)
        });
        let all: GatewayPorts = all.collect();
        let text = spell(&all, &service).unwrap();
        assert_eq!(read(&service.namespace, &service.name, &text), all);
    }

    #[test]
    fn ports_are_read_as_they_are_spelled() {
        let service = ImportName {
            namespace: "shop".into(),
            name: "web".into(),
        };
        let name = |service: &ImportName, port: &str, protocol| PortName {
            service: service.clone(),
            port: port.into(),
            protocol,
        };
        let other = ImportName {
            name: "api".into(),
            ..service.clone()
        };
        let own: GatewayPorts = [
            (name(&service, "", Protocol::Tcp), 20_001),
            (name(&service, "dns", Protocol::Udp), 20_002),
        ]
        .into();
        let mut all = own.clone();
        all.insert(name(&other, "", Protocol::Tcp), 20_003);
        let text = spell(&all, &service).unwrap();
        assert_eq!(text, "/TCP=20001,dns/UDP=20002");
        assert_eq!(read(&service.namespace, &service.name, &text), own);
        assert_eq!(spell(&own, &other), None);
        for bad in [
            "",
            "a",
            "a/TCP",
            "a/TCP=0",
            "a/TCP=65536",
            "a/ICMP=1",
            "=1",
            ",,",
        ] {
            let found = read(&service.namespace, &service.name, bad);
            assert_eq!(found, GatewayPorts::new(), "{bad}");
        }
    }
}

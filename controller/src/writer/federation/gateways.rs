// SPDX-License-Identifier: Apache-2.0

//! Ports of exports at the gateways of their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_federate::gateway::{PortClaim, PortName};
use portolan_select::Pipeline;

use super::{Federated, now};

impl Federated {
    /// Gives exports that other clusters import by gateways a port there.
    ///
    /// The ports of an export stay while a cluster is waited for: it may import the export. An export that gets none is
    /// a problem of its ServiceExport.
    pub(in crate::writer) fn allocate_ports(
        &mut self,
        pipeline: &mut Pipeline,
        synced: &BTreeSet<Arc<str>>,
    ) {
        let Some(mut wanted) = pipeline.wanted_ports() else {
            return;
        };
        let is_complete = self.awaited(synced).ids.is_empty();
        let kept = pipeline.gateway_ports().clone();
        let now = now();
        for (cluster, ports) in &mut self.ports {
            let of_nodes = pipeline.node_ports_at_gateways(cluster).into_keys();
            ports.set_node_ports(of_nodes.map(|(port, protocol)| (protocol, port)).collect());
            let kept = kept.get(cluster);
            let mut names: BTreeSet<PortName> = wanted.remove(cluster).unwrap_or_default();
            if !is_complete {
                names.extend(kept.into_iter().flat_map(BTreeMap::keys).cloned());
            }
            let claims = names.into_iter().map(|name| PortClaim {
                present: kept.and_then(|kept| kept.get(&name)).copied(),
                name,
            });
            let claims: Vec<_> = claims.collect();
            let given = ports.allocate(&claims, now).into_iter();
            let given = given.filter_map(|(name, port)| Some((name, port.ok()?)));
            pipeline.set_gateway_ports(cluster, given.collect());
        }
    }

    /// Looks for node ports of Services among the ports of the gateways of their clusters. Returns whether there are
    /// others than before.
    pub(in crate::writer) fn find_node_ports(&mut self, pipeline: &Pipeline) -> bool {
        let clusters = self.clusters();
        let found = clusters.filter_map(|cluster| {
            let name: Arc<str> = cluster.meta.name.as_str().into();
            let range = cluster.network.gateway.as_ref()?.ports;
            let found = pipeline.node_ports_at_gateways(&name);
            let ((port, protocol), service) = found.first_key_value()?;
            let more = match found.len() {
                1 => String::new(),
                all => format!(", and {} more", all - 1),
            };
            Some(format!(
                "Cluster {name}: spec.network.gateway.ports: NodePortAtGateways: {range} has the node port {port} {protocol} \
                 of Service {}/{}{more}: no export gets one, and one that has it meets the Service at a gateway",
                service.namespace, service.name
            ))
        });
        let found: Vec<String> = found.collect();
        let is_news = found != self.node_ports;
        self.node_ports = found;
        is_news
    }

    /// Counts the gateways of each cluster for the metrics.
    pub(super) fn count_gateways(&self, pipeline: &Pipeline) {
        let gateways = pipeline.gateways();
        let clusters = self.clusters();
        let clusters = clusters.filter(|cluster| cluster.network.gateway.is_some());
        let counts = clusters.map(|cluster| {
            let name: Arc<str> = cluster.meta.name.as_str().into();
            let count = gateways.get(&name).map_or(0, |found| found.chosen.len());
            (name, count)
        });
        self.states.lock().gateways = counts.collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_catalog::{
        ExportPort, Object, ObjectChange, ObjectKey, Service, ServiceExport, ServiceFacts,
        ServicePort, ServiceType,
    };
    use portolan_federate::imports::ImportName;
    use portolan_model::{Family, Protocol};
    use portolan_policy::{File, read};
    use portolan_select::{GatewayPorts, Kept};

    use super::*;

    const POLICY: &str = "\
apiVersion: portolan.dev/v1alpha1
kind: Cluster
metadata: {name: a}
spec:
  access: {files: [x]}
  network: {podCIDRs: [10.1.0.0/16], nodeCIDRs: [192.168.1.0/24]}
---
apiVersion: portolan.dev/v1alpha1
kind: Cluster
metadata: {name: b}
spec:
  access: {files: [x]}
  network:
    mode: Gateway
    podCIDRs: [10.1.0.0/16]
    nodeCIDRs: [192.168.2.0/24]
    gateway: {ports: 20000-20010}
";

    fn key(cluster: &str, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            cluster: cluster.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn export() -> Object {
        let facts = ServiceFacts {
            kind: ServiceType::ClusterIp,
            labels: BTreeMap::new(),
            ports: vec![ExportPort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                app_protocol: None,
            }],
            families: vec![Family::V4],
            affinity_seconds: None,
            internal_local: false,
            traffic_distribution: None,
        };
        Object::ServiceExport(ServiceExport {
            requested: true,
            service: Some(Arc::new(facts)),
            ..ServiceExport::new(key("b", "shop", "web"))
        })
    }

    fn put(pipeline: &mut Pipeline, object: Object) {
        pipeline.apply(ObjectChange::Put {
            object,
            problems: Vec::new(),
        });
    }

    fn ports(number: u16) -> GatewayPorts {
        let name = PortName {
            service: ImportName {
                namespace: "shop".into(),
                name: "web".into(),
            },
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        [(name, number)].into()
    }

    #[test]
    fn a_kept_port_stays_over_a_restart_and_until_all_clusters_are_here() {
        let kept = ports(20_007);
        let mut federated = Federated {
            resumed_ports: [("b".into(), kept.clone())].into(),
            ..Federated::default()
        };
        let mut pipeline = Pipeline::default();
        let objects = read(&[File {
            name: "p.yaml",
            text: POLICY,
        }]);
        federated.take_policies(&mut pipeline, objects.objects, true);
        let sync = |federated: &mut Federated, pipeline: &mut Pipeline, names: &[&str]| {
            let synced: BTreeSet<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
            let states = synced
                .iter()
                .map(|name| (Arc::clone(name), Default::default()));
            pipeline.set_states(states.collect());
            federated.allocate(pipeline, &synced);
            federated.allocate_ports(pipeline, &synced);
            pipeline.flush();
            pipeline
                .gateway_ports()
                .get("b")
                .cloned()
                .unwrap_or_default()
        };
        assert_eq!(sync(&mut federated, &mut pipeline, &[]), kept);
        put(&mut pipeline, export());
        put(&mut pipeline, Object::Namespace(key("b", "", "shop")));
        assert_eq!(sync(&mut federated, &mut pipeline, &["b"]), kept);
        // The importing cluster is late.
        put(&mut pipeline, Object::Namespace(key("a", "", "shop")));
        assert_eq!(sync(&mut federated, &mut pipeline, &["a", "b"]), kept);
        pipeline.apply(ObjectChange::Delete(export().reference()));
        let none = GatewayPorts::new();
        assert_eq!(sync(&mut federated, &mut pipeline, &["a", "b"]), none);
        put(&mut pipeline, export());
        let again = sync(&mut federated, &mut pipeline, &["a", "b"]);
        assert_eq!(again, kept, "nobody else had it meanwhile");
    }

    #[test]
    fn what_is_kept_for_a_member_that_never_came_is_free_after_a_while() {
        let mut federated = Federated {
            resumed_ports: [("b".into(), ports(20_007))].into(),
            resumed: [(
                key("b", "shop", "gone@clusterset"),
                Kept {
                    ips: vec![[10, 112, 0, 7].into()],
                    winner: Some("a".into()),
                    ..Kept::default()
                },
            )]
            .into(),
            ..Federated::default()
        };
        let mut pipeline = Pipeline::default();
        // Contact with a cluster that never is lost is not waited for without end either.
        let text = POLICY.replace("access:", "loss: {staleTTL: 0s}\n  access:");
        let objects = read(&[File {
            name: "p.yaml",
            text: &text,
        }]);
        assert_eq!(objects.problems, []);
        federated.take_policies(&mut pipeline, objects.objects, true);
        let synced: BTreeSet<Arc<str>> = ["b".into()].into();
        put(&mut pipeline, Object::Namespace(key("b", "", "shop")));
        let flush = |federated: &mut Federated, pipeline: &mut Pipeline, seconds| {
            federated.waited = Duration::from_secs(seconds);
            federated.tell(pipeline, &synced);
            federated.allocate(pipeline, &synced);
            federated.allocate_ports(pipeline, &synced);
            pipeline.flush();
            (
                pipeline.gateway_ports().values().map(BTreeMap::len).sum(),
                pipeline.kept().len(),
            )
        };
        assert_eq!(flush(&mut federated, &mut pipeline, 0), (1, 1));
        assert_eq!(flush(&mut federated, &mut pipeline, 329), (1, 1));
        assert_eq!(flush(&mut federated, &mut pipeline, 330), (0, 0));
        assert!(federated.awaited(&synced).ids.is_empty());
    }

    fn node_port_of(name: &str, protocol: Protocol, number: u16) -> Object {
        let port = ServicePort {
            name: Arc::default(),
            protocol,
            port: 80,
            node_port: Some(number),
        };
        Object::Service(Service {
            cluster_ips: vec![[10, 96, 0, 9].into()],
            ports: vec![port],
            ..Service::new(key("b", "shop", name))
        })
    }

    #[test]
    fn node_ports_among_those_of_gateways_are_named_and_given_to_no_export() {
        let mut federated = Federated::default();
        let mut pipeline = Pipeline::default();
        let objects = read(&[File {
            name: "p.yaml",
            text: POLICY,
        }]);
        federated.take_policies(&mut pipeline, objects.objects, true);
        let synced: BTreeSet<Arc<str>> = ["a", "b"].map(Arc::from).into();
        let states = synced
            .iter()
            .map(|name| (Arc::clone(name), Default::default()));
        pipeline.set_states(states.collect());
        let told = |federated: &Federated| federated.problems().cloned().collect::<Vec<_>>();
        assert!(!federated.find_node_ports(&pipeline));
        put(&mut pipeline, node_port_of("out", Protocol::Tcp, 20_011));
        assert!(!federated.find_node_ports(&pipeline));
        assert_eq!(told(&federated), [""; 0]);

        // All but one are node ports; those of UDP are no matter to an export of TCP.
        for number in (20_000..=20_010).filter(|number| *number != 20_004) {
            let name = format!("s{number}");
            put(&mut pipeline, node_port_of(&name, Protocol::Tcp, number));
        }
        put(&mut pipeline, node_port_of("dns", Protocol::Udp, 20_004));
        assert!(federated.find_node_ports(&pipeline));
        let expected = "Cluster b: spec.network.gateway.ports: NodePortAtGateways: 20000-20010 has the node port \
                        20000 TCP of Service shop/s20000, and 10 more: ";
        let [found] = &told(&federated)[..] else {
            panic!("{:?}", told(&federated));
        };
        assert!(found.starts_with(expected), "{found}");
        assert!(!federated.find_node_ports(&pipeline), "it is told once");

        put(&mut pipeline, export());
        for cluster in ["a", "b"] {
            put(&mut pipeline, Object::Namespace(key(cluster, "", "shop")));
        }
        federated.allocate(&mut pipeline, &synced);
        federated.allocate_ports(&mut pipeline, &synced);
        pipeline.flush();
        assert_eq!(pipeline.gateway_ports()["b"], ports(20_004));
        // It stays when a Service gets it too.
        put(&mut pipeline, node_port_of("late", Protocol::Tcp, 20_004));
        let gone = node_port_of("s20003", Protocol::Tcp, 20_003).reference();
        pipeline.apply(ObjectChange::Delete(gone));
        federated.allocate(&mut pipeline, &synced);
        federated.allocate_ports(&mut pipeline, &synced);
        assert_eq!(pipeline.gateway_ports()["b"], ports(20_004));
        assert!(told(&federated)[0].contains("and 10 more"));
    }
}

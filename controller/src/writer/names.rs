// SPDX-License-Identifier: Apache-2.0

//! Tells DNS the imports of each cluster, as flushes change them.

use std::sync::Arc;

use portolan_catalog::ObjectKey;
use portolan_dns::{Endpoint, Kind, NamesChange, Port, Service, ServiceKey, Slice, SliceKey};
use portolan_federate::merge::ImportKind;
use portolan_select::{NamedEndpoint, NamedImport, Pipeline, import_name};

use super::Writer;
use crate::dns::ClusterNames;

impl Writer {
    /// Tells DNS what the last flush changed.
    pub(super) fn tell_names(&mut self, pipeline: &mut Pipeline) {
        let Some(names) = self.federated.names() else {
            return;
        };
        tell(&names, &self.federated.cluster_names(), pipeline);
        self.complete_names(&names);
    }

    /// Lets clusters be answered for whose imports are complete: they are served, and no other member may still
    /// export to them.
    pub(super) fn complete_names(&self, names: &ClusterNames) {
        let known = &self.known;
        if self.federated.awaited(&known.synced).ids.is_empty() {
            let complete = known.synced.difference(&known.waiting);
            complete.for_each(|cluster| names.complete(cluster));
        }
    }
}

/// Tells the names of members, which are sorted, that flushes have changed since the last call.
fn tell(names: &ClusterNames, members: &[Arc<str>], pipeline: &mut Pipeline) {
    if pipeline.take_namespaces_changed() {
        // Of those that have not synced too: a flush for another cluster has taken the change.
        for cluster in members {
            let namespaces = pipeline.catalog().namespaces(cluster);
            let namespaces = namespaces.into_iter().flatten();
            names.namespaces(cluster, namespaces.map(|name| name.to_string()).collect());
        }
    }
    for key in pipeline.take_renamed() {
        // A cluster that leaves has no imports any more, but keeps their names. If it comes back, all are renamed.
        if members.binary_search(&key.cluster).is_err() {
            continue;
        }
        if let Some(change) = change(&key, pipeline.named(&key)) {
            names.import(&key.cluster, change);
        }
    }
}

/// The names of an import; without it, that they are gone.
fn change(key: &ObjectKey, import: Option<NamedImport>) -> Option<NamesChange> {
    let name = import_name(key)?;
    let key = ServiceKey::new(&*name.namespace, &*name.name);
    let Some(import) = import else {
        return Some(NamesChange::Whole {
            key,
            service: None,
            slices: Vec::new(),
        });
    };
    let ports = import.ports.iter().map(|port| Port {
        name: port.name.to_string(),
        protocol: port.protocol,
        number: Some(port.number),
    });
    let service = Service {
        key: key.clone(),
        kind: match import.kind {
            ImportKind::ClusterSetIp => Kind::ClusterIp { ips: import.ips },
            ImportKind::Headless => Kind::Headless,
        },
        ports: ports.collect(),
        publish_not_ready: false,
    };
    let endpoints = import.endpoints.iter();
    let endpoints = endpoints.flat_map(|(id, all)| all.iter().map(move |one| (&**id, one)));
    let slices = endpoints.map(|(cluster, endpoint)| slice(&key, cluster, endpoint));
    Some(NamesChange::Whole {
        slices: slices.collect(),
        service: Some(service),
        key,
    })
}

/// A slice of one endpoint: the number of its ports is its own.
fn slice(service: &ServiceKey, cluster: &str, endpoint: &NamedEndpoint) -> Slice {
    let ports = endpoint
        .ports
        .iter()
        .map(|((name, protocol), number)| Port {
            name: name.to_string(),
            protocol: *protocol,
            number: Some(*number),
        });
    Slice {
        key: SliceKey {
            namespace: service.namespace.clone(),
            name: format!("{cluster}/{}", endpoint.address),
        },
        service: service.name.clone(),
        cluster: Some(cluster.to_owned()),
        endpoints: vec![Endpoint {
            addresses: vec![endpoint.address],
            ready: true,
            hostname: endpoint.hostname.as_deref().map(str::to_owned),
            pod: None,
            zone: None,
        }],
        ports: ports.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use portolan_catalog::{
        ExportPort, Object, ObjectChange, ServiceExport, ServiceFacts, ServiceType,
    };
    use portolan_model::{Family, Protocol};
    use portolan_policy::{File, read};
    use portolan_select::ClusterState;

    use super::super::Federated;
    use super::super::resent::Resent;
    use super::*;

    const EU: (&str, u8) = ("eu-1", 1);
    const US: (&str, u8) = ("us-1", 2);

    fn document((name, number): &(&str, u8)) -> String {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\n\
             spec:\n  access: {{files: [x]}}\n  network:\n    podCIDRs: [10.{number}.0.0/16]\n    \
             clusterSetIPs: [10.11{number}.0.0/16]\n---\n"
        )
    }

    fn key(cluster: &str, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            cluster: cluster.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// `shop/web`, which us-1 exports.
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
            ..ServiceExport::new(key("us-1", "shop", "web"))
        })
    }

    /// Parts of the writer for policies and clusters, as far as names depend on them.
    #[derive(Default)]
    struct Rig {
        federated: Federated,
        pipeline: Pipeline,
        names: ClusterNames,
    }

    impl Rig {
        fn take_policies(&mut self, clusters: &[(&str, u8)]) {
            let text: String = clusters.iter().map(document).collect();
            let reading = read(&[File {
                name: "p.yaml",
                text: &text,
            }]);
            assert_eq!(reading.problems, []);
            let pipeline = &mut self.pipeline;
            self.federated
                .take_policies(pipeline, reading.objects, true);
        }

        fn put(&mut self, object: Object) {
            self.pipeline.apply(ObjectChange::Put {
                object,
                problems: Vec::new(),
            });
        }

        fn leave(&mut self, cluster: &str) {
            let cluster: Arc<str> = cluster.into();
            self.names.left(&cluster);
            let retained = Resent::default().retained(&cluster);
            retained.for_each(|change| self.pipeline.apply(change));
        }

        /// Flushes, and returns what is told: whether a cluster left, and its changes since.
        fn flush(&mut self, synced: &[&str]) -> BTreeMap<Arc<str>, (bool, Vec<NamesChange>)> {
            let synced: BTreeSet<Arc<str>> = synced.iter().map(|name| Arc::from(*name)).collect();
            let state = |name: &Arc<str>| (Arc::clone(name), ClusterState::default());
            let states = synced.iter().map(state).collect();
            self.pipeline.set_states(states);
            self.federated.allocate(&mut self.pipeline, &synced);
            self.pipeline.flush();
            let members = self.federated.cluster_names();
            tell(&self.names, &members, &mut self.pipeline);
            self.names.take()
        }
    }

    fn has_import((_, changes): &(bool, Vec<NamesChange>)) -> bool {
        changes.iter().any(|change| {
            matches!(change, NamesChange::Whole { key, service, .. }
                if key.name == "web" && service.is_some())
        })
    }

    #[test]
    fn a_cluster_that_leaves_keeps_the_names_of_its_imports() {
        for flushes_between in [false, true] {
            let mut rig = Rig::default();
            rig.pipeline.follow_names();
            rig.take_policies(&[EU, US]);
            for cluster in ["eu-1", "us-1"] {
                rig.put(Object::Namespace(key(cluster, "", "shop")));
            }
            rig.put(export());
            let told = rig.flush(&["eu-1", "us-1"]);
            assert!(has_import(&told["eu-1"]), "{told:?}");

            rig.take_policies(&[US]);
            if flushes_between {
                let told = rig.flush(&["eu-1", "us-1"]);
                assert!(!told.contains_key("eu-1"), "{told:?}");
            }
            rig.leave("eu-1");
            let told = rig.flush(&["us-1"]);
            assert_eq!(told.get("eu-1"), Some(&(true, Vec::new())));

            // It comes back with all of them.
            rig.take_policies(&[EU, US]);
            rig.put(Object::Namespace(key("eu-1", "", "shop")));
            let told = rig.flush(&["eu-1", "us-1"]);
            assert!(has_import(&told["eu-1"]), "{told:?}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Tells DNS the imports of each cluster, as flushes change them.

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
        if pipeline.take_namespaces_changed() {
            // Of those that have not synced too: a flush for another cluster has taken the change.
            for cluster in self.federated.cluster_names() {
                let namespaces = pipeline.catalog().namespaces(&cluster);
                let namespaces = namespaces.into_iter().flatten();
                names.namespaces(&cluster, namespaces.map(|name| name.to_string()).collect());
            }
        }
        for key in pipeline.take_renamed() {
            if let Some(change) = change(&key, pipeline.named(&key)) {
                names.import(&key.cluster, change);
            }
        }
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

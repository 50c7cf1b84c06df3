// SPDX-License-Identifier: Apache-2.0

//! EndpointSlices of imports (KEP-1645), which only those who ask for them get: they cost each API server storage.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_model::{Family, Protocol};
use serde_json::{Value, json};

use crate::labels::is_label;

/// The most endpoints of one slice, as of Kubernetes' own controller.
pub(crate) const PER_SLICE: usize = 100;
/// Value of the label `endpointslice.kubernetes.io/managed-by` of the slices.
pub(crate) const MANAGED_BY: &str = "portolan.dev";

/// An endpoint of an import.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// `zone`.
    pub zone: Option<Arc<str>>,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
}

/// The endpoints that one cluster gives an import, each with the numbers of its ports.
pub type WantedEndpoints = BTreeMap<WantedEndpoint, BTreeMap<(Arc<str>, Protocol), u16>>;

/// An EndpointSlice: the endpoints of one port set, cluster and family.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedSlice {
    /// The import that it belongs to.
    pub import: ImportName,
    /// The object without the import as its owner.
    pub object: Value,
}

/// The slices of an import from one cluster, by name: of each family those with the same ports.
#[must_use]
pub fn slices(
    import: &ImportName,
    source: &str,
    endpoints: &WantedEndpoints,
) -> BTreeMap<ImportName, WantedSlice> {
    let mut groups: BTreeMap<(Family, &BTreeMap<_, u16>), Vec<&WantedEndpoint>> = BTreeMap::new();
    for (endpoint, ports) in endpoints {
        let family = Family::of(endpoint.address);
        groups.entry((family, ports)).or_default().push(endpoint);
    }
    let mut all = BTreeMap::new();
    for ((family, ports), endpoints) in groups {
        for (number, part) in endpoints.chunks(PER_SLICE).enumerate() {
            let name = ImportName {
                namespace: Arc::clone(&import.namespace),
                name: slice_name(import, source, family, ports, number).into(),
            };
            let object = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": &*name.namespace,
                    "name": &*name.name,
                    "labels": {
                        "multicluster.kubernetes.io/service-name": &*import.name,
                        "multicluster.kubernetes.io/source-cluster": source,
                        "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
                    },
                },
                "addressType": family.as_str(),
                "ports": spelled(ports),
                "endpoints": part.iter().map(|one| endpoint(one)).collect::<Vec<_>>(),
            });
            let import = import.clone();
            all.insert(name, WantedSlice { import, object });
        }
    }
    all
}

fn slice_name(
    import: &ImportName,
    source: &str,
    family: Family,
    ports: &BTreeMap<(Arc<str>, Protocol), u16>,
    number: usize,
) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(source.as_bytes());
    hasher.update(&[0]);
    hasher.update(family.as_str().as_bytes());
    for ((name, protocol), port) in ports {
        hasher.update(format!("\0{name}\0{protocol}\0{port}").as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    // Names of Services have at most 63 characters, those of slices 253.
    format!("{}-{}-{number}", import.name, &hash[..10])
}

fn spelled(ports: &BTreeMap<(Arc<str>, Protocol), u16>) -> Vec<Value> {
    let spelled = ports.iter().map(|((name, protocol), port)| {
        json!({"name": &**name, "protocol": protocol.as_str(), "port": port})
    });
    spelled.collect()
}

fn endpoint(endpoint: &WantedEndpoint) -> Value {
    let mut fields = json!({
        "addresses": [endpoint.address.to_string()],
        "conditions": {
            "ready": endpoint.ready,
            "serving": endpoint.serving,
            "terminating": endpoint.terminating,
        },
    });
    if let Some(zone) = &endpoint.zone {
        fields["zone"] = (**zone).into();
    }
    if let Some(hostname) = endpoint.hostname.as_deref().filter(|name| is_label(name)) {
        fields["hostname"] = hostname.into();
    }
    fields
}

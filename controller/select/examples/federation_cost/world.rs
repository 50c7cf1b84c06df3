// SPDX-License-Identifier: Apache-2.0

//! Synthetic clusters that share their Services, the same in each run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{
    Endpoint, EndpointSlice, ExportPort, Node, Object, ObjectChange, ObjectKey, Service,
    ServiceExport, ServiceFacts, ServicePort, ServiceType, SlicePort,
};
use portolan_model::{Family, Protocol};
use portolan_policy::{File, Objects, read};
use portolan_select::{ClusterState, Pipeline, import_key};

/// A policy for all imports: own endpoints first.
const LOCAL_FIRST_POLICY: &str =
    "{services: {}, tiers: [{clusters: [{local: true}]}, {rest: true}]}";

/// A policy for all imports: endpoints of all clusters alike, 64 of them.
const SPREAD_POLICY: &str = "{services: {}, tiers: [{rest: true}], maxEndpoints: 64}";

/// Way in which imports choose their endpoints, and owners of their Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Every cluster exports every Service and uses its own endpoints.
    LocalFirst,
    /// Every cluster exports every Service and uses 64 endpoints of all clusters.
    Spread,
    /// Each Service is of one cluster; all clusters import it.
    Distinct,
}

/// The size of the federation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) shape: Shape,
    /// At most 250.
    pub(crate) clusters: usize,
    /// Services of each cluster, at most 2,000.
    pub(crate) services: usize,
    /// Endpoints of each Service in a cluster, at most 10.
    pub(crate) endpoints: usize,
}

/// A federation as large as a centre must hold.
pub(crate) const LARGE: World = World {
    shape: Shape::LocalFirst,
    clusters: 50,
    services: 2_000,
    endpoints: 10,
};

/// Every event changes the imports of all clusters here, so fewer Services take as long.
pub(crate) const SPREAD: World = World {
    shape: Shape::Spread,
    services: 200,
    ..LARGE
};

impl World {
    /// Policies, states and objects, with virtual addresses for all imports, not yet computed.
    pub(crate) fn load(self) -> Pipeline {
        let mut pipeline = Pipeline::default();
        pipeline.set_policies(self.policies());
        pipeline.set_states(self.states(None));
        for cluster in 0..self.clusters {
            self.objects(cluster)
                .for_each(|change| pipeline.apply(change));
        }
        pipeline
    }

    /// As [`Self::load`], and computed.
    pub(crate) fn filled(self) -> Pipeline {
        let mut pipeline = self.load();
        pipeline.flush();
        allocate(&mut pipeline);
        pipeline.flush();
        pipeline
    }

    /// All clusters with their whole shares, but for one that is lost.
    pub(crate) fn states(self, lost: Option<usize>) -> BTreeMap<Arc<str>, ClusterState> {
        let state = |cluster| ClusterState {
            lost: lost == Some(cluster),
            ..ClusterState::default()
        };
        (0..self.clusters)
            .map(|cluster| (name_of(cluster), state(cluster)))
            .collect()
    }

    /// An event that replaces one endpoint of a cluster.
    pub(crate) fn event(self, number: usize) -> ObjectChange {
        // Far apart, and every Service gets its turn.
        let spread = number.wrapping_mul(7_919);
        let cluster = spread % self.clusters;
        self.slice(cluster, spread / self.clusters % self.services, number + 1)
    }

    /// Two events: an export of the first cluster is deleted, and created again.
    pub(crate) fn export_goes_and_comes(self, service: usize) -> [ObjectChange; 2] {
        let created = self.export(0, service);
        let ObjectChange::Put { object, .. } = &created else {
            unreachable!("an export is put")
        };
        [ObjectChange::Delete(object.reference()), created]
    }

    fn policies(self) -> Objects {
        let spec = match self.shape {
            Shape::LocalFirst => LOCAL_FIRST_POLICY,
            Shape::Spread | Shape::Distinct => SPREAD_POLICY,
        };
        let document = |kind: &str, name: &str, spec: &str| {
            format!(
                "apiVersion: portolan.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\n\
                 spec: {spec}\n---\n"
            )
        };
        let quota = "{quota: {exportsPerCluster: 10000}}";
        let mut text =
            document("ClusterSet", "all", quota) + &document("TrafficPolicy", "all", spec);
        for cluster in 0..self.clusters {
            let network = format!(
                "{{podCIDRs: [{}.0.0.0/8], clusterSetIPs: [240.0.0.0/6]}}",
                cluster % 200 + 20
            );
            let spec = format!(
                "{{access: {{files: [x]}}, network: {network}, quota: {{endpoints: 1000000}}}}"
            );
            text += &document("Cluster", &name_of(cluster), &spec);
        }
        let reading = read(&[File {
            name: "policies",
            text: &text,
        }]);
        assert_eq!(reading.problems, []);
        reading.objects
    }

    /// All objects of a cluster.
    pub(crate) fn objects(self, cluster: usize) -> impl Iterator<Item = ObjectChange> {
        let namespace = put(Object::Namespace(ObjectKey {
            namespace: "".into(),
            ..key(cluster, "shop")
        }));
        let node = put(Object::Node(Node::new(ObjectKey {
            namespace: "".into(),
            ..key(cluster, "node-0")
        })));
        let services = (0..self.services).flat_map(move |service| {
            [
                self.service(cluster, service),
                self.export(cluster, service),
                self.slice(cluster, service, 0),
            ]
        });
        [namespace, node].into_iter().chain(services)
    }

    /// The name of a Service of a cluster.
    fn service_name(self, cluster: usize, service: usize) -> String {
        match self.shape {
            Shape::Distinct => format!("service-{cluster}-{service}"),
            Shape::LocalFirst | Shape::Spread => format!("service-{service}"),
        }
    }

    fn service(self, cluster: usize, service: usize) -> ObjectChange {
        let [_, _, a, b] = bytes(service);
        put(Object::Service(Service {
            cluster_ips: vec![[10, 96, a, b].into()],
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            ..Service::new(key(cluster, &self.service_name(cluster, service)))
        }))
    }

    fn export(self, cluster: usize, service: usize) -> ObjectChange {
        put(Object::ServiceExport(ServiceExport {
            requested: true,
            service: Some(Arc::new(ServiceFacts {
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
            })),
            ..ServiceExport::new(key(cluster, &self.service_name(cluster, service)))
        }))
    }

    fn slice(self, cluster: usize, service: usize, version: usize) -> ObjectChange {
        let service_name = self.service_name(cluster, service);
        let network = bytes(cluster % 200 + 20)[3];
        let endpoints = (0..self.endpoints).map(|number| {
            // Each version replaces one endpoint. Numbers of the first version are below 20,000.
            let is_replaced = version > 0 && number == version % self.endpoints;
            let number = service * self.endpoints + number;
            let number = number + if is_replaced { version * 20_000 } else { 0 };
            let [_, a, b, c] = bytes(number);
            Endpoint {
                node: Some("node-0".into()),
                ..Endpoint::new(IpAddr::from([network, a, b, c]))
            }
        });
        put(Object::EndpointSlice(EndpointSlice {
            key: key(cluster, &format!("{service_name}-x7k2p")),
            service: service_name.into(),
            family: Family::V4,
            ports: vec![SlicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: endpoints.collect(),
            triggered_ms: None,
        }))
    }
}

/// Gives each import of a cluster the next address.
pub(crate) fn allocate(pipeline: &mut Pipeline) {
    for (cluster, wanted) in pipeline.wanted().into_iter().flatten() {
        for (number, import) in wanted.into_iter().enumerate() {
            let [_, a, b, c] = bytes(number);
            let key = import_key(&cluster, &import.name);
            pipeline.set_address(key, vec![[240, a, b, c].into()]);
        }
    }
}

fn put(object: Object) -> ObjectChange {
    let problems = vec![];
    ObjectChange::Put { object, problems }
}

pub(crate) fn name_of(cluster: usize) -> Arc<str> {
    format!("cluster-{cluster}").into()
}

fn key(cluster: usize, name: &str) -> ObjectKey {
    let namespace = Arc::from("shop");
    ObjectKey {
        cluster: name_of(cluster),
        namespace,
        name: name.into(),
    }
}

fn bytes(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()
}

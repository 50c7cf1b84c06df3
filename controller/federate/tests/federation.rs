// SPDX-License-Identifier: Apache-2.0

//! All parts together: policies from a file, exports of four clusters, their imports and shares.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_federate::imports::{
    Candidate, ImportName, ImportRecord, Invisible, Member, ServiceType, World, imports,
};
use portolan_federate::merge::{Affinity, Export, ImportKind, Port};
use portolan_federate::shares::{Cluster, Endpoint, Precision};
use portolan_federate::vip::{Claim, Range, Vips};
use portolan_federate::{Moment, shares};
use portolan_model::{Families, Family, Protocol};
use portolan_policy::{File, Labels, Objects, read};

const POLICIES: &str = "
apiVersion: portolan.dev/v1alpha1
kind: ClusterSet
metadata: {name: prod}
spec: {}
---
apiVersion: portolan.dev/v1alpha1
kind: ImportPolicy
metadata: {name: deny-ap}
spec: {from: {names: [ap-1]}, action: Deny}
---
apiVersion: portolan.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: web}
spec:
  services: {namespaces: [shop], names: [web]}
  tiers:
    - {clusters: [{local: true}]}
    - {sameAs: [region.topology.k8s.io]}
    - {rest: true}
  minHealthy: 70%
";

fn cluster(name: &str, region: &str, network: u8) -> String {
    format!(
        "
---
apiVersion: portolan.dev/v1alpha1
kind: Cluster
metadata: {{name: {name}}}
spec:
  region: {region}
  access: {{edge: {{}}}}
  network: {{podCIDRs: [10.{network}.0.0/16], clusterSetIPs: [10.112.0.0/16]}}
"
    )
}

fn objects() -> Objects {
    let clusters = [
        ("eu-1", "eu"),
        ("eu-2", "eu"),
        ("us-1", "us"),
        ("ap-1", "ap"),
    ];
    let clusters = (1..).zip(clusters);
    let clusters: String = clusters
        .map(|(network, (name, region))| cluster(name, region, network))
        .collect();
    let text = [POLICIES, &clusters].concat();
    let reading = read(&[File {
        name: "policy.yaml",
        text: &text,
    }]);
    assert_eq!(reading.problems, []);
    reading.objects
}

fn web() -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: "web".into(),
    }
}

fn export(cluster: &str) -> Candidate {
    Candidate {
        requested: true,
        service: Some(ServiceType::ClusterIp),
        labels: Labels::new(),
        weight: None,
        ready_endpoints: 1,
        export: Export {
            cluster: cluster.into(),
            created: Some(0),
            kind: ImportKind::ClusterSetIp,
            ports: vec![Port {
                name: "http".into(),
                protocol: Protocol::Tcp,
                number: 80,
                app_protocol: None,
            }],
            affinity: Affinity::None,
            internal_local: false,
            traffic_distribution: None,
            cluster_selectors: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            families: vec![Family::V4],
        },
    }
}

fn world(objects: &Objects) -> World<'_> {
    let members = objects.clusters.iter().map(|(name, cluster)| {
        let ranges = &cluster.network.cluster_set_ips;
        let member = Member {
            id: cluster.id.as_str().into(),
            labels: cluster.labels(&Labels::new()),
            namespaces: BTreeSet::from([Arc::from("shop")]),
            ranges: ranges
                .iter()
                .map(|range| Family::of(range.addr()))
                .collect::<Families>(),
            max_exports: 10,
            max_endpoints: 10,
            exports: BTreeMap::from([(web(), export(&cluster.id))]),
            ..Member::default()
        };
        (Arc::from(name.as_str()), member)
    });
    World {
        set: objects.set.as_ref().unwrap(),
        objects,
        members: members.collect(),
    }
}

/// Pods of a cluster, of which so many are ready.
fn pods(network: u8, ready: u8, expected: u32) -> Cluster {
    let endpoints = (1..=ready).map(|last| Endpoint {
        address: ([10, network, 0, last], 8080).into(),
        weight: 1,
        usable: true,
    });
    Cluster {
        endpoints: endpoints.collect(),
        ready: ready.into(),
        expected,
        step: 20,
        drained: false,
        gateway: false,
    }
}

/// Weights with the number of endpoints that have them.
fn counted(share: &shares::Share) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for (_, weight) in &share.weights {
        *counts.entry(*weight).or_default() += 1;
    }
    counts
}

#[test]
fn a_weak_local_tier_gives_its_load_to_the_region() {
    let objects = objects();
    let world = world(&objects);
    let federation = imports(&world);
    let (eu, ap) = (Arc::from("eu-1"), Arc::from("ap-1"));
    let import = &federation.imports[&eu][&web()];
    let clusters = [
        ("eu-1", pods(1, 5, 10)),
        ("eu-2", pods(2, 20, 20)),
        ("us-1", pods(3, 10, 10)),
        ("ap-1", pods(4, 4, 4)),
    ];
    let clusters = clusters.map(|(id, cluster)| (Arc::from(id), cluster));
    let record = ImportRecord {
        importing: "eu-1",
        key: b"eu-1/shop/web@clusterset:http/TCP",
        ..ImportRecord::default()
    };
    let shares = import.traffic.shares(record, &clusters.into());
    assert_eq!(shares.loads, [14, 6, 0]);
    assert_eq!(shares.precision, Precision::Exact);
    let ids: Vec<&str> = shares.clusters.keys().map(|id| &**id).collect();
    assert_eq!(ids, ["eu-1", "eu-2"]);
    assert_eq!(counted(&shares.clusters["eu-1"]), [(9, 1), (10, 4)].into());
    assert_eq!(counted(&shares.clusters["eu-2"]), [(1, 19), (2, 1)].into());

    let explained = federation.explain(&world, &eu, &ap, &web(), None);
    let reason = explained.invisible.unwrap();
    assert!(matches!(reason, Invisible::ImportDenied(_)));
    let expected = "not imported: denied by ImportPolicy deny-ap: no other policy selects it";
    assert_eq!(reason.to_string(), expected);

    let range = objects.clusters["eu-1"]
        .network
        .cluster_set_range(Family::V4);
    let mut vips = Vips::new(range.map(Range::new));
    let claim = Claim {
        name: web(),
        created: None,
        families: import.families.clone(),
        ips: Vec::new(),
    };
    let found = vips.allocate(&[claim], Moment::default());
    assert!(range.unwrap().contains(&found[&web()].ips[0]));
}

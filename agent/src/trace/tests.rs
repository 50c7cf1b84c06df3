// SPDX-License-Identifier: Apache-2.0

//! Ways by tables, against the conformance table: the same expectations that packets are held to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_dataplane::FakeKernel;
use portolan_e2e::conformance::{Expectation, Place as Site, Row, Seen, Source, Target, expect};
use portolan_e2e::rig;
use portolan_model::trace::{Origin, Packet};
use portolan_model::{Family, NodeKey, Protocol};
use portolan_plan::host::{Host, Owned};
use portolan_plan::{DetectLocal, KernelState, VipBinding, desire};
use portolan_select::SelectConfig;
use portolan_source::file::Files;
use serde_json::json;

use super::kernel::Reading;
use super::*;
use crate::standalone::table_of;
use crate::sync::{Engine, Reconciler};

/// An address by its role: the number is the last part.
fn address(site: Site, family: rig::Family, role: &str) -> IpAddr {
    let site = site.number() + 1;
    let text = match (family, role) {
        (rig::Family::V4, "node") => format!("192.168.7.{site}"),
        (rig::Family::V6, "node") => format!("fd07::{site}"),
        (rig::Family::V4, role) => format!("10.244.{site}.{role}"),
        (rig::Family::V6, role) => format!("fd00:244:{site}::{role}"),
    };
    text.parse().unwrap()
}

const ENDPOINT: &str = "10";
const VISITOR: &str = "11";

/// Table and facts of a node.
fn node(site: Site, files: &std::path::Path) -> (NodeTable, NodeFacts) {
    let name: Arc<str> = format!("node{}", site.number() + 1).into();
    let files = Files::new(vec![files.to_owned()], &"".into());
    let report = files.on_host(Arc::clone(&name)).refresh();
    assert!(report.complete);
    let cluster = "".into();
    let key = NodeKey { cluster, name };
    let (table, problems) = table_of(report.changes, &key, SelectConfig::default());
    assert_eq!(problems, Vec::<String>::new());
    let own = rig::Family::ALL.map(|family| address(site, family, "node"));
    let facts = NodeFacts {
        addresses: own.into(),
        node_port_addresses: own.into(),
        source: own.map(|ip| (Family::of(ip), ip)).into(),
        ..NodeFacts::default()
    };
    (table, facts)
}

/// All objects of the rows.
fn objects(rows: &[Row]) -> Vec<serde_json::Value> {
    let protocols: BTreeSet<_> = rows.iter().map(|row| row.protocol).collect();
    let mut objects: Vec<_> = Site::ALL
        .map(|site| {
            let number = site.number() + 1;
            let addresses = rig::Family::ALL.map(|family| {
                json!({ "type": "InternalIP", "address": address(site, family, "node") })
            });
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": format!("node{number}"),
                    "labels": { "topology.kubernetes.io/zone": site.zone() } },
                "spec": { "podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")] },
                "status": { "addresses": addresses },
            })
        })
        .into();
    for target in Target::all() {
        objects.push(target.service(&protocols));
        objects
            .extend(target.slices_at(&protocols, |site, family| address(site, family, ENDPOINT)));
    }
    objects
}

fn packet(row: &Row) -> Packet {
    let entry = row.entry();
    let of = |site, role| address(site, row.family, role);
    let pod = |site| match site == entry {
        true => Origin::Pod,
        false => Origin::OtherPod,
    };
    let (origin, source) = match row.source {
        Source::Pod => (pod(Site::Here), of(Site::Here, VISITOR)),
        Source::Endpoint => (pod(Site::Here), of(Site::Here, ENDPOINT)),
        Source::PodThere => (pod(Site::There), of(Site::There, VISITOR)),
        Source::Node => (Origin::Node, of(Site::Here, "node")),
        Source::NodeThere if entry == Site::There => (Origin::Node, of(Site::There, "node")),
        Source::NodeThere => (Origin::Outside, of(Site::There, "node")),
        Source::Outside => match row.family {
            rig::Family::V4 => (Origin::Outside, "192.0.2.1".parse().unwrap()),
            rig::Family::V6 => (Origin::Outside, "2001:db8::1".parse().unwrap()),
        },
    };
    Packet {
        origin,
        source,
        destination: Target::of(row).socket_at(row, of(Site::Here, "node")),
        protocol: match row.protocol {
            rig::Protocol::Tcp => Protocol::Tcp,
            rig::Protocol::Udp => Protocol::Udp,
            rig::Protocol::Sctp => Protocol::Sctp,
        },
    }
}

/// The end of a way in the words of the conformance table: places, and the source that each sees.
fn answered(row: &Row, way: &Way) -> BTreeMap<Site, Seen> {
    let entry = row.entry();
    let of = |server: &portolan_model::trace::Server| {
        let is_it = |site: &Site| address(*site, row.family, ENDPOINT) == server.address.ip();
        let site = Site::ALL.into_iter().find(is_it).unwrap();
        let seen = match (server.masquerade, row.source) {
            (true, _) if site == entry => Seen::Gateway(entry),
            (true, _) => Seen::Node(entry),
            (false, Source::Node) => Seen::Node(Site::Here),
            (false, Source::NodeThere) => Seen::Node(Site::There),
            (false, _) => Seen::Asker,
        };
        (site, seen)
    };
    way.outcome.chosen().map(of).collect()
}

fn is_as_expected(row: &Row, way: &Way) -> bool {
    match (expect(row), &way.outcome) {
        (Expectation::Dropped, Outcome::Dropped { .. })
        | (Expectation::Refused, Outcome::Refused { .. }) => true,
        (Expectation::Answers(expected), Outcome::Forwarded { .. }) => {
            let found = answered(row, way);
            found.keys().eq(expected.keys())
                && found
                    .iter()
                    .all(|(site, seen)| expected[site].contains(seen))
        }
        _ => false,
    }
}

#[test]
fn every_row_of_the_conformance_table_is_traced_to_its_expectation() {
    let rows = Row::all();
    let directory = tempfile::tempdir().unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects(&rows) });
    std::fs::write(directory.path().join("objects.json"), list.to_string()).unwrap();
    let nodes = Site::ALL.map(|site| node(site, directory.path()));
    let networks = ["10.244.0.0/16", "fd00:244::/32"].map(|text| text.parse().unwrap());
    let config = Config {
        detect_local: DetectLocal::ClusterCidr(networks.into()),
        ..Config::default()
    };
    let mut wrong = Vec::new();
    for kind in [PlaneKind::Ipvs, PlaneKind::Nftables] {
        let plane = Plane {
            kind,
            config: config.clone(),
            kernel: KernelConfig::default(),
        };
        let readings = nodes.each_ref().map(|(table, facts)| match kind {
            PlaneKind::Ipvs => {
                let state = desire(table, facts, &config, &KernelState::default()).state;
                [0, 1].map(|_| Reading::Ipvs(Box::new(state.clone())))
            }
            PlaneKind::Nftables => Family::ALL.map(|family| {
                let served = portolan_nftables::Ways::new(table, facts);
                let node = &table.node;
                let desired = portolan_nftables::desire(family, &served, &config, node, None);
                Reading::Nftables(Some(desired.content))
            }),
        });
        // A row asks for one packet: what a table wants is the same for all of them.
        let sides = Site::ALL.map(|site| {
            let (table, facts) = &nodes[site.number()];
            let readings = Family::ALL.into_iter().zip(&readings[site.number()]);
            let sides =
                readings.map(|(family, reading)| plane.sides(table, facts, reading, family));
            sides.collect::<Vec<_>>()
        });
        for row in &rows {
            let packet = packet(row);
            let (table, facts) = &nodes[row.entry().number()];
            let family = usize::from(packet.source.is_ipv6());
            let sides = &sides[row.entry().number()][family];
            let ways = plane.ways(&table.node, facts, sides, &packet);
            assert_eq!(ways.wanted, ways.found, "{kind:?} {row}");
            if !is_as_expected(row, &ways.found) {
                wrong.push(format!(
                    "{kind:?} {row}: {} but {:#?}",
                    expect(row),
                    ways.found
                ));
            }
        }
    }
    assert!(rows.len() > 1000);
    for line in wrong.iter().take(4) {
        tracing::error!("{line}");
    }
    assert!(
        wrong.is_empty(),
        "{} of {} rows: {}",
        wrong.len(),
        rows.len(),
        wrong[0]
    );
}

#[test]
fn a_director_on_standby_is_compared_by_its_present_configuration() {
    let status = Status::default();
    let plane = Plane {
        kind: PlaneKind::Ipvs,
        config: Config::default(),
        kernel: KernelConfig::default(),
    };
    let tracer = Tracer::new("node1".to_owned(), status.clone(), plane);
    assert_eq!(tracer.plane_now().config, Config::default());
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let host = Host {
        is_active: false,
        binding: Some(VipBinding::Address),
        marks: Some(0x00ff_0000),
        ..Host::default()
    };
    reconciler.set_host(Some(Arc::new(host)), Owned::default());
    status.set_config(Engine::config(&reconciler));
    let Plane { config, kernel, .. } = tracer.plane_now();
    assert!(!config.binds_balancers);
    assert_eq!(config.asked_marks, Some(0x00ff_0000));
    assert_eq!(config.vip_binding, VipBinding::Address);
    assert_eq!(kernel.vip_binding, VipBinding::Address);
}

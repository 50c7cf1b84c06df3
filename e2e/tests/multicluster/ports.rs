// SPDX-License-Identifier: Apache-2.0

//! Ports of one Service that differ between the clusters that export it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_e2e::ask::{no_answer, ways};
use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::objects::{service, slice_named};
use portolan_e2e::rig::Family;
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use super::world::{CLUSTERS, World, shares, skip};

/// Addresses of the Service in its own cluster.
const API: [&str; 2] = ["10.96.0.20", "fd00:10:96::20"];
/// Connections to a port, all of which one cluster answers.
const TRIES: usize = 20;

/// A port of TCP and one of UDP with one number, by their names.
struct Ports {
    names: [&'static str; 2],
    number: u16,
}

impl Ports {
    /// The ports as the debug dump writes them.
    fn shown(&self) -> [String; 2] {
        let [tcp, udp] = self.names;
        let number = self.number;
        [format!("{tcp} {number}/TCP"), format!("{udp} {number}/UDP")]
    }

    fn of(&self, number: u16, key: &str) -> Value {
        let mut both = json!([{"name": self.names[0], "protocol": "TCP"}, {"name": self.names[1], "protocol": "UDP"}]);
        for port in both.as_array_mut().unwrap() {
            port["port"] = number.into();
            if !key.is_empty() {
                port[key] = EchoPod::PORT.into();
            }
        }
        both
    }
}

/// Exports `api` from a cluster, with all pods of the cluster as endpoints.
fn export(world: &World, number: usize, ports: &Ports, created: &str) {
    let of_service = ports.of(ports.number, "targetPort");
    let mut items = vec![service("api", API, json!({"ports": of_service}))];
    for (family, suffix, kind) in [(Family::V4, "v4", "IPv4"), (Family::V6, "v6", "IPv6")] {
        let pods = world.pods[number].iter();
        let endpoints: Vec<_> = pods.map(|pod| pod.endpoint(family, number)).collect();
        let spec = json!({"addressType": kind, "endpoints": endpoints, "ports": ports.of(EchoPod::PORT, "")});
        items.push(slice_named("api", suffix, spec));
    }
    items.push(
        json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"name": "api", "namespace": "default", "creationTimestamp": created}}),
    );
    let list = json!({"kind": "List", "items": items});
    let path = world.directory(number).join("api.json");
    world.write(path, &list.to_string());
}

/// The controller's answer about the import in a cluster.
fn import(world: &World, cluster: &str) -> Value {
    let path = format!("federation?cluster={cluster}&import=default/api");
    world.cluster.controller_debug(&path).unwrap_or_default()
}

/// Returns when every cluster has programmed the import with these ports, each of these clusters.
fn wait_for_ports(world: &World, expected: &[(&Ports, &[&str])]) {
    let wanted: BTreeSet<(String, Vec<&str>)> = expected
        .iter()
        .flat_map(|(ports, of)| ports.shown().map(|port| (port, of.to_vec())))
        .collect();
    for name in CLUSTERS {
        wait_for(&format!("{wanted:?} in {name}"), PATIENT, || {
            let answer = import(world, name);
            let is_sent = answer["import"]["pending"] == false;
            let is_programmed = answer["programmed"] == 1 && answer["connected"] == 1;
            let ports = answer["import"]["ports"].as_array()?;
            let found: Option<BTreeSet<_>> = ports.iter().map(shown).collect();
            let wanted = wanted.iter();
            let wanted = wanted.map(|(port, of)| (port.as_str(), of.clone()));
            let wanted: BTreeSet<_> = wanted.collect();
            (is_sent && is_programmed && found? == wanted).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error:#}: {}", import(world, name)));
    }
}

/// A port of the dump, and the clusters that expose it.
fn shown(port: &Value) -> Option<(&str, Vec<&str>)> {
    let clusters = port["clusters"].as_array()?.iter();
    let clusters = clusters.map(|one| one["cluster"].as_str()).collect();
    port["port"].as_str().zip(clusters)
}

/// The virtual address of the import in a cluster.
fn vip(world: &World, cluster: &str, family: Family, port: u16) -> SocketAddr {
    let answer = import(world, cluster);
    let vips = answer["import"]["vips"].as_array().unwrap();
    let mut vips = vips.iter().filter_map(|ip| ip.as_str()?.parse().ok());
    let is_it = |ip: &std::net::IpAddr| ip.is_ipv4() == (family == Family::V4);
    SocketAddr::new(vips.find(is_it).unwrap(), port)
}

/// A pod in each cluster.
fn visitors(world: &World) -> [EchoPod; 3] {
    [0, 1, 2].map(|number| {
        let name = format!("inside-{number}");
        world.cluster.add_pod(number, &name).unwrap()
    })
}

/// From every cluster a port of the import leads to the pods of one cluster, and to no other ones.
fn leads_to(world: &World, visitors: &[EchoPod; 3], port: u16, exporter: &str) {
    for (visitor, cluster) in visitors.iter().zip(CLUSTERS) {
        for (family, protocol) in ways() {
            let to = vip(world, cluster, family, port);
            for _ in 0..TRIES {
                let answer = visitor.pod.request(protocol, to, PATIENT).unwrap();
                assert!(
                    answer.name.starts_with(exporter),
                    "{protocol:?} {to} in {cluster}: {answer:?}"
                );
            }
        }
    }
}

/// The requirement C4 of the table in `docs/conformance.md`.
#[test]
fn of_two_numbers_of_one_port_the_older_exports_leads_to_its_cluster_alone() {
    if skip("of_two_numbers_of_one_port_the_older_exports_leads_to_its_cluster_alone") {
        return;
    }
    let world = World::new([2, 2, 1], shares(), json!({}));
    let names = ["http", "dns"];
    let (older, younger) = (Ports { names, number: 42 }, Ports { names, number: 43 });
    // The name of the cluster decides between exports of one age.
    export(&world, 1, &older, "2026-01-01T00:00:00Z");
    wait_for_ports(&world, &[(&older, &["eu-2"])]);
    export(&world, 0, &younger, "2026-01-02T00:00:00Z");
    let conflict = wait_for("the conflict", PATIENT, || {
        let path = "federation?cluster=eu-1&export=default/api";
        let answer = world.cluster.controller_debug(path).ok()?;
        Some(answer["conflicts"].as_str()?.to_owned())
    });
    let conflict = conflict.unwrap();
    assert!(conflict.contains("those of eu-2 come first"), "{conflict}");
    wait_for_ports(&world, &[(&older, &["eu-2"])]);
    let visitors = visitors(&world);
    leads_to(&world, &visitors, 42, "eu-2");
    for (family, protocol) in ways() {
        let to = vip(&world, CLUSTERS[0], family, 43);
        no_answer(&visitors[0].pod, protocol, to);
    }
}

/// The requirement C5 of that table.
#[test]
fn ports_of_two_clusters_lead_to_their_own_cluster_alone() {
    if skip("ports_of_two_clusters_lead_to_their_own_cluster_alone") {
        return;
    }
    let world = World::new([2, 2, 1], shares(), json!({}));
    let (first, second) = (
        Ports {
            names: ["http", "dns"],
            number: 42,
        },
        Ports {
            names: ["admin", "log"],
            number: 43,
        },
    );
    export(&world, 0, &first, "2026-01-01T00:00:00Z");
    export(&world, 1, &second, "2026-01-02T00:00:00Z");
    wait_for_ports(&world, &[(&first, &["eu-1"]), (&second, &["eu-2"])]);
    let visitors = visitors(&world);
    leads_to(&world, &visitors, 42, "eu-1");
    leads_to(&world, &visitors, 43, "eu-2");
}

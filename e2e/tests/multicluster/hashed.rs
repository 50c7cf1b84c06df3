// SPDX-License-Identifier: Apache-2.0

//! Clients whose addresses IPVS hashes (`mh`), when a cluster goes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::rig::{Connection, Family, Protocol};

use super::losses::{cut, soon};
use super::world::{CLUSTERS, PODS, World, shares, skip_on};

const CLIENTS: u8 = 200;
/// The network of the clients' addresses: one of pods that no node has.
const NETWORK: &str = "10.244.201.0/24";
/// The cluster that goes, and its share in percent.
const GOES: (usize, f64) = (2, 10.0);

/// Addresses of clients, all of them the visitor's.
fn clients(world: &World) -> Vec<SocketAddr> {
    let addresses = (1..=CLIENTS).map(|k| Ipv4Addr::new(10, 244, 201, k));
    let addresses: Vec<Ipv4Addr> = addresses.collect();
    let pod = &world.visitor.pod;
    let add = |address: &Ipv4Addr| format!("addr add {address}/32 dev eth0");
    let commands: Vec<String> = addresses.iter().map(add).collect();
    pod.namespace().ip(&commands).unwrap();
    let rig = &world.cluster.rig;
    let here = rig.node(0);
    here.add_route(NETWORK, pod.address(Family::V4)).unwrap();
    for there in &rig.nodes()[1..] {
        there.add_route(NETWORK, here.address(Family::V4)).unwrap();
    }
    let sources = addresses.into_iter();
    sources
        .map(|address| SocketAddr::new(address.into(), 0))
        .collect()
}

/// The pod that answers each of the clients.
fn pods(world: &World, clients: &[SocketAddr]) -> Vec<String> {
    let vip = world.vip("eu-1", Family::V4);
    let ask = |client: &SocketAddr| {
        let timeout = Duration::from_secs(10);
        let connection = Connection::open_at(*client, Protocol::Tcp, vip, timeout);
        let answer = connection.and_then(|mut connection| connection.ask());
        answer.unwrap_or_else(|error| panic!("{client} to {vip}: {error}"))
    };
    let ask_all = || -> Vec<String> { clients.iter().map(|client| ask(client).name).collect() };
    world.visitor.pod.namespace().run(ask_all).unwrap()
}

/// The clients of a cluster's pods, in percent.
fn percent(pods: &[String], cluster: &str) -> f64 {
    let of_cluster = pods.iter().filter(|pod| pod.starts_with(cluster));
    100.0 * of_cluster.count() as f64 / f64::from(CLIENTS)
}

/// 200 clients are too few for the table of hashes to be seen exactly: four standard deviations.
fn check(pods: &[String], expected: [f64; 3]) {
    for (name, expected) in CLUSTERS.iter().zip(expected) {
        let (found, part) = (percent(pods, name), expected / 100.0);
        let deviation = 100.0 * (part * (1.0 - part) / f64::from(CLIENTS)).sqrt();
        let is_close = (found - expected).abs() <= 4.0 * deviation + 0.1;
        assert!(is_close, "{found} instead of {expected} % of {name}");
    }
}

/// All endpoints fill the kernel's table of hashes in turns, as many as they have weight. Those that go move clients of
/// others too, and so do the weights of these, which are other small numbers then: 21 of 200 clients were measured.
/// Without a consistent hash most would move.
#[test]
fn clients_hashed_by_address_keep_their_pods_when_another_cluster_goes_on_ipvs() {
    let name = "clients_hashed_by_address_keep_their_pods_when_another_cluster_goes_on_ipvs";
    if skip_on("ipvs", name) {
        return;
    }
    let mut traffic = shares();
    traffic["scheduler"] = "mh".into();
    let world = World::on("ipvs", PODS, traffic, soon());
    world.wait_for_shares([700, 200, 100]);
    let (number, share) = GOES;
    world.wait_for_state(CLUSTERS[number], "Ready");
    let clients = clients(&world);
    let before = pods(&world, &clients);
    assert_eq!(pods(&world, &clients), before, "hashed by address");
    for cluster in CLUSTERS {
        let name = format!("multicluster_mh_{}", cluster.replace('-', "_"));
        figure(&name, percent(&before, cluster), "% of clients", None);
    }
    check(&before, [70.0, 20.0, 10.0]);

    cut(&world, number, true);
    world.wait_for_state(CLUSTERS[number], "Lost");
    world.wait_for_shares([778, 222, 0]);
    let after = pods(&world, &clients);
    check(&after, [700.0 / 9.0, 200.0 / 9.0, 0.0]);
    let of_others = before.iter().zip(&after);
    let of_others = of_others.filter(|(pod, _)| !pod.starts_with(CLUSTERS[number]));
    let moved: Vec<_> = of_others.filter(|(old, new)| old != new).collect();
    let (count, most) = (moved.len() as f64, 2.0 * share / 100.0 * f64::from(CLIENTS));
    let goal = Some(Goal::AtMost(most));
    figure("multicluster_mh_moved_from_others", count, "clients", goal);
    assert!(count <= most, "{moved:?}");

    // It is reached as before when it is back.
    cut(&world, number, false);
    world.wait_for_state(CLUSTERS[number], "Ready");
    world.wait_for_shares([700, 200, 100]);
    check(&pods(&world, &clients), [70.0, 20.0, 10.0]);
}

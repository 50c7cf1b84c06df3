// SPDX-License-Identifier: Apache-2.0

//! Two clusters with the same networks of pods, which reach each other by gateways alone.

#![allow(clippy::unwrap_used, reason = "a test")]

mod large;
mod segments;
mod world;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{
    Answer, Connection, Family, Load, LoadConfig, Protocol, RequestError, evidence,
};
use portolan_e2e::wait::wait_for;

use large::Large;
use world::World;

/// The time after which a connection that is dropped counts as such.
const DROPPED: Duration = Duration::from_secs(2);

/// The time for an answer; shorter than the kernels keep the state of a connection that is not answered.
const ANSWERED: Duration = Duration::from_secs(30);

#[test]
fn gateways_of_nftables() {
    let needs = [Need::Root, Need::Nftables];
    if lane::provides("gateways_of_nftables", &needs) {
        play("nftables", false);
    }
}

#[test]
fn gateways_of_a_cluster_behind_an_edge() {
    let needs = [Need::Root, Need::Nftables];
    if lane::provides("gateways_of_a_cluster_behind_an_edge", &needs) {
        play("nftables", true);
    }
}

#[test]
fn gateways_of_ipvs() {
    if lane::provides("gateways_of_ipvs", &[Need::Root, Need::Ipvs]) {
        play("ipvs", false);
    }
}

fn play(dataplane: &'static str, has_edge: bool) {
    let mut world = World::new(dataplane, has_edge);
    connections_reach_the_other_cluster(&world);
    // Before a pod knows how small the link is.
    segments::fit_the_path_where_icmp_is_lost(&mut world, dataplane);
    large_answers_pass_a_small_link(&world);
    strangers_are_refused(&world);
    another_gateway_takes_over(&world);
}

/// All families and protocols, in both directions; the pods see an address of the gateway.
fn connections_reach_the_other_cluster(world: &World) {
    let directions = [
        (
            &world.visitor,
            "here",
            "web",
            ["there-0", "there-1"],
            [2, 3],
        ),
        (
            &world.stranger,
            "there",
            "back",
            ["here-0", "here-0"],
            [0, 1],
        ),
    ];
    for (visitor, cluster, service, expected, gateways) in directions {
        let mut sources: Vec<IpAddr> = Vec::new();
        for node in gateways.map(|number| world.cluster.rig.node(number)) {
            let (v4, v6) = node.gateway();
            sources.extend([
                IpAddr::from(v4),
                v6.into(),
                node.v4().into(),
                node.v6().into(),
            ]);
        }
        for family in Family::ALL {
            let vip = world.vip(cluster, service, family);
            for protocol in Protocol::ALL {
                let mut met = std::collections::BTreeSet::new();
                for _ in 0..60 {
                    let answer = ask(visitor, protocol, vip);
                    assert!(
                        sources.contains(&answer.source),
                        "{answer:?} of {sources:?}"
                    );
                    met.insert(answer.name);
                }
                let expected = expected.map(str::to_owned).into();
                assert_eq!(met, expected, "{cluster} {service} {family:?} {protocol:?}");
            }
        }
    }
}

/// An answer to a request from a port of its own, by which the kernels' state of it is found.
fn ask(from: &EchoPod, protocol: Protocol, to: SocketAddr) -> Answer {
    static PORT: AtomicU16 = AtomicU16::new(30_000);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let ask = || Connection::open_from(port, protocol, to, ANSWERED)?.ask();
    let answer = from.pod.namespace().run(ask).unwrap();
    answer.unwrap_or_else(|error| {
        let lines = evidence::of_port(port).join("\n    ");
        panic!("{protocol:?} from port {port} to {to}: {error}\n    {lines}")
    })
}

/// 100 kB from a pod with a link of 1,500 bytes over a LAN of 1,300.
fn large_answers_pass_a_small_link(world: &World) {
    for family in Family::ALL {
        let vip = world.vip("here", "large", family);
        for _ in 0..10 {
            let answer = large::ask(&world.visitor.pod, vip, Large::Answer, PATIENT).unwrap();
            assert!(
                large::is_whole(&answer, Large::Answer),
                "{} bytes of {family:?}",
                answer.len()
            );
        }
    }
}

/// The port of a gateway is for nodes of importing clusters: not for others on the LAN, nor the cluster's own nodes.
fn strangers_are_refused(world: &World) {
    let rig = &world.cluster.rig;
    for family in Family::ALL {
        for gateway in world.gateways("here", "web", family) {
            for protocol in Protocol::ALL {
                let port = world.same_address(gateway, "here", "web", protocol);
                let found = rig.client().request(protocol, port, DROPPED);
                assert_eq!(found, Err(RequestError::TimedOut), "{port} {protocol:?}");
                let answer = rig.node(0).request(protocol, port, PATIENT).unwrap();
                assert!(answer.name.starts_with("there-"), "{answer:?}");
            }
        }
    }
}

/// A gateway that is not ready gets no new connections, and none fails while it still serves. Then it is gone.
fn another_gateway_takes_over(world: &World) {
    let vip = world.vip("here", "web", Family::V4);
    let config = LoadConfig {
        workers: 2,
        pause: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        ..LoadConfig::default()
    };
    let load = Load::start(&world.visitor.pod, &[vip], config.clone()).unwrap();
    world.nodes_of_there([false, true]);
    let left = world.cluster.rig.node(3).v4();
    wait_for("the other gateway alone", PATIENT, || {
        let gateways = world.gateways("here", "web", Family::V4);
        let is_alone = gateways.iter().all(|at| at.ip() == IpAddr::from(left));
        (is_alone && gateways.len() == 1 && world.is_programmed("here", "web")).then_some(())
    })
    .unwrap();
    let report = load.stop();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.requests > 0);
    let lost = world.cluster.rig.node(2);
    for other in [0, 1] {
        world
            .cluster
            .rig
            .cut([lost, world.cluster.rig.node(other)], true)
            .unwrap();
    }
    for family in Family::ALL {
        let vip = world.vip("here", "web", family);
        for protocol in Protocol::ALL {
            for _ in 0..20 {
                // Its pods are not reached by the other gateway either, if the link between both is cut too.
                let answer = world.visitor.pod.request(protocol, vip, PATIENT).unwrap();
                assert!(answer.name.starts_with("there-"), "{answer:?}");
            }
        }
    }
}

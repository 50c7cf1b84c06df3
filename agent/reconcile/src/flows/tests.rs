// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_dataplane::Tuple;
use portolan_model::{Destination, Frontend, FrontendKind, NodeOverlay, RecordKey};

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn record(service: &str, protocol: Protocol, ways: &[&str], destinations: &[&str]) -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol,
    };
    let frontend = |way: &&str| match way.parse::<SocketAddr>() {
        Ok(vip) => Frontend::new(
            FrontendKind::ClusterIp,
            FrontendAddress::Vip(vip.ip()),
            vip.port(),
        ),
        Err(_) => Frontend::new(
            FrontendKind::NodePort,
            FrontendAddress::NodeAddresses(Family::V4),
            way.parse().unwrap(),
        ),
    };
    let destination = |text: &&str| Destination::new(address(text));
    Record {
        frontends: ways.iter().map(frontend).collect(),
        destinations: destinations.iter().map(destination).collect(),
        ..Record::new(key)
    }
}

fn table(records: Vec<Record>) -> NodeTable {
    let records = records.into_iter();
    NodeTable {
        records: records.map(|r| (r.key.clone(), Arc::new(r))).collect(),
        ..NodeTable::default()
    }
}

/// A node with one address.
fn facts() -> NodeFacts {
    let own: BTreeSet<_> = [address("192.168.77.11:0").ip()].into();
    NodeFacts {
        addresses: own.clone(),
        node_port_addresses: own,
        ..NodeFacts::default()
    }
}

/// A flow from a client to `to` with replies from `from`.
fn flow(to: &str, from: &str) -> Flow {
    let (to, from) = (address(to), address(from));
    let client = match to {
        SocketAddr::V4(_) => address("192.168.77.200:40000"),
        SocketAddr::V6(_) => address("[fd00:77::200]:40000"),
    };
    Flow {
        original: Tuple {
            source: client,
            destination: to,
        },
        reply: Tuple {
            source: from,
            destination: client,
        },
        id: 7,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn flows_are_stale_by_the_source_of_their_replies() {
    let dns = record(
        "dns",
        Protocol::Udp,
        &[
            "10.96.0.10:53",
            "192.0.2.10:53",
            "30053",
            "[fd00:96::10]:53",
        ],
        &["10.244.1.2:1053", "10.244.2.2:1053", "[fd00:244::2]:1053"],
    );
    let empty = record("empty", Protocol::Udp, &["10.96.0.11:53", "30054"], &[]);
    let tcp = record(
        "tcp",
        Protocol::Tcp,
        &["10.96.0.12:53", "30055"],
        &["10.244.1.2:53"],
    );
    let facts = facts();
    let mut table = table(vec![dns, empty, tcp]);
    let own = NodeOverlay {
        own: vec![address("10.244.1.9:1053")],
        local: vec![Destination::new(address("10.244.1.8:1053"))],
        cluster: vec![Destination::new(address("10.244.1.7:1053"))],
        ..NodeOverlay::default()
    };
    let key = table.records.keys().find(|key| &*key.service == "dns");
    table.lists.insert(key.unwrap().clone(), Arc::new(own));

    for (to, from, stale, why) in [
        ("10.96.0.10:53", "10.244.1.2:1053", false, "serves"),
        (
            "10.96.0.10:53",
            "10.244.1.7:1053",
            false,
            "serves by the node's cluster list",
        ),
        (
            "10.96.0.10:53",
            "10.244.1.8:1053",
            false,
            "serves by the local list",
        ),
        (
            "10.96.0.10:53",
            "10.244.1.9:1053",
            false,
            "is the node's own",
        ),
        ("10.96.0.10:53", "10.244.9.9:1053", true, "is gone"),
        (
            "10.96.0.10:53",
            "10.244.1.2:53",
            true,
            "another port of a pod that serves",
        ),
        (
            "10.96.0.10:53",
            "10.96.0.10:53",
            true,
            "was never translated",
        ),
        ("10.96.0.10:54", "10.244.9.9:1053", false, "no port of ours"),
        ("192.0.2.10:53", "10.244.9.9:1053", true, "an external IP"),
        (
            "192.168.77.11:30053",
            "10.244.9.9:1053",
            true,
            "a node port",
        ),
        (
            "192.168.77.11:30053",
            "192.168.77.11:30053",
            true,
            "a node port, never translated",
        ),
        (
            "203.0.113.5:30053",
            "203.0.113.5:30053",
            false,
            "a port of that number elsewhere",
        ),
        (
            "192.168.77.11:30053",
            "10.244.2.2:1053",
            false,
            "a node port that serves",
        ),
        (
            "10.96.0.11:53",
            "10.244.9.9:53",
            false,
            "a Service with no endpoint keeps all",
        ),
        (
            "192.168.77.11:30054",
            "10.244.9.9:53",
            false,
            "a Service with no endpoint keeps all",
        ),
        (
            "10.96.0.12:53",
            "10.244.9.9:53",
            false,
            "a TCP Service has no UDP flows",
        ),
        ("8.8.8.8:53", "8.8.8.8:53", false, "somebody else's"),
    ] {
        let stale_flows = StaleFlows::new(&table, &facts, Family::V4);
        assert_eq!(
            stale_flows.is_stale(&flow(to, from)),
            stale,
            "{to} <- {from}: {why}"
        );
    }
    let v6 = StaleFlows::new(&table, &facts, Family::V6);
    for (from, stale) in [("[fd00:244::2]:1053", false), ("[fd00:244::3]:1053", true)] {
        assert_eq!(
            v6.is_stale(&flow("[fd00:96::10]:53", from)),
            stale,
            "{from}"
        );
    }
}

#[test]
fn endpoints_of_other_nodes_alone_make_flows_of_a_local_service_stale() {
    let mut local = record("local", Protocol::Udp, &["10.96.0.10:53"], &[]);
    local.available.insert(Family::V4);
    let facts = facts();
    let stale = StaleFlows::new(&table(vec![local]), &facts, Family::V4);
    assert!(stale.is_stale(&flow("10.96.0.10:53", "10.244.1.2:53")));
}

#[test]
fn flows_that_only_pass_to_the_node_of_an_external_ip_are_not_stale() {
    let addresses = ["192.168.77.11:53", "192.168.77.12:53"];
    let mut dns = record("dns", Protocol::Udp, &addresses, &["10.244.1.2:1053"]);
    for frontend in &mut dns.frontends {
        frontend.bind = false;
    }
    let facts = facts();
    let stale_flows = StaleFlows::new(&table(vec![dns]), &facts, Family::V4);
    let is_stale = |to, from| stale_flows.is_stale(&flow(to, from));
    let [own, other] = addresses;
    assert!(is_stale(own, own), "the node has the address");
    assert!(!is_stale(other, other), "another node has the address");
    assert!(is_stale(other, "10.244.9.9:1053"), "IPVS has translated it");
}

// SPDX-License-Identifier: Apache-2.0

//! Node ports follow the node's addresses, as they come and go and as flags choose among them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portolan_e2e::ask::{PROMPT, address};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Family, Protocol, RequestError};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const NODE_PORT: u16 = 30080;
/// The timeout of one request; an unanswered one is repeated where an answer is expected.
const BRIEF: Duration = Duration::from_millis(500);

/// Two additional addresses of node 0.
const MORE: [(&str, &str); 2] = [("192.168.77.99", "24"), ("fd00:77::99", "64")];

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

/// A Service with node ports, and an agent on node 0 with more arguments that reads the whole
/// kernel only once an hour.
fn cluster(args: &[&str]) -> (Cluster, EchoPod) {
    let mut cluster = Cluster::new().unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let args = [&["--sync-period=3600"], args].concat();
    cluster.start_agent_with(0, &args).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let pod = cluster.add_pod(1, "a").unwrap();
    let spec = json!({ "type": "NodePort", "ports": ports(Some(NODE_PORT)) });
    let objects = [vec![service("web", WEB, spec)], slices("web", &[(&pod, 1)])].concat();
    cluster.put("web.json", &objects).unwrap();
    (cluster, pod)
}

fn answers(cluster: &Cluster, protocol: Protocol, address: IpAddr) -> bool {
    let at = SocketAddr::new(address, NODE_PORT);
    let client = cluster.rig.client();
    match client.request(protocol, at, BRIEF) {
        Ok(answer) => answer.name == "a",
        Err(RequestError::Refused | RequestError::TimedOut | RequestError::Unreachable) => false,
        Err(error) => panic!("{protocol:?} {at}: {error}"),
    }
}

/// The agent's virtual servers, as text.
fn virtual_servers(cluster: &Cluster) -> String {
    let Value::Array(servers) =
        cluster.agent_debug(0, "desired").unwrap()["virtual_servers"].take()
    else {
        panic!("no virtual servers")
    };
    let keys = servers
        .iter()
        .map(|server| server["key"].as_str().unwrap().to_owned());
    keys.collect::<Vec<_>>().join("\n")
}

fn change(cluster: &Cluster, verb: &str) {
    let commands = MORE.map(|(address, length)| {
        let nodad = if address.contains(':') && verb == "add" {
            " nodad"
        } else {
            ""
        };
        format!("addr {verb} {address}/{length} dev eth0{nodad}")
    });
    cluster.rig.node(0).namespace().ip(&commands).unwrap();
}

#[test]
fn node_ports_follow_added_and_removed_addresses() {
    if skip("node_ports_follow_added_and_removed_addresses") {
        return;
    }
    let (cluster, _pod) = cluster(&[]);
    let more = MORE.map(|(address, _)| address.parse::<IpAddr>().unwrap());
    assert!(!virtual_servers(&cluster).contains("192.168.77.99"));

    let start = Instant::now();
    change(&cluster, "add");
    for address in more {
        for protocol in Protocol::ALL {
            wait_for("the node port on the new address", PATIENT, || {
                answers(&cluster, protocol, address).then_some(())
            })
            .unwrap();
        }
    }
    println!("node ports on new addresses after {:?}", start.elapsed());

    change(&cluster, "del");
    wait_for("the virtual servers of the address to go", PATIENT, || {
        let servers = virtual_servers(&cluster);
        (!more.iter().any(|ip| servers.contains(&ip.to_string()))).then_some(())
    })
    .unwrap();
    for family in Family::ALL {
        let stays = cluster.rig.node(0).address(family);
        wait_for("the node port on the address that stays", PATIENT, || {
            answers(&cluster, Protocol::Tcp, stays).then_some(())
        })
        .unwrap_or_else(|error| panic!("{stays}: {error}"));
    }
    // A new pod adds links and addresses. Of these the gateway's takes node ports.
    let _pod = cluster.add_pod(0, "b").unwrap();
    let (gateway, _) = cluster.rig.node(0).gateway();
    wait_for("the gateway's virtual servers", PATIENT, || {
        virtual_servers(&cluster)
            .contains(&gateway.to_string())
            .then_some(())
    })
    .unwrap();
}

#[test]
fn node_ports_are_on_the_chosen_addresses_only() {
    if skip("node_ports_are_on_the_chosen_addresses_only") {
        return;
    }
    let own = "--node-ip=192.168.77.11,fd00:77::11";
    for (choice, v4, v6) in [
        (
            "--node-port-addresses=primary",
            [true, false],
            [true, false],
        ),
        (
            "--nodeport-addresses=192.168.77.99/32",
            [false, true],
            [true, true],
        ),
        (
            "--node-port-addresses=192.168.77.11/32,fd00:77::99/128",
            [true, false],
            [false, true],
        ),
    ] {
        let (cluster, _pod) = cluster(&[own, choice]);
        change(&cluster, "add");
        let node = cluster.rig.node(0);
        for (family, expected) in [(Family::V4, v4), (Family::V6, v6)] {
            let index = usize::from(family == Family::V6);
            let both = [node.address(family), MORE[index].0.parse().unwrap()];
            for (address, expected) in both.into_iter().zip(expected) {
                if expected {
                    wait_for("the node port", PATIENT, || {
                        answers(&cluster, Protocol::Tcp, address).then_some(())
                    })
                    .unwrap_or_else(|error| panic!("{choice}: {address}: {error}"));
                } else {
                    assert!(
                        !answers(&cluster, Protocol::Tcp, address),
                        "{choice}: {address}"
                    );
                }
            }
        }
        let servers = virtual_servers(&cluster);
        assert!(
            !servers.contains("127.0.0.1") && !servers.contains("fe80"),
            "{servers}"
        );
    }
}

#[test]
fn own_connections_leave_with_an_address_of_the_network_that_they_leave_by() {
    let name = "own_connections_leave_with_an_address_of_the_network_that_they_leave_by";
    if skip(name) {
        return;
    }
    // The Node is unknown, and so are the pod ranges.
    let mut cluster = Cluster::new().unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    let unknown = ["--detect-local-mode=NodeCIDR"];
    cluster.start_agent_with(0, &unknown).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let pod = cluster.add_pod(0, "a").unwrap();
    // A separate network, without a route to the node's other addresses.
    let (v4, v6) = cluster.rig.node(0).gateway();
    let only = [
        format!("route add {v4}/32 dev eth0"),
        format!("route add {v6}/128 dev eth0"),
        format!("route del default via {v4} dev eth0"),
        format!("route del default via {v6} dev eth0"),
    ];
    pod.pod.namespace().ip(&only).unwrap();
    let objects = [
        vec![service("web", WEB, json!({}))],
        slices("web", &[(&pod, 0)]),
    ]
    .concat();
    cluster.put("web.json", &objects).unwrap();
    for (family, gateway) in [(Family::V4, IpAddr::from(v4)), (Family::V6, v6.into())] {
        for protocol in Protocol::ALL {
            let to = address(WEB, family, 80);
            let answer = cluster.rig.node(0).request(protocol, to, PROMPT);
            assert_eq!(answer.unwrap().source, gateway, "{protocol:?} {to}");
        }
    }
}

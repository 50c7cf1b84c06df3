// SPDX-License-Identifier: Apache-2.0

//! Marks for IPVS, beside a table of ours: only what the table translates loses them.

use std::net::{SocketAddr, UdpSocket};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::rig::Host;
use portolan_e2e::wait::wait_for;
use portolan_model::Family;
use portolan_netlink::nftables::{Nftables, Request};
use portolan_nftables::{detach_requests, unmark_requests};

use crate::{TABLE, node_with, skip};

/// The bits of marks that lead to virtual servers.
const BITS: u32 = 0x3fff_0000;
/// The address that somebody else serves too, here a socket of the node.
const SERVICE: &str = "10.96.0.1:80";
const BACKEND: &str = "10.96.0.2:8080";

/// Our table as far as it translates one address and port, and the rules around it: `mangle` gives the mark, and packets
/// are counted where IPVS would see it.
const TABLES: &str = "table ip portolan {
    chain nat-out {
        type nat hook output priority -101;
        ip daddr 10.96.0.1 udp dport 80 dnat to 10.96.0.2:8080
    }
}
table ip others {
    counter marked {}
    counter translated {}
    counter translated-marked {}
    chain mangle {
        type filter hook output priority -150;
        ct state new ip daddr 10.96.0.1 meta mark set 0x10000
    }
    chain ipvs {
        type filter hook output priority -98;
        ip daddr 10.96.0.1 meta mark 0x10000 counter name marked
        ip daddr 10.96.0.2 counter name translated
        ip daddr 10.96.0.2 meta mark != 0 counter name translated-marked
    }
}";

#[test]
fn only_packets_that_are_translated_lose_their_mark() {
    if skip("only_packets_that_are_translated_lose_their_mark") {
        return;
    }
    let rig = node_with(&["10.96.0.1/32", "10.96.0.2/32"]);
    let node = rig.node(0);
    let namespace = node.namespace();
    namespace
        .exec_with_input(&["nft", "-f", "-"], TABLES)
        .unwrap();
    let commit = |requests: &[Request]| {
        let commit = || Nftables::open()?.commit(Family::V4, TABLE, requests, None);
        namespace.run(commit).unwrap().unwrap();
    };
    commit(&unmark_requests(BITS));
    assert_eq!(asked(node), BACKEND);
    assert_eq!(counters(node), [0, 1, 0]);

    // No packet enters the rules any more, and the table is still there.
    commit(&detach_requests());
    assert_eq!(asked(node), SERVICE);
    assert_eq!(counters(node), [1, 1, 0]);
}

/// Asks the Service over a new connection; returns the address and port at which the question arrived.
fn asked(node: &Host) -> String {
    let ask = || {
        let servers = [SERVICE, BACKEND].map(|address| {
            let server = UdpSocket::bind(address).unwrap();
            server.set_nonblocking(true).unwrap();
            server
        });
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client
            .send_to(b"?", SERVICE.parse::<SocketAddr>().unwrap())
            .unwrap();
        // On a busy processor another thread of the kernel delivers the packet.
        let arrived = wait_for("the question", PATIENT, || {
            let mut servers = servers.iter();
            servers.find(|server| server.recv(&mut [0; 8]).is_ok())
        });
        arrived.unwrap().local_addr().unwrap().to_string()
    };
    node.namespace().run(ask).unwrap()
}

/// Packets with the mark, translated ones, and translated ones with a mark.
fn counters(node: &Host) -> [u64; 3] {
    ["marked", "translated", "translated-marked"].map(|name| {
        let text = node
            .exec(&["nft", "list", "counter", "ip", "others", name])
            .unwrap();
        let (_, rest) = text.split_once("packets ").unwrap();
        let (packets, _) = rest.split_once(' ').unwrap();
        packets.parse().unwrap()
    })
}

// SPDX-License-Identifier: Apache-2.0

//! Deletion of our table while somebody else serves its addresses.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portolan_e2e::programs::program;
use portolan_e2e::rig::Host;

use crate::{node_with, skip};

/// Deletions. Without a detached table every tenth refused a packet, on two processors.
const DELETIONS: usize = 60;

/// Our table as far as a packet to one address and port meets it. Its chain is a filter, so that each packet meets it
/// and not only the first one of a connection.
const TABLE: &str = "table ip portolan {
    map services {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.0.1 . udp . 80 : goto pick }
    }
    set cluster-ips {
        type ipv4_addr
        elements = { 10.96.0.1 }
    }
    chain pick { accept; }
    chain refusal { reject with icmp port-unreachable; }
    chain nat-out {
        type filter hook output priority -101;
        ip daddr . meta l4proto . th dport vmap @services
        ip daddr @cluster-ips goto refusal
    }
}";

#[test]
fn a_table_that_is_deleted_refuses_no_packet() {
    if skip("a_table_that_is_deleted_refuses_no_packet") {
        return;
    }
    let rig = node_with(&["10.96.0.1/32"]);
    let node = rig.node(0);
    // By default the kernel sends one such message a second.
    node.namespace()
        .sysctl(&[("ipv4/icmp_ratelimit", "0")])
        .unwrap();
    let agent = program("portolan-agent").unwrap();
    let cleanup = [agent.to_str().unwrap(), "cleanup", "--dataplane=nftables"];
    let is_over = AtomicBool::new(false);
    let (sent, failed) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(node, &is_over));
        for _ in 0..DELETIONS {
            let nft = node.namespace().exec_with_input(&["nft", "-f", "-"], TABLE);
            let deleted = nft.and_then(|_| node.exec(&cleanup));
            if deleted.is_err() {
                is_over.store(true, Ordering::Relaxed);
            }
            deleted.unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        flood.join().unwrap()
    });
    println!("{sent} packets, {failed} refused");
    assert!(sent > 10_000, "{sent} packets");
    assert_eq!(failed, 0, "of {sent} packets");
}

/// Sends packets to the address until it is over; returns how many, and how many of them were refused.
fn flood(node: &Host, is_over: &AtomicBool) -> (u64, u64) {
    let send = || {
        let server = UdpSocket::bind("10.96.0.1:80").unwrap();
        server.set_nonblocking(true).unwrap();
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect("10.96.0.1:80").unwrap();
        let (mut sent, mut refused) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            sent += 1;
            match client.send(b"?") {
                Ok(_) => {}
                // The rules of the host itself say so, or an ICMP message about an earlier packet.
                Err(error)
                    if [ErrorKind::PermissionDenied, ErrorKind::ConnectionRefused]
                        .contains(&error.kind()) =>
                {
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            while server.recv(&mut [0; 8]).is_ok() {}
        }
        (sent, refused)
    };
    node.namespace().run(send).unwrap()
}

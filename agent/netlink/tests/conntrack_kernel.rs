// SPDX-License-Identifier: Apache-2.0

//! Conntrack on a real kernel: needs root, each test has a network namespace of its own.

#[path = "common/mod.rs"]
mod common;

use std::net::{SocketAddr, UdpSocket};

use portolan_model::Family;
use portolan_netlink::conntrack::{Conntrack, Flow};

use common::{in_netns, output};

const LANES: &[&str] = &["netns", "uml", "debian"];

/// Rules that need conntrack make the kernel track the namespace's flows.
fn open() -> Result<Conntrack, String> {
    for tool in ["iptables", "ip6tables"] {
        output(tool, "-w -A INPUT -m conntrack --ctstate INVALID -j DROP")
            .map_err(|error| error.to_string())?;
    }
    Conntrack::open().map_err(|error| error.to_string())
}

/// Sends a packet from a new client to an address; the flow is remembered for 30 seconds.
fn send(to: &str) -> SocketAddr {
    let to: SocketAddr = to.parse().expect("an address");
    let from = SocketAddr::new(to.ip(), 0);
    let client = UdpSocket::bind(from).expect("a client");
    client.connect(to).expect("a route to ourselves");
    // No socket listens there, which the next packet would report as an error.
    client.send(b"x").expect("sent");
    client.local_addr().expect("bound")
}

fn clients(flows: &[Flow]) -> Vec<SocketAddr> {
    flows.iter().map(|flow| flow.original.source).collect()
}

#[test]
fn udp_flows_are_read_and_deleted_by_family() {
    in_netns(
        "udp_flows_are_read_and_deleted_by_family",
        LANES,
        open,
        |mut conntrack| {
            for (family, to) in [(Family::V4, "127.0.0.1:53"), (Family::V6, "[::1]:53")] {
                let other = to.replace(":53", ":54");
                let (gone, stays, elsewhere) = (send(to), send(to), send(&other));
                let to: SocketAddr = to.parse().expect("an address");
                let ours = |flow: &Flow| flow.original.destination == to;
                let mut flows = conntrack.udp_flows(family, &ours).expect("flows");
                flows.sort_by_key(|flow| flow.original.source != gone);
                assert_eq!(clients(&flows), [gone, stays], "{family}");
                assert_eq!(flows[0].reply.source, to);

                assert_eq!(conntrack.delete(&flows[..1]), Ok(1));
                assert_eq!(conntrack.delete(&flows[..1]), Ok(0), "it is gone already");
                let left = conntrack.udp_flows(family, &|_| true).expect("flows");
                let mut left = clients(&left);
                left.sort_by_key(|client| *client != stays);
                assert_eq!(left, [stays, elsewhere], "{family}");
            }
        },
    );
}

#[test]
fn a_later_flow_between_the_same_addresses_is_not_deleted() {
    let test = "a_later_flow_between_the_same_addresses_is_not_deleted";
    in_netns(test, LANES, open, |mut conntrack| {
        send("127.0.0.1:53");
        let mut flows = conntrack.udp_flows(Family::V4, &|_| true).expect("flows");
        assert_eq!(flows.len(), 1);
        flows[0].id = flows[0].id.wrapping_add(1);
        assert_eq!(conntrack.delete(&flows), Ok(0));
        assert_eq!(
            conntrack
                .udp_flows(Family::V4, &|_| true)
                .expect("flows")
                .len(),
            1
        );
    });
}

#[test]
fn flows_of_other_protocols_are_left_out() {
    let test = "flows_of_other_protocols_are_left_out";
    in_netns(test, LANES, open, |mut conntrack| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let _client = std::net::TcpStream::connect(address).expect("connected");
        send("127.0.0.1:53");
        let flows = conntrack.udp_flows(Family::V4, &|_| true).expect("flows");
        assert_eq!(flows.len(), 1, "{flows:?}");
    });
}

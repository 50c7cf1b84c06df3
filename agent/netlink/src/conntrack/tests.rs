// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::codec::{read_flow, write_delete};
use super::*;
use crate::wire::Writer;

fn flow(client: &str, vip: &str, server: &str) -> Flow {
    let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
    Flow {
        original: Tuple {
            source: client,
            destination: vip.parse().unwrap(),
        },
        reply: Tuple {
            source: server,
            destination: client,
        },
        id: 0x0102_0304,
    }
}

fn tuple(writer: &mut Writer, kind: u16, tuple: Tuple, protocol: u8) {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => v4.ip().octets().to_vec(),
        SocketAddr::V6(v6) => v6.ip().octets().to_vec(),
    };
    let first = if tuple.source.is_ipv4() { 1 } else { 3 };
    writer.nest(kind, |nest| {
        nest.nest(1, |ip| {
            ip.attribute(first, &octets(tuple.source));
            ip.attribute(first + 1, &octets(tuple.destination));
        });
        nest.nest(2, |proto| {
            proto.u8(1, protocol);
            proto.attribute(2, &tuple.source.port().to_be_bytes());
            proto.attribute(3, &tuple.destination.port().to_be_bytes());
        });
    });
}

/// As the kernel sends it.
fn reply(flow: &Flow, protocol: u8, zone: Option<u16>) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.raw(&[2, 0, 0, 0]);
    tuple(&mut writer, 1, flow.original, protocol);
    tuple(&mut writer, 2, flow.reply, protocol);
    writer.attribute(3, &[0; 4]);
    writer.attribute(12, &flow.id.to_be_bytes());
    if let Some(zone) = zone {
        writer.attribute(18, &zone.to_be_bytes());
    }
    writer.as_bytes().to_vec()
}

#[test]
fn flows_of_both_families_are_read() {
    for flow in [
        flow("192.168.77.200:40000", "10.96.0.10:53", "10.244.1.2:1053"),
        flow(
            "[fd00::200]:40000",
            "[fd00:96::10]:53",
            "[fd00:244::2]:1053",
        ),
    ] {
        assert_eq!(read_flow(&reply(&flow, 17, None)), Ok(Some(flow)));
        assert_eq!(read_flow(&reply(&flow, 17, Some(0))), Ok(Some(flow)));
        assert_eq!(read_flow(&reply(&flow, 17, Some(5))), Ok(None));
        assert_eq!(read_flow(&reply(&flow, 6, None)), Ok(None));
    }
}

#[test]
fn a_deletion_names_the_flow() {
    let mut writer = Writer::default();
    write_delete(
        &mut writer,
        &flow("1.2.3.4:5", "6.7.8.9:10", "11.12.13.14:15"),
    );
    let expected: &[u8] = &[
        2, 0, 0, 0, // AF_INET
        52, 0, 1, 0x80, // CTA_TUPLE_ORIG
        20, 0, 1, 0x80, 8, 0, 1, 0, 1, 2, 3, 4, 8, 0, 2, 0, 6, 7, 8, 9, // CTA_TUPLE_IP
        28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, // CTA_TUPLE_PROTO: UDP
        6, 0, 2, 0, 0, 5, 0, 0, 6, 0, 3, 0, 0, 10, 0, 0, // ports
        8, 0, 12, 0, 1, 2, 3, 4, // CTA_ID
    ];
    assert_eq!(writer.as_bytes(), expected);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        let _ = read_flow(&bytes);
    }
}

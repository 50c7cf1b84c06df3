// SPDX-License-Identifier: Apache-2.0

use std::net::{IpAddr, SocketAddr};

use portolan_model::Protocol;
use portolan_model::ipvs::{
    Flags, ForwardingMethod, GueChecksum, RealServerConfig, Thresholds, Tunnel, VirtualServerConfig,
};
use proptest::prelude::*;

use super::reply::{Dest, Objects};
use super::*;
use crate::wire::Attributes;

fn key(address: &str, port: u16) -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, address.parse().unwrap(), port)
}

fn written(request: &Request) -> Vec<u8> {
    let mut writer = Writer::default();
    request.write(&mut writer);
    writer.as_bytes().to_vec()
}

#[cfg(target_endian = "little")]
#[test]
fn add_service_is_these_bytes() {
    let config = VirtualServerConfig {
        persistence: Some(10800),
        flags: Flags(Flags::SCHED1 | 0x8003),
        ..VirtualServerConfig::round_robin()
    };
    let request = Request::AddService {
        key: key("10.96.0.1", 443),
        config: config.into(),
    };
    let expected: &[u8] = &[
        1, 1, 0, 0, // NEW_SERVICE, version 1
        84, 0, 1, 0x80, // service
        6, 0, 1, 0, 2, 0, 0, 0, // AF_INET
        6, 0, 2, 0, 6, 0, 0, 0, // TCP
        20, 0, 3, 0, 10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // address
        6, 0, 4, 0, 1, 187, 0, 0, // port 443
        7, 0, 6, 0, b'r', b'r', 0, 0, // scheduler
        12, 0, 7, 0, 9, 0, 0, 0, 255, 255, 255, 255, // SCHED1 | PERSISTENT, mask
        8, 0, 8, 0, 0x30, 0x2a, 0, 0, // 10800 s
        8, 0, 9, 0, 255, 255, 255, 255, // netmask
    ];
    assert_eq!(written(&request), expected);
}

#[cfg(target_endian = "little")]
#[test]
fn add_dest_is_these_bytes() {
    let request = Request::AddDest {
        key: key("fd00::1", 53),
        real_server: "[fd00::2]:8053".parse().unwrap(),
        config: RealServerConfig::masquerade(100),
    };
    let v6 = |last: u8| {
        [
            20, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last,
        ]
    };
    let (mut vip, mut real) = (v6(1), v6(2));
    (vip[2], real[2]) = (3, 1);
    let expected: Vec<u8> = [
        &[
            5, 1, 0, 0, 48, 0, 1, 0x80, 6, 0, 1, 0, 10, 0, 0, 0, 6, 0, 2, 0, 6, 0, 0, 0,
        ][..],
        &vip,
        &[6, 0, 4, 0, 0, 53, 0, 0], // port
        &[72, 0, 2, 0x80],          // dest
        &real,
        &[6, 0, 2, 0, 0x1f, 0x75, 0, 0], // port 8053
        &[6, 0, 11, 0, 10, 0, 0, 0],     // AF_INET6
        &[8, 0, 3, 0, 0, 0, 0, 0],       // masquerade
        &[8, 0, 4, 0, 100, 0, 0, 0],     // weight
        &[8, 0, 5, 0, 0, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0, 0], // thresholds
    ]
    .concat();
    assert_eq!(written(&request), expected);
}

#[cfg(target_endian = "little")]
#[test]
fn delete_of_a_mark_is_these_bytes() {
    let key = VirtualServerKey::Mark {
        family: Family::V6,
        mark: 0x1234_0000,
    };
    let expected: &[u8] = &[
        3, 1, 0, 0, 20, 0, 1, 0x80, // DEL_SERVICE, service
        6, 0, 1, 0, 10, 0, 0, 0, // AF_INET6
        8, 0, 5, 0, 0, 0, 0x34, 0x12, // mark
    ];
    assert_eq!(written(&Request::DelService { key }), expected);
}

#[test]
fn refuses_what_could_never_match() {
    let service = |port, scheduler: &str, persistence| Request::SetService {
        key: key("10.0.0.1", port),
        config: VirtualServerConfig {
            scheduler: scheduler.to_owned().into(),
            persistence,
            ..VirtualServerConfig::round_robin()
        }
        .into(),
    };
    assert!(service(80, "rr", None).is_valid());
    assert!(service(0, "rr", Some(300)).is_valid());
    assert!(!service(0, "rr", None).is_valid());
    assert!(!service(80, "", None).is_valid());
    assert!(!service(80, "sixteen-letters-", None).is_valid());
    assert!(!service(80, "r\0r", None).is_valid());
    let mark = |mark| Request::AddService {
        key: VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        },
        config: VirtualServerConfig::round_robin().into(),
    };
    assert!(mark(1).is_valid());
    assert!(!mark(0).is_valid());
}

fn read_service(payload: &[u8]) -> Option<(VirtualServerKey, VirtualServerConfig)> {
    let nest = Attributes::new(payload, family::HEADER_LEN)
        .unwrap()
        .get(attr::SERVICE)
        .unwrap();
    reply::service(&nest.nested()).unwrap()
}

/// A reply of the kernel: the attributes that were written, and the counters.
fn dest_reply(real_server: SocketAddr, config: &RealServerConfig, counters: [u32; 3]) -> Vec<u8> {
    let mut writer = Writer::default();
    request::write_header(&mut writer, request::NEW_DEST);
    writer.nest(attr::DEST, |nest| {
        request::write_dest(nest, real_server, Some(config));
        for (kind, counter) in (attr::dest::ACTIVE..).zip(counters) {
            nest.u32(kind, counter);
        }
    });
    writer.as_bytes().to_vec()
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ]
}

fn any_key() -> impl Strategy<Value = VirtualServerKey> {
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let address = (protocol, any_address(), any::<u16>())
        .prop_map(|(protocol, address, port)| VirtualServerKey::new(protocol, address, port));
    let family = prop::sample::select(&Family::ALL[..]);
    let mark =
        (family, 1..u32::MAX).prop_map(|(family, mark)| VirtualServerKey::Mark { family, mark });
    prop_oneof![address, mark]
}

fn any_config() -> impl Strategy<Value = VirtualServerConfig> {
    let engine = prop::option::of("[a-z]{1,15}");
    (
        "[a-z]{1,15}",
        any::<u32>(),
        any::<Option<u32>>(),
        prop::option::of(1..128u32),
        engine,
    )
        .prop_map(
            |(scheduler, flags, persistence, netmask, engine)| VirtualServerConfig {
                scheduler: scheduler.into(),
                flags: Flags(flags & Flags::MASK),
                persistence,
                netmask,
                engine: engine.map(Into::into),
            },
        )
}

fn any_forwarding() -> impl Strategy<Value = ForwardingMethod> {
    let checksums = [GueChecksum::None, GueChecksum::Full, GueChecksum::Remote];
    let gue = (1..=u16::MAX, prop::sample::select(checksums.to_vec()))
        .prop_map(|(port, checksum)| Tunnel::Gue { port, checksum });
    let gre = any::<bool>().prop_map(|checksum| Tunnel::Gre { checksum });
    let tunnel = prop_oneof![Just(Tunnel::Ipip), gue, gre];
    prop_oneof![
        Just(ForwardingMethod::Masquerade),
        Just(ForwardingMethod::Local),
        tunnel.prop_map(ForwardingMethod::Tunnel),
        Just(ForwardingMethod::Direct),
    ]
}

fn any_dest() -> impl Strategy<Value = RealServerConfig> {
    (any::<u32>(), any_forwarding(), any::<[u32; 2]>()).prop_map(|(weight, forwarding, limits)| {
        RealServerConfig {
            weight,
            forwarding,
            thresholds: Thresholds {
                upper: limits[0],
                lower: limits[1],
            },
        }
    })
}

proptest! {
    #[test]
    fn services_come_back(key in any_key(), config in any_config()) {
        let request = Request::AddService { key, config: config.clone().into() };
        prop_assert_eq!(read_service(&written(&request)), Some((key, config)));
    }

    #[test]
    fn dests_come_back(ip in any_address(), port: u16, config in any_dest(), counters: [u32; 3]) {
        let real_server = SocketAddr::new(ip, port);
        let [active, inactive, persistent] = counters;
        let expected = Dest {
            config,
            connections: Connections { active, inactive, persistent },
        };
        let mut dests = Objects::default();
        let reply = dest_reply(real_server, &config, counters);
        reply::read_dest(&mut dests, &reply).unwrap();
        prop_assert_eq!(dests.known, [(real_server, expected)]);
    }

    #[test]
    fn readers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = reply::read_v6_service(&mut Objects::default(), &bytes);
        let _ = reply::read_dest(&mut Objects::default(), &bytes);
        let _ = reply::read_info(&mut Info::default(), &bytes);
    }

    #[test]
    fn readers_never_panic_on_broken_replies(key in any_key(), config in any_config(),
        position: prop::sample::Index, byte: u8)
    {
        let mut bytes = written(&Request::AddService { key, config: config.into() });
        let position = position.index(bytes.len());
        bytes[position] = byte;
        let _ = reply::read_v6_service(&mut Objects::default(), &bytes);
        bytes.truncate(position);
        let _ = reply::read_v6_service(&mut Objects::default(), &bytes);
    }
}

#[test]
fn skips_what_has_no_type() {
    let mut services = Services::default();
    let mut add = |fill: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::default();
        request::write_header(&mut writer, request::GET_SERVICE);
        writer.nest(attr::SERVICE, |nest| {
            nest.u16(attr::service::ADDRESS_FAMILY, attr::AF_INET6);
            fill(nest);
        });
        reply::read_v6_service(&mut services, writer.as_bytes())
    };
    add(&|nest| {
        nest.u16(attr::service::PROTOCOL, 47);
        nest.attribute(attr::service::ADDRESS, &[0; 16]);
        nest.attribute(attr::service::PORT, &[0; 2]);
    })
    .unwrap();
    assert_eq!(
        add(&|_| {}),
        Err(Malformed::Missing {
            kind: attr::service::PROTOCOL
        })
    );
    assert_eq!((services.known.len(), services.skipped), (0, 1));
    let config = |flags| reply::config_of_dest(flags, 1, Thresholds::default(), None);
    assert_eq!((config(4), config(2)), (None, None));
    assert_eq!(config(0), Some(RealServerConfig::masquerade(1)));
}

// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::Protocol;
use portolan_model::ipset::SetEntry;
use proptest::prelude::*;

use super::*;
use crate::wire::Attributes;

fn header(kind: SetKind, family: Family) -> SetHeader {
    SetHeader {
        kind,
        family,
        max_entries: 65_536,
    }
}

fn written(request: &Request) -> Vec<u8> {
    let mut writer = Writer::default();
    request.write(
        &mut writer,
        0..request.entries().len(),
        &BTreeMap::from([(SetKind::HashIp, 6)]),
    );
    writer.as_bytes().to_vec()
}

#[cfg(target_endian = "little")]
#[test]
fn create_is_these_bytes() {
    let request = Request::Create {
        name: "KUBE".to_owned(),
        header: header(SetKind::HashIp, Family::V6),
        expected_entries: 3000,
        exclusive: true,
    };
    let expected: &[u8] = &[
        0, 0, 0, 0, // nfgenmsg
        5, 0, 1, 0, 7, 0, 0, 0, // protocol 7
        9, 0, 2, 0, b'K', b'U', b'B', b'E', 0, 0, 0, 0, // name
        12, 0, 3, 0, b'h', b'a', b's', b'h', b':', b'i', b'p', 0, // type
        5, 0, 4, 0, 6, 0, 0, 0, // revision
        5, 0, 5, 0, 10, 0, 0, 0, // AF_INET6
        20, 0, 7, 0x80, // data
        8, 0, 18, 0x40, 0, 0, 8, 0, // hash size 2048
        8, 0, 19, 0x40, 0, 1, 0, 0, // maximum
    ];
    assert_eq!(written(&request), expected);
    assert_eq!((request.kind(), request.flags()), (0x0602, 0x0200));
}

#[cfg(target_endian = "little")]
#[test]
fn add_is_these_bytes() {
    let net: IpNet = "10.1.0.0/16".parse().unwrap();
    let entry = SetEntry::IpPortNet([10, 0, 0, 1].into(), Protocol::Sctp, 36412, net);
    let request = Request::Add {
        name: "s".to_owned(),
        entries: Arc::new(vec![entry]),
    };
    let expected: &[u8] = &[
        0, 0, 0, 0, 5, 0, 1, 0, 7, 0, 0, 0, // header
        6, 0, 2, 0, b's', 0, 0, 0, // name
        8, 0, 9, 0, 0, 0, 0, 0, // line
        64, 0, 8, 0x80, 60, 0, 7, 0x80, // entries, data
        12, 0, 1, 0x80, 8, 0, 1, 0x40, 10, 0, 0, 1, // address
        6, 0, 4, 0x40, 0x8e, 0x3c, 0, 0, // port
        5, 0, 7, 0, 132, 0, 0, 0, // SCTP
        12, 0, 20, 0x80, 8, 0, 1, 0x40, 10, 1, 0, 0, // network
        5, 0, 21, 0, 16, 0, 0, 0, // prefix length
        8, 0, 9, 0, 1, 0, 0, 0, // line
    ];
    assert_eq!(written(&request), expected);
    assert_eq!(listing::bad_entry(expected), None);
    let mut echo = expected.to_vec();
    echo[24] = 1;
    assert_eq!(listing::bad_entry(&echo), Some(0));
}

#[cfg(target_endian = "little")]
#[test]
fn a_mark_is_these_bytes() {
    let entry = SetEntry::IpPortMark([10, 0, 0, 1].into(), Protocol::Tcp, 80, 0x1234_5678);
    let mut writer = Writer::default();
    entry::write(&mut writer, &entry);
    let expected: &[u8] = &[
        12, 0, 1, 0x80, 8, 0, 1, 0x40, 10, 0, 0, 1, // address
        6, 0, 4, 0x40, 0, 80, 0, 0, // port
        5, 0, 7, 0, 6, 0, 0, 0, // TCP
        12, 0, 27, 0x40, 0x12, 0x34, 0x56, 0x78, 255, 255, 255, 255, // mark, mask
    ];
    assert_eq!(writer.as_bytes(), expected);
    let mut half = expected.to_vec();
    half[36] = 0;
    let nest = Attributes::new(&half, 0).unwrap();
    assert_eq!(entry::read(SetKind::HashIpPortMark, nest), Ok(None));
}

#[test]
fn refuses_names() {
    let flush = |name: &str| Request::Flush {
        name: name.to_owned(),
    };
    assert_eq!(flush(&"x".repeat(31)).bad_name(), None);
    for name in ["", "a\0b", "x".repeat(32).as_str()] {
        assert_eq!(flush(name).bad_name(), Some(name));
        let swap = Request::Swap {
            a: "a".to_owned(),
            b: name.to_owned(),
        };
        assert_eq!(swap.bad_name(), Some(name));
    }
}

#[test]
fn refuses_entries_of_other_sets() {
    let v4: IpAddr = [10, 0, 0, 1].into();
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let net = |net: &str| SetEntry::IpPortNet(v4, Protocol::Tcp, 80, net.parse().unwrap());
    let check = |kind, entry| entry::check(&header(kind, Family::V4), &entry);
    assert_eq!(check(SetKind::HashIp, SetEntry::Ip(v4)), Ok(()));
    assert_eq!(
        check(SetKind::HashIp, SetEntry::Ip(v6)),
        Err(EntryFault::Family)
    );
    assert_eq!(
        check(SetKind::HashIpPort, SetEntry::Ip(v4)),
        Err(EntryFault::Kind)
    );
    let two = SetEntry::IpPortIp(v4, Protocol::Tcp, 80, v6);
    assert_eq!(check(SetKind::HashIpPortIp, two), Err(EntryFault::Family));
    assert_eq!(check(SetKind::HashIpPortNet, net("10.0.0.0/8")), Ok(()));
    assert_eq!(
        check(SetKind::HashIpPortNet, net("0.0.0.0/0")),
        Err(EntryFault::ZeroPrefix)
    );
    assert_eq!(
        check(SetKind::HashIpPortNet, net("fd00::/8")),
        Err(EntryFault::Family)
    );
    assert_eq!(check(SetKind::BitmapPort, SetEntry::Port(0)), Ok(()));
}

#[test]
fn follows_what_sets_become() {
    let name = || "a".to_owned();
    let add = Request::Add {
        name: name(),
        entries: Arc::new(vec![SetEntry::Port(1)]),
    };
    let create = |kind| Request::Create {
        name: name(),
        header: header(kind, Family::V4),
        expected_entries: 0,
        exclusive: false,
    };
    let mut headers = Headers::new();
    assert_eq!(
        follow(&mut headers, &add),
        Ok(()),
        "the kernel will say that there is no set"
    );
    follow(&mut headers, &create(SetKind::HashIp)).unwrap();
    follow(&mut headers, &create(SetKind::BitmapPort)).unwrap();
    assert_eq!(
        follow(&mut headers, &add),
        Err((0, EntryFault::Kind)),
        "the first set stays"
    );
    follow(&mut headers, &Request::Destroy { name: name() }).unwrap();
    follow(&mut headers, &create(SetKind::BitmapPort)).unwrap();
    assert_eq!(follow(&mut headers, &add), Ok(()));
    headers.insert(name(), None);
    assert_eq!(
        follow(&mut headers, &add),
        Err((0, EntryFault::Kind)),
        "a set of another type"
    );
}

fn any_entry() -> impl Strategy<Value = (SetKind, SetEntry)> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ];
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    (
        0..6,
        address.clone(),
        protocol,
        any::<u16>(),
        address,
        0u8..=32,
    )
        .prop_map(|(kind, ip, protocol, port, ip2, prefix)| match kind {
            0 => (SetKind::HashIp, SetEntry::Ip(ip)),
            1 => (SetKind::HashIpPort, SetEntry::IpPort(ip, protocol, port)),
            2 => (
                SetKind::HashIpPortIp,
                SetEntry::IpPortIp(ip, protocol, port, ip2),
            ),
            3 => {
                let net = IpNet::new(ip2, prefix).unwrap();
                (
                    SetKind::HashIpPortNet,
                    SetEntry::IpPortNet(ip, protocol, port, net),
                )
            }
            4 => {
                let mark = u32::from(port) << 16 | u32::from(prefix);
                let entry = SetEntry::IpPortMark(ip, protocol, port, mark);
                (SetKind::HashIpPortMark, entry)
            }
            _ => (SetKind::BitmapPort, SetEntry::Port(port)),
        })
}

fn all_readers(bytes: &[u8]) {
    let _ = listing::read(&mut Listing::default(), bytes);
    let _ = listing::read_name(&mut BTreeSet::new(), bytes);
    let _ = listing::read_revision(&mut 0, bytes);
    let _ = listing::read_protocol(&mut 0, bytes);
    let _ = listing::bad_entry(bytes);
    if let Ok(nest) = Attributes::new(bytes, 0) {
        let _ = entry::read(SetKind::HashIpPortNet, nest.clone());
        let _ = entry::read(SetKind::HashIpPortMark, nest);
    }
}

/// A part of a listing that is no different from a request to add, but for the header.
fn list_part(kind: SetKind, entry: &SetEntry) -> Vec<u8> {
    let mut writer = Writer::default();
    request::write_header(&mut writer);
    writer.string(attr::NAME, "a");
    writer.string(attr::TYPE_NAME, kind.type_name());
    writer.u8(attr::FAMILY, attr::IPV6);
    writer.nest(attr::DATA, |nest| {
        nest.be16(attr::create::PORT_FROM, 0);
        nest.be16(attr::create::PORT_TO, u16::MAX);
        nest.be32(attr::create::MAX_ENTRIES, 9);
        if kind == SetKind::HashIpPortMark {
            nest.be32(attr::create::FLAGS, attr::WITH_MARKS);
        }
    });
    writer.nest(attr::ENTRIES, |nest| {
        nest.nest(attr::DATA, |nest| entry::write(nest, entry))
    });
    writer.as_bytes().to_vec()
}

proptest! {
    #[test]
    fn entries_come_back((kind, entry) in any_entry()) {
        let mut listing = Listing::default();
        listing::read(&mut listing, &list_part(kind, &entry)).unwrap();
        let set = &listing.sets["a"];
        prop_assert_eq!(set.header.kind, kind);
        prop_assert_eq!(&set.entries, &BTreeSet::from([entry]));
    }

    #[test]
    fn entries_fit_their_share_of_a_message((_, entry) in any_entry()) {
        let mut writer = Writer::default();
        entry::write(&mut writer, &entry);
        prop_assert!(writer.len() + 12 <= 84);
    }

    #[test]
    fn readers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        all_readers(&bytes);
    }

    #[test]
    fn readers_never_panic_on_broken_listings((kind, entry) in any_entry(),
        position: prop::sample::Index, byte: u8)
    {
        let mut bytes = list_part(kind, &entry);
        let position = position.index(bytes.len());
        bytes[position] = byte;
        all_readers(&bytes);
        bytes.truncate(position);
        all_readers(&bytes);
    }
}

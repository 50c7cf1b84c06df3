// SPDX-License-Identifier: Apache-2.0

//! Domain names: below a zone and absolute, and those of the reverse tree.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use hickory_proto::rr::Name;
use ipnet::IpNet;

const IN_ADDR: [&str; 2] = ["in-addr", "arpa"];
const IP6: [&str; 2] = ["ip6", "arpa"];

/// The name of dotted text, absolute with or without the dot at its end. `None` if it is none.
pub(crate) fn absolute(text: &str) -> Option<Name> {
    let text = text.strip_suffix('.').unwrap_or(text);
    below(text, &Name::root())
}

/// The name of `relative` (labels separated by dots, or nothing) below `origin`.
pub(crate) fn below(relative: &str, origin: &Name) -> Option<Name> {
    let labels = relative.split('.').map(str::as_bytes);
    let labels = labels.filter(|_| !relative.is_empty());
    let mut name = Name::from_labels(labels.chain(origin.iter())).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// The labels of `name` above `zone`, in lower case, outermost first, if it is in the zone.
/// Labels that are not text match nothing, so they come out as such.
pub(crate) fn relative(name: &Name, zone: &Name) -> Option<Vec<String>> {
    let count = name.iter().len().checked_sub(zone.iter().len())?;
    let inside = name
        .iter()
        .skip(count)
        .zip(zone.iter())
        .all(|(a, b)| a.eq_ignore_ascii_case(b));
    inside.then(|| name.iter().take(count).map(lower).collect())
}

/// A label with a dot in it is one label on the wire; it must not be read as two.
fn lower(label: &[u8]) -> String {
    let text = String::from_utf8_lossy(label).to_ascii_lowercase();
    text.replace('.', "\u{fffd}")
}

/// The last labels of `name`, as many as `zone` has, spelled as they are in `name`.
pub(crate) fn suffix(name: &Name, zone: &Name) -> Name {
    name.trim_to(zone.iter().len())
}

/// Returns `true` if a zone is in the reverse tree.
pub(crate) fn is_reverse(zone: &Name) -> bool {
    let last: Vec<_> = zone.iter().rev().take(2).map(lower).collect();
    let is = |tree: [&str; 2]| last.iter().rev().eq(tree.iter());
    is(IN_ADDR) || is(IP6)
}

/// The name of an address in the reverse tree (RFC 1035 §3.5, RFC 3596 §2.5), without a dot at
/// its end.
pub(crate) fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = nibbles(v6.to_bits()).rev().map(|n| format!("{n:x}."));
            nibbles.collect::<String>() + "ip6.arpa"
        }
    }
}

/// The 32 half-bytes of an address, the most significant one first.
fn nibbles(bits: u128) -> impl DoubleEndedIterator<Item = u128> {
    (0..32).map(move |index| (bits >> (124 - 4 * index)) & 0xf)
}

/// The addresses that the names at and below a name of the reverse tree can stand for. A full
/// name stands for one.
pub(crate) fn reverse_range(name: &Name) -> Option<RangeInclusive<IpAddr>> {
    let labels: Vec<String> = name.iter().rev().map(lower).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        ["arpa", "in-addr", octets @ ..] if octets.len() <= 4 => v4_range(octets),
        ["arpa", "ip6", nibbles @ ..] if nibbles.len() <= 32 => v6_range(nibbles),
        _ => None,
    }
}

/// The address that a full name of the reverse tree stands for. As in CoreDNS, up to three labels in
/// front of the 32 of an IPv6 address make no difference.
pub(crate) fn pointed_at(name: &Name) -> Option<IpAddr> {
    let labels = name.iter().len();
    let name = if labels > 34 && labels < 38 && is_reverse(name) {
        name.trim_to(34)
    } else {
        name.clone()
    };
    let range = reverse_range(&name)?;
    (range.start() == range.end()).then(|| *range.start())
}

fn v4_range(labels: &[&str]) -> Option<RangeInclusive<IpAddr>> {
    let (mut low, mut high) = ([0; 4], [255; 4]);
    for (index, label) in labels.iter().enumerate() {
        let octet: u8 = label.parse().ok()?;
        // "007" and "+7" are other names than "7".
        if octet.to_string() != *label {
            return None;
        }
        (low[index], high[index]) = (octet, octet);
    }
    Some(Ipv4Addr::from(low).into()..=Ipv4Addr::from(high).into())
}

fn v6_range(labels: &[&str]) -> Option<RangeInclusive<IpAddr>> {
    let (mut low, mut high) = (0u128, u128::MAX);
    for (index, label) in labels.iter().enumerate() {
        let [byte] = label.as_bytes() else {
            return None;
        };
        let nibble = char::from(*byte).to_digit(16)?;
        let shift = 124 - 4 * index;
        low |= u128::from(nibble) << shift;
        high &= !(u128::from(0xf ^ nibble) << shift);
    }
    Some(Ipv6Addr::from(low).into()..=Ipv6Addr::from(high).into())
}

/// The zones of the reverse tree that make up a network. A prefix that does not end between two
/// labels needs several: 2 to 128 for IPv4, 2 to 8 for IPv6.
pub(crate) fn reverse_zones(net: IpNet) -> Vec<Name> {
    let (bits, labels_of) = match net {
        IpNet::V4(_) => (8, 4),
        IpNet::V6(_) => (4, 32),
    };
    let labels = net.prefix_len().div_ceil(bits);
    let Ok(parts) = net.trunc().subnets(labels * bits) else {
        return Vec::new();
    };
    parts
        .filter_map(|part| {
            let full = absolute(&reverse(part.addr()))?;
            let strip = usize::from(labels_of - labels);
            Some(full.trim_to(full.iter().len() - strip))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(net: &str) -> Vec<String> {
        let zones = reverse_zones(net.parse().unwrap());
        zones.iter().map(Name::to_string).collect()
    }

    #[test]
    fn networks_are_cut_at_labels() {
        assert_eq!(zones("10.0.0.0/8"), ["10.in-addr.arpa."]);
        assert_eq!(
            zones("10.96.0.0/15"),
            ["96.10.in-addr.arpa.", "97.10.in-addr.arpa."]
        );
        assert_eq!(zones("192.0.2.1/32"), ["1.2.0.192.in-addr.arpa."]);
        assert_eq!(zones("0.0.0.0/0"), ["in-addr.arpa."]);
        assert_eq!(zones("fd00::/8"), ["d.f.ip6.arpa."]);
        assert_eq!(zones("fd00::/7").len(), 2);
    }

    #[test]
    fn a_reverse_name_stands_for_its_address_and_no_other_spelling_does() {
        for text in ["10.0.0.7", "fd00:77:30::2:9ba6"] {
            let address: IpAddr = text.parse().unwrap();
            let name = absolute(&reverse(address)).unwrap();
            assert_eq!(reverse_range(&name), Some(address..=address));
        }
        for text in [
            "07.0.0.10.in-addr.arpa",
            "+7.0.0.10.in-addr.arpa",
            "1.7.0.0.10.in-addr.arpa",
            "256.in-addr.arpa",
            "10.ip6.arpa",
            "g.ip6.arpa",
            "x.cluster.local",
        ] {
            assert_eq!(reverse_range(&absolute(text).unwrap()), None, "{text}");
        }
    }

    #[test]
    fn a_dot_inside_a_label_does_not_split_it() {
        let name = Name::from_labels([&b"a.b"[..], b"zone"]).unwrap();
        let zone = absolute("zone").unwrap();
        assert_ne!(relative(&name, &zone), Some(vec!["a".into(), "b".into()]));
        assert_eq!(relative(&name, &zone).map(|labels| labels.len()), Some(1));
    }

    #[test]
    fn names_keep_the_spelling_of_the_question() {
        let name = absolute("Svc.CLUSTER.Local").unwrap();
        let zone = absolute("cluster.local").unwrap();
        assert_eq!(suffix(&name, &zone).to_ascii(), "CLUSTER.Local.");
        assert_eq!(relative(&name, &zone), Some(vec!["svc".to_owned()]));
        assert_eq!(relative(&zone, &name), None);
    }
}

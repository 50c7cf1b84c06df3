// SPDX-License-Identifier: Apache-2.0

//! The description of a set's keys and data in the words of `nft` (libnftnl: `NFTNL_UDATA_SET_*`; nftables: the `build`
//! functions of its expressions).
//!
//! The kernel keeps these bytes for `nft` alone. Of a key with a number `nft` needs them: numbers have no type of their
//! own, but that of the expression that makes them. Without them a listed map cannot be loaded beside its rules. The
//! bytes are those of nftables 1.0.6, which older and newer versions read; newer ones write bytes at which 1.0.6
//! crashes. So no other set has any. Numbers are in the host's byte order.

use super::{Data, Field, Set};

/// `NFTNL_UDATA_SET_KEYBYTEORDER` and `NFTNL_UDATA_SET_DATABYTEORDER`.
const BYTE_ORDERS: [u8; 2] = [0, 1];
/// `NFTNL_UDATA_SET_KEY_TYPEOF`.
const KEY: u8 = 3;
/// `NFTNL_UDATA_SET_DATA_TYPEOF`.
const DATA: u8 = 4;
/// `NFTNL_UDATA_SET_DATA_INTERVAL`.
const DATA_INTERVAL: u8 = 6;
/// `EXPR_PAYLOAD`.
const PAYLOAD: u32 = 7;
/// `EXPR_META`.
const META: u32 = 9;
/// `EXPR_CONCAT`.
const CONCATENATION: u32 = 13;
/// `EXPR_NUMGEN`.
const NUMBER: u32 = 23;

/// The bytes for a set; `None` if `nft` reads its keys by the numbers of their types.
pub(super) fn of_set(set: &Set) -> Option<Vec<u8>> {
    let Data::Fields(data) = &set.data else {
        return None;
    };
    if !set.key.contains(&Field::Number) {
        return None;
    }
    let mut bytes = Vec::new();
    for kind in BYTE_ORDERS {
        number(&mut bytes, kind, 0);
    }
    nest(&mut bytes, KEY, &concatenation(&set.key));
    nest(&mut bytes, DATA, &concatenation(data));
    number(&mut bytes, DATA_INTERVAL, 0);
    Some(bytes)
}

/// An expression, and the content that its kind has.
fn expression(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    number(&mut bytes, 0, kind);
    nest(&mut bytes, 1, content);
    bytes
}

fn concatenation(fields: &[Field]) -> Vec<u8> {
    let mut parts = Vec::new();
    for (place, field) in (0..).zip(fields) {
        nest(&mut parts, place, &of_field(*field));
    }
    expression(CONCATENATION, &parts)
}

/// The expression that a field stands for.
fn of_field(field: Field) -> Vec<u8> {
    let mut content = Vec::new();
    let (kind, values): (u32, &[u32]) = match field {
        // `ip daddr`, `ip6 daddr` and `th dport`: the protocol, and the field's number in it.
        Field::Ipv4 => (PAYLOAD, &[12, 12]),
        Field::Ipv6 => (PAYLOAD, &[13, 9]),
        Field::Port => (PAYLOAD, &[11, 2]),
        // `meta l4proto`.
        Field::Protocol => (META, &[16]),
        // `numgen random mod 2 offset 0`.
        Field::Number => (NUMBER, &[1, 2, 0]),
    };
    for (place, value) in (0..).zip(values) {
        number(&mut content, place, *value);
    }
    expression(kind, &content)
}

fn number(bytes: &mut Vec<u8>, kind: u8, value: u32) {
    nest(bytes, kind, &value.to_ne_bytes());
}

/// An attribute has its kind and its length, in a byte each. All of a set fit.
fn nest(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    bytes.push(kind);
    bytes.push(u8::try_from(content.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that nftables 1.0.6 writes for `typeof ip daddr . meta l4proto . th dport . numgen random mod 2 :
    /// ip daddr . th dport`.
    const V4: &str = "000400000000\
        010400000000\
        036000040d0000000158\
        0014000407000000010c00040c00000001040c000000\
        010e00040900000001060004100000000214000407000000010c00040b000000010402000000\
        031a0004170000000112000401000000010402000000020400000000\
        043400040d000000012c\
        0014000407000000010c00040c00000001040c000000\
        0114000407000000010c00040b000000010402000000\
        060400000000";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn slots(address: Field) -> Set {
        let key = [address, Field::Protocol, Field::Port, Field::Number];
        Set::new("slots", &key, Data::Fields(vec![address, Field::Port]))
    }

    #[test]
    fn a_map_of_slots_has_the_bytes_of_nft() {
        if cfg!(target_endian = "big") {
            return;
        }
        let of = |address| hex(&of_set(&slots(address)).unwrap());
        assert_eq!(of(Field::Ipv4), V4);
        // `ip6 daddr` in place of `ip daddr`.
        let v6 = V4.replace("00040c00000001040c000000", "00040d000000010409000000");
        assert_eq!(of(Field::Ipv6), v6);
        // The kernel takes 256 bytes.
        assert_eq!(V4.len(), 2 * 170);
    }

    #[test]
    fn sets_without_numbers_have_none() {
        let way = [Field::Ipv4, Field::Protocol, Field::Port];
        for data in [Data::None, Data::Verdict, Data::Fields(way.to_vec())] {
            assert_eq!(of_set(&Set::new("ways", &way, data)), None);
        }
    }
}

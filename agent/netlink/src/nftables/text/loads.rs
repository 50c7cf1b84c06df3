// SPDX-License-Identifier: Apache-2.0

//! Values that rules load into registers, in the words of `nft`.

use super::super::Expression;

/// Form of a comparison with a loaded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Address,
    Protocol,
    Interface,
    State,
    Status,
    AddressType,
    TcpFlags,
    /// A value of a key alone.
    Other,
}

pub(super) fn payload(expression: &Expression) -> Option<(String, Kind)> {
    let place = (
        expression.be32(2)?,
        expression.be32(3)?,
        expression.be32(4)?,
    );
    let (text, kind) = match place {
        (1, 12, 4) => ("ip saddr", Kind::Address),
        (1, 16, 4) => ("ip daddr", Kind::Address),
        (1, 8, 16) => ("ip6 saddr", Kind::Address),
        (1, 24, 16) => ("ip6 daddr", Kind::Address),
        (2, 2, 2) => ("th dport", Kind::Other),
        (2, 13, 1) => ("tcp flags", Kind::TcpFlags),
        _ => return None,
    };
    Some((text.to_owned(), kind))
}

pub(super) fn meta(key: u32) -> Option<(String, Kind)> {
    let (text, kind) = match key {
        6 => ("iifname", Kind::Interface),
        16 => ("meta l4proto", Kind::Protocol),
        _ => return None,
    };
    Some((text.to_owned(), kind))
}

pub(super) fn ct(key: u32, direction: Option<u8>) -> Option<(String, Kind)> {
    let (field, kind) = match key {
        0 => ("state", Kind::State),
        2 => ("status", Kind::Status),
        11 => ("proto-src", Kind::Other),
        12 => ("proto-dst", Kind::Other),
        19 => ("ip saddr", Kind::Address),
        20 => ("ip daddr", Kind::Address),
        21 => ("ip6 saddr", Kind::Address),
        22 => ("ip6 daddr", Kind::Address),
        _ => return None,
    };
    let direction = match direction {
        None => "",
        Some(0) => "original ",
        Some(1) => "reply ",
        Some(_) => return None,
    };
    Some((format!("ct {direction}{field}"), kind))
}

// SPDX-License-Identifier: Apache-2.0

//! Frontends.

use std::net::IpAddr;

use portolan_model::{Family, Frontend, FrontendAddress, FrontendKind, Lists, PortRange};

use super::destinations::decode_port;
use super::network::{decode_family, decode_ipv6, decode_network, encode_family, encode_network};
use super::{DecodeError, DecodeErrorKind};
use crate::v1;
use crate::v1::frontend;

/// Result of decoding a frontend.
pub(super) enum Decoded {
    /// It is understood.
    Taken(Frontend),
    /// It has an unknown part, named by the text.
    LeftOut(String),
}

pub(super) fn encode_frontend(from: &Frontend) -> v1::Frontend {
    let kind = match from.kind {
        FrontendKind::ClusterIp => frontend::Kind::ClusterIp,
        FrontendKind::ExternalIp => frontend::Kind::ExternalIp,
        FrontendKind::LoadBalancer => frontend::Kind::LoadBalancer,
        FrontendKind::NodePort => frontend::Kind::NodePort,
        FrontendKind::Balanced => frontend::Kind::Balanced,
        FrontendKind::BalancedRanges => frontend::Kind::BalancedRanges,
    };
    let lists = match from.lists {
        Lists::Cluster => frontend::Lists::Cluster,
        Lists::Local => frontend::Lists::Local,
    };
    let address = match from.address {
        FrontendAddress::Vip(IpAddr::V4(ip)) => frontend::Address::V4(ip.into()),
        FrontendAddress::Vip(IpAddr::V6(ip)) => frontend::Address::V6(ip.octets().into()),
        FrontendAddress::NodeAddresses(family) => {
            frontend::Address::NodeAddresses(encode_family(family).into())
        }
        FrontendAddress::Mark { family, mark } => frontend::Address::Mark(v1::Mark {
            family: encode_family(family).into(),
            mark,
        }),
    };
    let range = |range: &PortRange| v1::PortRange {
        first: range.first.into(),
        last: range.last.into(),
    };
    v1::Frontend {
        kind: kind.into(),
        address: Some(address),
        port: from.port.into(),
        lists: lists.into(),
        masquerade: from.masquerade,
        source_ranges: from.source_ranges.iter().map(encode_network).collect(),
        unbound: !from.bind,
        ranges: from.ranges.iter().map(range).collect(),
    }
}

/// The kind of a frontend whose record is for one group of nodes: an older agent does not know it, and leaves the
/// frontend out.
pub(super) fn select(mut frontend: v1::Frontend) -> v1::Frontend {
    frontend.kind = match frontend.kind() {
        frontend::Kind::Balanced => frontend::Kind::Selected,
        frontend::Kind::BalancedRanges => frontend::Kind::SelectedRanges,
        other => other,
    }
    .into();
    frontend
}

/// A frontend, unless it breaks a rule. Unknown parts are looked for first: other rules may hold for
/// the frontend of a newer version.
pub(super) fn decode_frontend(from: &v1::Frontend) -> Result<Decoded, DecodeError> {
    let Some(kind) = decode_kind(from.kind) else {
        return Ok(Decoded::LeftOut(format!("unknown kind {}", from.kind)));
    };
    let Some(lists) = decode_lists_choice(from.lists) else {
        return Ok(Decoded::LeftOut(format!("unknown lists {}", from.lists)));
    };
    let Some(address) = decode_address(from.address.as_ref())? else {
        return Ok(Decoded::LeftOut("unknown address".to_owned()));
    };
    let mut taken = Frontend {
        kind,
        address,
        port: match kind {
            FrontendKind::Balanced | FrontendKind::BalancedRanges if from.port == 0 => 0,
            _ => decode_port("frontends.port", from.port)?,
        },
        ranges: decode_ranges(kind, &from.ranges)?,
        lists,
        masquerade: from.masquerade,
        source_ranges: Vec::new(),
        bind: !from.unbound,
    };
    for range in &from.source_ranges {
        // Without the range alone the frontend could be open to all sources.
        let Some(range) = decode_network(range)? else {
            return Ok(Decoded::LeftOut("unknown source range".to_owned()));
        };
        // The kernel's sets cannot hold /0, and a frontend that is open to all has no ranges.
        if range.prefix_len() == 0 {
            return Err(DecodeError::new(
                "frontends.source_ranges",
                DecodeErrorKind::Range(0),
            ));
        }
        if Family::of(range.addr()) != taken.family() {
            let field = "frontends.source_ranges";
            return Err(DecodeError::new(field, DecodeErrorKind::Family));
        }
        taken.source_ranges.push(range);
    }
    taken.source_ranges.sort();
    taken.source_ranges.dedup();
    Ok(Decoded::Taken(taken))
}

/// Ranges of ports, where the kind has them: ascending, and apart from each other.
fn decode_ranges(
    kind: FrontendKind,
    from: &[v1::PortRange],
) -> Result<Vec<PortRange>, DecodeError> {
    const FIELD: &str = "frontends.ranges";
    if from.is_empty() != (kind != FrontendKind::BalancedRanges) {
        let count = u32::try_from(from.len()).unwrap_or(u32::MAX);
        return Err(DecodeError::new(FIELD, DecodeErrorKind::Range(count)));
    }
    let mut ranges: Vec<PortRange> = Vec::new();
    for range in from {
        let range = PortRange {
            first: decode_port(FIELD, range.first)?,
            last: decode_port(FIELD, range.last)?,
        };
        let before = ranges.last().map_or(0, |before| before.last);
        if range.first <= before || range.last < range.first {
            let kind = DecodeErrorKind::Range(range.first.into());
            return Err(DecodeError::new(FIELD, kind));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

fn decode_kind(number: i32) -> Option<FrontendKind> {
    match frontend::Kind::try_from(number).ok()? {
        frontend::Kind::Unspecified => None,
        frontend::Kind::ClusterIp => Some(FrontendKind::ClusterIp),
        frontend::Kind::ExternalIp => Some(FrontendKind::ExternalIp),
        frontend::Kind::LoadBalancer => Some(FrontendKind::LoadBalancer),
        frontend::Kind::NodePort => Some(FrontendKind::NodePort),
        frontend::Kind::Balanced | frontend::Kind::Selected => Some(FrontendKind::Balanced),
        frontend::Kind::BalancedRanges | frontend::Kind::SelectedRanges => {
            Some(FrontendKind::BalancedRanges)
        }
    }
}

fn decode_lists_choice(number: i32) -> Option<Lists> {
    match frontend::Lists::try_from(number).ok()? {
        frontend::Lists::Unspecified => None,
        frontend::Lists::Cluster => Some(Lists::Cluster),
        frontend::Lists::Local => Some(Lists::Local),
    }
}

/// `None` if this version does not know the address.
fn decode_address(
    address: Option<&frontend::Address>,
) -> Result<Option<FrontendAddress>, DecodeError> {
    Ok(match address {
        None => None,
        Some(frontend::Address::V4(bits)) => Some(FrontendAddress::Vip(IpAddr::V4((*bits).into()))),
        Some(frontend::Address::V6(octets)) => {
            let ip = decode_ipv6("frontends.v6", octets)?;
            Some(FrontendAddress::Vip(ip.into()))
        }
        Some(frontend::Address::NodeAddresses(number)) => {
            decode_family(*number).map(FrontendAddress::NodeAddresses)
        }
        Some(frontend::Address::Mark(mark)) if mark.mark == 0 => {
            let kind = DecodeErrorKind::Range(0);
            return Err(DecodeError::new("frontends.mark", kind));
        }
        Some(frontend::Address::Mark(from)) => {
            let mark = from.mark;
            decode_family(from.family).map(|family| FrontendAddress::Mark { family, mark })
        }
    })
}

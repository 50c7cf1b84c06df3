// SPDX-License-Identifier: Apache-2.0

//! Addresses and networks that are safe to program.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_catalog::Reason;
use portolan_model::Family;

use super::problems::Problems;

/// An address that other hosts can have or reach.
///
/// A VIP becomes a local route on every node, so an address with a local meaning (loopback,
/// link-local such as a cloud's metadata server ...) would cut the node off. Leading zeros and
/// IPv4-mapped IPv6 are refused, because programs disagree on their meaning.
pub(super) fn parse(text: &str) -> Result<IpAddr, AddressError> {
    let Ok(ip) = text.parse() else {
        return Err(AddressError::Syntax(text.to_owned()));
    };
    match special(ip) {
        None => Ok(ip),
        Some(kind) => Err(AddressError::Special(text.to_owned(), kind)),
    }
}

/// An address that cannot be programmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    /// Not an address.
    #[error("{0:?} is not an address: expected one like 10.0.0.1 or fd00::1")]
    Syntax(String),
    /// An address of a special kind.
    #[error("{0:?} is {1}: expected an address that other hosts can reach")]
    Special(String, &'static str),
}

fn special(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Some("a loopback address")
    } else if ip.is_unspecified() {
        Some("the unspecified address")
    } else if ip.is_multicast() {
        Some("a multicast address")
    } else if link_local {
        Some("a link-local address")
    } else if matches!(ip, IpAddr::V4(v4) if v4.is_broadcast()) {
        Some("the broadcast address")
    } else if is_mapped(ip) {
        Some("an IPv4-mapped IPv6 address")
    } else {
        None
    }
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Addresses of a Service other than its cluster IPs.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    cluster_ips: &'a [IpAddr],
    /// The good ones, each once.
    pub(super) ips: Vec<IpAddr>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(cluster_ips: &'a [IpAddr]) -> Self {
        Self {
            cluster_ips,
            ips: Vec::new(),
        }
    }

    /// Adds an address. A bad one, or one of a family that the Service does not have, is a problem
    /// of `field`. Returns whether it is an address.
    pub(super) fn push(&mut self, field: String, text: &str, problems: &mut Problems) -> bool {
        let ip = match parse(text) {
            Ok(ip) => ip,
            Err(error) => {
                problems.invalid(field, error.to_string());
                return false;
            }
        };
        let family = Family::of(ip);
        let mut families = self.cluster_ips.iter().map(|ip| Family::of(*ip));
        if !families.any(|of_service| of_service == family) {
            problems.add(
                field,
                Reason::WrongFamily,
                format!("{ip} is {family}: the Service has no {family} cluster IP; ignored"),
            );
        } else if !self.ips.contains(&ip) {
            self.ips.push(ip);
        }
        true
    }
}

/// A network, blanks around it trimmed, without the bits of a host.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let network = text.trim().parse::<IpNet>().ok()?;
    (!is_mapped(network.addr())).then(|| network.trunc())
}

/// `spec.loadBalancerSourceRanges`: sorted, each once.
///
/// As upstream, an unparsable range is ignored, a `/0` admits its whole family (no list), and a
/// family without a range is open. So a list without any valid range restricts nothing. To close
/// the Service instead would be safer against an intruder but would cut off a Service that worked
/// under kube-proxy; the API server refuses such lists, and here it is a problem of its own.
pub(super) fn source_ranges(texts: &[String], problems: &mut Problems) -> Vec<IpNet> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match network(text) {
            Some(range) => ranges.push(range),
            None => problems.invalid(
                format!("{FIELD}[{index}]"),
                format!("{text:?} is not a network: expected one like 10.0.0.0/8; ignored"),
            ),
        }
    }
    if ranges.is_empty() && !texts.is_empty() {
        problems.invalid(FIELD, "no range can be used: all sources may connect");
    }
    for family in Family::ALL {
        let of_family = |range: &IpNet| Family::of(range.addr()) == family;
        if ranges.iter().any(|r| of_family(r) && r.prefix_len() == 0) {
            ranges.retain(|range| !of_family(range));
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

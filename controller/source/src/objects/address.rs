//! Addresses and networks that are safe to program.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Family;

use super::problems::Problems;

/// An address that other hosts can have or reach.
///
/// A VIP becomes a local route on every node, so an address that already means something to the
/// node itself (loopback, link-local such as a cloud's metadata server ...) would cut the node off.
/// Leading zeros and IPv4-mapped IPv6 are refused, because programs disagree on what they mean.
pub(super) fn parse(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| {
        format!("{text:?} is not an address: expected one like 10.0.0.1 or fd00::1")
    })?;
    match special(ip) {
        None => Ok(ip),
        Some(what) => Err(format!(
            "{text:?} is {what}: expected an address that other hosts can reach"
        )),
    }
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

/// Parses into `ips`, each address once; a bad one is a problem of `field`.
pub(super) fn push(ips: &mut Vec<IpAddr>, field: String, text: &str, problems: &mut Problems) {
    match parse(text) {
        Ok(ip) if ips.contains(&ip) => {}
        Ok(ip) => ips.push(ip),
        Err(message) => problems.invalid(field, message),
    }
}

/// `spec.loadBalancerSourceRanges`: sorted, each once.
///
/// As upstream, an unparsable range is ignored, a `/0` admits its whole family (no list), and a
/// family without a range is open. So a list of which nothing can be parsed restricts nobody. To
/// close the Service instead would be safer against an intruder but would cut off a Service that
/// worked under kube-proxy; the API server refuses such lists, and here it is a problem of its own.
pub(super) fn source_ranges(texts: &[String], problems: &mut Problems) -> Vec<IpNet> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match text.trim().parse::<IpNet>() {
            Ok(range) if !is_mapped(range.addr()) => ranges.push(range.trunc()),
            _ => problems.invalid(
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

// SPDX-License-Identifier: Apache-2.0

//! Frontends.

use ipnet::IpNet;
use portolan_model::{Families, Family, Protocol};

use super::{Findings, unicast};
use crate::document::{FamilyName, FrontendDocument, ProtocolName};
use crate::frontend::{Frontend, Packets, ranges_text};
use crate::read::Path;

/// Most rules that set marks in one family.
const MOST_RULES: usize = 1024;

pub(super) fn frontends(
    findings: &mut Findings,
    path: &Path,
    documents: &[FrontendDocument],
) -> Vec<Frontend> {
    let mut frontends: Vec<Frontend> = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let path = path.item(index);
        let frontend = frontend(findings, &path, document);
        let first = frontends
            .iter()
            .position(|other| other.name == frontend.name);
        if let Some(first) = first {
            let message = format!(
                "{} is the name of frontends[{first}] too: expected a name of its own",
                frontend.name
            );
            findings.error(&path.field("name"), message);
        }
        frontends.push(frontend);
    }
    frontends
}

fn frontend(findings: &mut Findings, path: &Path, document: &FrontendDocument) -> Frontend {
    let packets = match document.mark {
        Some(mark) => marked(findings, path, document, mark),
        None => addressed(findings, path, document),
    };
    Frontend {
        name: document
            .name
            .clone()
            .unwrap_or_else(|| packets.default_name()),
        source_ranges: source_ranges(findings, &path.field("sourceRanges"), document, &packets),
        packets,
    }
}

fn marked(findings: &mut Findings, path: &Path, document: &FrontendDocument, mark: u32) -> Packets {
    let others = [
        ("addresses", !document.addresses.is_empty()),
        ("protocol", document.protocol.is_some()),
        ("port", document.port.is_some()),
        ("ports", document.ports.is_some()),
        ("sourceRanges", !document.source_ranges.is_empty()),
    ];
    for (field, _) in others.into_iter().filter(|(_, is_there)| *is_there) {
        let message = "a mark has none: expected in the rules that set the mark";
        findings.error(&path.field(field), message);
    }
    let families: Families = match document.family {
        Some(FamilyName::V4) => [Family::V4].into_iter().collect(),
        Some(FamilyName::V6) => [Family::V6].into_iter().collect(),
        None => Family::ALL.into_iter().collect(),
    };
    Packets::Mark { mark, families }
}

fn addressed(findings: &mut Findings, path: &Path, document: &FrontendDocument) -> Packets {
    if document.addresses.is_empty() {
        findings.error(path, "has no packets: expected addresses or a mark");
    }
    if document.family.is_some() {
        let message = "follows from the addresses: expected with a mark only";
        findings.error(&path.field("family"), message);
    }
    for (index, address) in document.addresses.iter().enumerate() {
        let path = path.field("addresses").item(index);
        unicast(findings, &path, *address);
        if document.addresses[..index].contains(address) {
            findings.error(&path, format!("{address} is there twice: expected once"));
        }
    }
    let addresses = document.addresses.clone();
    let protocol = match document.protocol {
        None | Some(ProtocolName::Tcp) => Protocol::Tcp,
        Some(ProtocolName::Udp) => Protocol::Udp,
        Some(ProtocolName::Sctp) => Protocol::Sctp,
    };
    if document.port.is_some() && document.ports.is_some() {
        findings.error(path, "has port and ports: expected one of them");
    }
    if let Some(text) = &document.ports {
        let path = path.field("ports");
        let ports = ranges(findings, &path, text);
        few_rules(findings, &path, &addresses, ports.len());
        return Packets::Ranges {
            addresses,
            protocol,
            ports,
        };
    }
    if document.port.is_none() {
        findings.error(path, "has no port: expected port or ports");
    }
    Packets::Port {
        addresses,
        protocol,
        port: document.port.unwrap_or_default(),
    }
}

/// Ports and ranges in any order, sorted.
fn ranges(findings: &mut Findings, path: &Path, text: &str) -> Vec<(u16, u16)> {
    let mut ranges = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last => ranges.push((first, last)),
            (Ok(first), Ok(last)) if first > 0 && last > 0 => {
                findings.error(path, format!("{part}: expected the lower port first"));
            }
            _ => findings.error(path, format!("{part}: expected ports from 1 to 65535")),
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if pair[1].0 <= pair[0].1 {
            let both = (ranges_text(&pair[..1]), ranges_text(&pair[1..]));
            findings.error(
                path,
                format!("{} and {} overlap: expected each port once", both.0, both.1),
            );
        }
    }
    ranges
}

fn few_rules(findings: &mut Findings, path: &Path, addresses: &[std::net::IpAddr], ranges: usize) {
    for family in Family::ALL {
        let of_family = addresses
            .iter()
            .filter(|address| Family::of(**address) == family);
        let rules = of_family.count() * ranges;
        if rules > MOST_RULES {
            let message = format!(
                "{rules} rules for {family}, one per address and range: expected at most {MOST_RULES}"
            );
            findings.error(path, message);
        }
    }
}

fn source_ranges(
    findings: &mut Findings,
    path: &Path,
    document: &FrontendDocument,
    packets: &Packets,
) -> Vec<IpNet> {
    let mut prefixes = Vec::new();
    for (index, text) in document.source_ranges.iter().enumerate() {
        let path = path.item(index);
        let Ok(prefix) = text.parse::<IpNet>() else {
            findings.error(
                &path,
                format!("{text:?}: expected a prefix such as 192.0.2.0/24"),
            );
            continue;
        };
        if prefix.trunc() != prefix {
            let message = format!(
                "{prefix} has bits after its prefix: expected {}",
                prefix.trunc()
            );
            findings.error(&path, message);
        }
        let family = Family::of(prefix.addr());
        if !packets.addresses().is_empty() && !packets.families().contains(family) {
            findings.warning(
                &path,
                format!("{prefix} is of no effect: no address is {family}"),
            );
        }
        prefixes.push(prefix);
    }
    prefixes
}

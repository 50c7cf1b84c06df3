// SPDX-License-Identifier: Apache-2.0

//! `virtual_server_group`: addresses, ranges of addresses and marks.

use std::net::IpAddr;

use super::{Known, Statement};
use crate::document::{FamilyName, FrontendDocument};
use crate::import::{Class, Draft};

/// Most addresses that one line may stand for.
const MOST: usize = 256;

pub(super) fn read(draft: &mut Draft, group: &Statement, known: &mut Known) {
    let mut frontends: Vec<FrontendDocument> = Vec::new();
    for entry in &group.block {
        if entry.name() == "fwmark" {
            match entry.number() {
                Some(mark) => {
                    entry.note(draft, Class::Same, "");
                    frontends.push(FrontendDocument {
                        mark: Some(mark),
                        family: match entry.words.get(2).map(String::as_str) {
                            Some("inet") => Some(FamilyName::V4),
                            Some("inet6") => Some(FamilyName::V6),
                            _ => None,
                        },
                        ..FrontendDocument::default()
                    });
                }
                None => entry.wrong(draft, "a decimal mark"),
            }
            continue;
        }
        let Some(addresses) = addresses(entry.name()) else {
            let message = format!("expected an address, or a range of at most {MOST}");
            entry.note(draft, Class::Error, message);
            continue;
        };
        let port = match entry.value() {
            None => 0,
            Some(text) => match text.parse::<u16>() {
                Ok(port) => port,
                Err(_) => {
                    entry.wrong(draft, "a port");
                    continue;
                }
            },
        };
        entry.note(draft, Class::Same, "");
        match frontends
            .iter_mut()
            .find(|frontend| frontend.port == Some(port))
        {
            Some(frontend) => frontend.addresses.extend(addresses),
            None => frontends.push(FrontendDocument {
                addresses,
                port: Some(port),
                ..FrontendDocument::default()
            }),
        }
    }
    group.note(draft, Class::Same, "");
    known
        .groups
        .insert(group.value().unwrap_or_default().to_owned(), frontends);
}

/// `A`, `A-N` up to the last byte or last group N, and `A/L`.
fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    if let Some((_, _)) = text.split_once('/') {
        let prefix: ipnet::IpNet = text.parse().ok()?;
        let hosts: Vec<IpAddr> = prefix.hosts().take(MOST + 1).collect();
        return (hosts.len() <= MOST).then_some(hosts);
    }
    let Some((first, last)) = text.rsplit_once('-') else {
        return Some(vec![text.parse().ok()?]);
    };
    let first: IpAddr = first.parse().ok()?;
    let range: Vec<IpAddr> = match first {
        IpAddr::V4(address) => {
            let last: u8 = last.parse().ok()?;
            let octets = address.octets();
            let with = |byte| IpAddr::from([octets[0], octets[1], octets[2], byte]);
            (octets[3]..=last).map(with).collect()
        }
        IpAddr::V6(address) => {
            let last = u16::from_str_radix(last, 16).ok()?;
            let mut segments = address.segments();
            let first = segments[7];
            let with = |segment| {
                segments[7] = segment;
                IpAddr::from(segments)
            };
            (first..=last).take(MOST + 1).map(with).collect()
        }
    };
    (!range.is_empty() && range.len() <= MOST).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_out() {
        let count = |text| addresses(text).map(|addresses| addresses.len());
        assert_eq!(count("192.0.2.1"), Some(1));
        assert_eq!(count("192.0.2.1-4"), Some(4));
        assert_eq!(count("192.0.2.0/30"), Some(2));
        assert_eq!(count("2001:db8::1-ff"), Some(255));
        assert_eq!(count("192.0.2.4-1"), None);
        assert_eq!(count("2001:db8::-fff"), None);
        assert_eq!(count("10.0.0.0/16"), None);
    }
}

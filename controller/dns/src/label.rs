// SPDX-License-Identifier: Apache-2.0

//! DNS labels: validity, and the form of an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest label (RFC 1035 §2.3.4), in bytes.
const MAX_LABEL: usize = 63;

/// The label of a host or Service in lower case, or why it cannot be one (RFC 1123 §2.1).
pub(crate) fn host(label: &str) -> Result<String, &'static str> {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    if bytes.is_empty() {
        return Err("is empty");
    }
    if bytes.len() > MAX_LABEL {
        return Err("is longer than 63 bytes");
    }
    if !bytes
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    {
        return Err("has characters other than letters, digits and '-'");
    }
    if !alphanumeric(bytes.first()) || !alphanumeric(bytes.last()) {
        return Err("begins or ends with '-'");
    }
    Ok(label.to_ascii_lowercase())
}

/// An address as an endpoint's label: `10-0-0-1`, `1234-abcd--1`. CoreDNS lets none end with a dash,
/// so `fd00::` is `fd00--0`.
pub(crate) fn dashed(address: IpAddr) -> String {
    let mut label = of_pod(address);
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

/// An address as a Pod's label. As in CoreDNS every dot and colon is a dash, and that is all.
pub(crate) fn of_pod(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The address that a Pod's label stands for, in any of its spellings.
pub(crate) fn undashed(label: &str) -> Option<IpAddr> {
    let quad = label.bytes().filter(|b| *b == b'-').count() == 3 && !label.contains("--");
    if quad {
        return label
            .replace('-', ".")
            .parse::<Ipv4Addr>()
            .ok()
            .map(Into::into);
    }
    let address: Ipv6Addr = label.replace('-', ":").parse().ok()?;
    Some(IpAddr::from(address).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_rfc_1123_labels_in_lower_case() {
        assert_eq!(host("Web-0"), Ok("web-0".to_owned()));
        assert_eq!(host("7"), Ok("7".to_owned()));
        for bad in ["", "-a", "a-", "a.b", "_a", "é", &"a".repeat(64)] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_address_has_a_label_that_leads_back_to_it() {
        for (address, label) in [
            ("10.0.0.1", "10-0-0-1"),
            ("1234:abcd::1", "1234-abcd--1"),
            ("fd00::", "fd00--0"),
            ("::1", "--1"),
            ("::", "--0"),
            ("1:2:3:4:5:6:7:8", "1-2-3-4-5-6-7-8"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(dashed(address), label);
            assert_eq!(undashed(label), Some(address));
            assert_eq!(undashed(&of_pod(address)), Some(address));
        }
    }

    #[test]
    fn other_labels_stand_for_no_address() {
        for label in [
            "blah",
            "10-0-0",
            "10-0-0-256",
            "1-2-3-4-5",
            "g--1",
            "10-0-0-01",
            "",
        ] {
            assert_eq!(undashed(label), None, "{label}");
        }
    }
}

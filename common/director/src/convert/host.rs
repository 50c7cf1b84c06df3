// SPDX-License-Identifier: Apache-2.0

//! Names of servers that checks ask for.

use std::net::{IpAddr, Ipv6Addr};

use super::Findings;
use crate::read::Path;

/// Reports what is no host as HTTP has it, or one over TLS whose name the handshake cannot have.
pub(super) fn host(findings: &mut Findings, path: &Path, host: &str, names_server: bool) {
    match name_of(host) {
        None => {
            let message = format!(
                "{host:?}: expected a name or an address, with :PORT after it if it is not the usual one"
            );
            findings.error(path, message);
        }
        Some(name) if names_server => server_name(findings, path, name),
        Some(_) => {}
    }
}

/// Reports what no handshake can ask for.
pub(super) fn server_name(findings: &mut Findings, path: &Path, name: &str) {
    if !is_server_name(name) {
        let message = format!("{name:?}: expected a DNS name or an address, without a port");
        findings.error(path, message);
    }
}

/// The name or the address of a host as HTTP has it (RFC 3986, section 3.2.2), or a mere IPv6 address; `None` for what is
/// no host.
pub(crate) fn name_of(host: &str) -> Option<&str> {
    if is_ipv6(host) {
        return Some(host);
    }
    let (name, rest) = match host.strip_prefix('[') {
        Some(in_brackets) => {
            let (address, rest) = in_brackets.split_once(']')?;
            (Some(address).filter(|address| is_ipv6(address))?, rest)
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=%:".contains(c);
    let is_name = !name.is_empty() && name.chars().all(is_of_name);
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let has_port = rest.strip_prefix(':').is_some_and(is_port);
    (is_name && (rest.is_empty() || has_port)).then_some(name)
}

fn is_ipv6(host: &str) -> bool {
    host.parse::<Ipv6Addr>().is_ok()
}

/// Returns `true` if a text is an address, or a DNS name by the rule of the TLS library: its last
/// label is no number, so that no slip in an address is one.
fn is_server_name(name: &str) -> bool {
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let labels = name.strip_suffix('.').unwrap_or(name);
    let is_dns = name.len() <= 253
        && labels.split('.').all(|label| {
            is_label(label, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
                && !label.ends_with('-')
        })
        && !labels.rsplit('.').next().is_some_and(is_number);
    name.parse::<IpAddr>().is_ok() || is_dns
}

/// Reports what is no name of a DNS question. One with escapes is not looked at.
pub(super) fn question(findings: &mut Findings, path: &Path, name: &str) {
    let labels = name.strip_suffix('.').unwrap_or(name);
    let is_of_label = |c: char| c.is_ascii_alphanumeric() || "_-*".contains(c);
    let is_right = labels.len() <= 253
        && labels
            .split('.')
            .all(|label| is_label(label, is_of_label) && !label.chars().skip(1).any(|c| c == '*'));
    if !is_right && name != "." && !name.contains('\\') {
        let message = format!(
            "{name:?}: expected a domain name, of labels of 1 to 63 letters, digits, \"-\" and \"_\""
        );
        findings.error(path, message);
    }
}

fn is_label(label: &str, is_of_label: impl Fn(char) -> bool) -> bool {
    (1..=63).contains(&label.len()) && !label.starts_with('-') && label.chars().all(is_of_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_and_perhaps_a_port() {
        for (host, name) in [
            ("www.example.org", "www.example.org"),
            ("www.example.org:8443", "www.example.org"),
            ("a_b", "a_b"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:8443", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(name_of(host), Some(name), "{host}");
        }
        for bad in [
            "",
            ":80",
            "a:",
            "a:+80",
            "a:b",
            "a:65536",
            "a:80:80",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]8443",
            "[2001:db8::1]:",
            "[192.0.2.1]",
            "http://a",
            "a/b",
            "user@a",
        ] {
            assert_eq!(name_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn server_names_are_dns_names_or_addresses() {
        let long = format!("{}.example.org", "a".repeat(63));
        let good = [
            "a",
            "a_b.1a",
            "a.example.",
            "192.0.2.1",
            "2001:db8::1",
            &long,
        ];
        for name in good {
            assert!(is_server_name(name), "{name}");
        }
        let longer = format!("a{long}");
        let bad = [
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "1.2.3",
            "256.0.0.1",
            "*.a",
            "a:1",
            &longer,
        ];
        for name in bad {
            assert!(!is_server_name(name), "{name}");
        }
    }
}

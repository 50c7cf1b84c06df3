// SPDX-License-Identifier: Apache-2.0

//! Ports that the kernel chooses for connections of the host itself.

use std::fmt;
use std::ops::RangeInclusive;

/// Ports from which the kernel lets the host's own connections begin, of TCP and UDP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalPorts {
    /// `net.ipv4.ip_local_port_range`, of both families; `None` if it is not known.
    range: Option<RangeInclusive<u16>>,
    /// `net.ipv4.ip_local_reserved_ports`: the kernel leaves these out.
    reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Reads the kernel's settings: two numbers, and a list such as `8080,20000-29999`. What is neither is left out.
    #[must_use]
    pub fn new(range: &str, reserved: &str) -> Self {
        let mut ends = range.split_whitespace().map(str::parse);
        let range = match (ends.next(), ends.next()) {
            (Some(Ok(first)), Some(Ok(last))) => Some(first..=last),
            _ => None,
        };
        let listed = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        Self {
            range,
            reserved: reserved.trim().split(',').filter_map(listed).collect(),
        }
    }

    /// True for a port that the kernel may choose for a connection of the host.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        let is_in = |range: &RangeInclusive<u16>| range.contains(&port);
        self.range.as_ref().is_some_and(is_in) && !self.reserved.iter().any(is_in)
    }
}

impl fmt::Display for LocalPorts {
    /// `FIRST-LAST`, without what is reserved.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.range {
            Some(range) => write!(f, "{}-{}", range.start(), range.end()),
            None => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_range_that_are_not_reserved() {
        let ports = LocalPorts::new("32768\t60999\n", "40000,41000-41002\n");
        let found = [
            32_767, 32_768, 60_999, 61_000, 40_000, 40_001, 41_001, 41_003,
        ]
        .map(|port| ports.contains(port));
        assert_eq!(found, [false, true, true, false, false, true, false, true]);
        assert_eq!(ports.to_string(), "32768-60999");
        for bad in ["", "1", "a b", "1 70000"] {
            assert_eq!(LocalPorts::new(bad, "\n"), LocalPorts::default(), "{bad}");
        }
        let open = LocalPorts::new("1 9", "x,-,3");
        assert!(open.contains(2) && !open.contains(3));
    }
}

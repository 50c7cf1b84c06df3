// SPDX-License-Identifier: Apache-2.0

//! State of IPv6 in the kernel, and the ports of the host's own connections.

use std::path::Path;

use portolan_plan::LocalPorts;

/// Returns `true` if the kernel has IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Whether IPv6 is disabled on an interface, or for new ones (`default`); `None` without the interface.
pub(super) fn is_ipv6_off(interface: &str) -> Option<bool> {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let value = std::fs::read_to_string(path).ok()?;
    Some(value.trim() != "0")
}

/// The ports that the host's own connections begin from.
pub(crate) fn local_ports() -> LocalPorts {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let (range, reserved) = (read("ip_local_port_range"), read("ip_local_reserved_ports"));
    LocalPorts::new(&range, &reserved)
}

// SPDX-License-Identifier: Apache-2.0

//! Required kernel settings.

use std::io;
use std::path::Path;

use super::machine::kernel_version;
use crate::DataplaneError;

/// Settings of the node's network namespace (`/proc/sys/net/...`).
///
/// * `conntrack`: without it IPVS connections bypass conntrack and cannot be masqueraded.
/// * `expire_nodest_conn`: connections of a deleted real server are reset, not ignored.
/// * `expire_quiescent_template`: ClientIP affinity releases draining real servers.
/// * `ip_forward`: the node routes to its pods.
const SETTINGS: [(&str, &str); 4] = [
    ("net/ipv4/vs/conntrack", "1"),
    ("net/ipv4/vs/expire_nodest_conn", "1"),
    ("net/ipv4/vs/expire_quiescent_template", "1"),
    ("net/ipv4/ip_forward", "1"),
];

/// Treatment of a packet that opens a connection from a client's address and port in use before.
const CONN_REUSE_MODE: &str = "net/ipv4/vs/conn_reuse_mode";

/// Writes the settings that differ.
pub(crate) fn write_settings() -> Result<(), DataplaneError> {
    let version = kernel_version();
    let reuse = version.and_then(conn_reuse_mode);
    let reuse = reuse.map(|value| (CONN_REUSE_MODE, value));
    SETTINGS
        .into_iter()
        .chain(reuse)
        .try_for_each(|(name, value)| {
            write_setting(name, value).map_err(|error| DataplaneError::Sysctl { name, error })
        })
}

/// Value of `conn_reuse_mode` for a kernel version; `None` leaves it unchanged.
///
/// Up to Linux 5.8 the default, 1, drops the first packet of a connection that reuses a client's port, so
/// the connection takes a second to open (kubernetes/kubernetes#93297). Linux 5.9 fixes that
/// (f0a5e4d7a594, "ipvs: allow connection reuse for unconfirmed conntrack"), and 0 would do harm there:
/// such connections would go to real servers with weight 0. Linux before 4.1 has no such setting.
fn conn_reuse_mode(version: (u32, u32)) -> Option<&'static str> {
    ((4, 1)..(5, 9)).contains(&version).then_some("0")
}

/// Writes one setting below `/proc/sys`, unless it has the value already.
pub(super) fn write_setting(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys").join(name);
    // A read-only /proc/sys does not matter if the value is already set.
    if std::fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    std::fs::write(&path, value)
}

/// Whether the kernel has IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Whether IPv6 is disabled on an interface, or for new ones (`default`); `None` without the interface.
pub(super) fn is_ipv6_off(interface: &str) -> Option<bool> {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let value = std::fs::read_to_string(path).ok()?;
    Some(value.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conn_reuse_mode_is_cleared_for_old_kernels() {
        for (version, expected) in [
            ((4, 0), None),
            ((4, 1), Some("0")),
            ((4, 19), Some("0")),
            ((5, 8), Some("0")),
            ((5, 9), None),
            ((5, 10), None),
            ((6, 1), None),
        ] {
            assert_eq!(conn_reuse_mode(version), expected, "{version:?}");
        }
    }
}

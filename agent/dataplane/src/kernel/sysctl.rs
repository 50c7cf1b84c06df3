//! Kernel settings that the rest depends on.

use std::io;
use std::path::Path;

use crate::DataplaneError;

/// What has to be set, in the node's network namespace (`/proc/sys/net/...`).
///
/// * `conntrack`: without it IPVS connections bypass conntrack and cannot be masqueraded.
/// * `expire_nodest_conn`: a connection whose real server is gone gets a reset, not silence.
/// * `expire_quiescent_template`: ClientIP affinity lets go of a draining real server.
/// * `ip_forward`: the node routes to its pods.
///
/// `conn_reuse_mode` stays 1, its default: from Linux 5.9 on that is right, and we need 5.10.
const SETTINGS: [(&str, &str); 4] = [
    ("net/ipv4/vs/conntrack", "1"),
    ("net/ipv4/vs/expire_nodest_conn", "1"),
    ("net/ipv4/vs/expire_quiescent_template", "1"),
    ("net/ipv4/ip_forward", "1"),
];

/// Writes the settings that are not as they should be.
pub(crate) fn write_settings() -> Result<(), DataplaneError> {
    SETTINGS.into_iter().try_for_each(|(name, value)| {
        write_setting(name, value).map_err(|error| DataplaneError::Sysctl { name, error })
    })
}

/// Writes one setting, given below `/proc/sys`, unless it is so already.
pub(super) fn write_setting(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys").join(name);
    // A read-only /proc/sys is no obstacle where somebody has set it already.
    if std::fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    std::fs::write(&path, value)
}

/// Whether the kernel has IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

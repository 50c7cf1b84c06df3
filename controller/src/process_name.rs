// SPDX-License-Identifier: Apache-2.0

//! Names of this process and its host.

/// A name for Leases that no other process has, not even the next one in the same pod.
pub(crate) fn process_name() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "portolan-controller".to_owned());
    let began = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{host}_{}_{began:x}", std::process::id())
}

/// The host's name in small letters, as certificates have it.
pub(crate) fn host_name() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().to_lowercase()
}

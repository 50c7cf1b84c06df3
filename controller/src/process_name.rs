// SPDX-License-Identifier: Apache-2.0

//! The name of this process in Leases.

/// A name that no other process has, not even the next one in the same pod.
pub(crate) fn process_name() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "portolan-controller".to_owned());
    let began = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{host}_{}_{began:x}", std::process::id())
}

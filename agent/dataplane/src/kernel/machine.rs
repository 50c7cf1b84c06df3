// SPDX-License-Identifier: Apache-2.0

//! Facts about the machine and this process: processors, the kernel's version, capabilities.

use std::fs;
use std::path::Path;

/// Number of the machine's online processors, at least 1.
///
/// Affinity and cgroup quotas of the process do not matter: conntrack belongs to the machine. kube-proxy
/// counts the same (`detectNumCPU`, kubernetes/kubernetes#99225).
pub(super) fn online_cpus() -> u32 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    online.and_then(|list| count(&list)).unwrap_or_else(|| {
        let available = std::thread::available_parallelism();
        available.map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX))
    })
}

/// The number of processors in a list such as `0-3,8` (`bitmap_parselist` in `lib/bitmap-str.c`).
fn count(list: &str) -> Option<u32> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum()
}

/// Release of the running kernel, as `uname -r` prints it; `None` if unknown.
pub(super) fn kernel_release() -> Option<String> {
    let release = Path::new("/proc/sys/kernel/osrelease");
    let release = fs::read_to_string(release).ok()?;
    Some(release.trim().to_owned())
}

/// Major and minor version of the running kernel; `None` if unknown.
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    version(&kernel_release()?)
}

/// Capabilities that programming needs, by their numbers.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];

/// The required capabilities that this process lacks; none if that is unknown.
pub(super) fn missing_capabilities() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    lacking(&status)
}

/// The capability for nftables, if this process lacks it.
pub(super) fn missing_admin() -> Vec<&'static str> {
    let missing = missing_capabilities().into_iter();
    missing.filter(|name| *name == CAPABILITIES[0].1).collect()
}

fn lacking(status: &str) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let effective = effective.unwrap_or(u64::MAX);
    let missing = |(number, _): &&(u32, &str)| effective & (1 << number) == 0;
    let lacking = CAPABILITIES.iter().filter(missing);
    lacking.map(|(_, name)| *name).collect()
}

/// The version in a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_in_ranges() {
        for (list, expected) in [
            ("0\n", Some(1)),
            ("0-3\n", Some(4)),
            ("0-3,8,10-11\n", Some(7)),
            ("", None),
            ("\n", None),
            ("3-0", None),
            ("x", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(count(list), expected, "{list:?}");
        }
        assert!(online_cpus() >= 1);
    }

    #[test]
    fn missing_capabilities_are_named() {
        for (status, expected) in [
            ("Name:\tx\nCapEff:\t0000000000003000\n", &[][..]),
            ("CapEff:\t000001ffffffffff\n", &[]),
            ("CapEff:\t0000000000001000\n", &["CAP_NET_RAW"]),
            (
                "CapEff:\t0000000000000000\n",
                &["CAP_NET_ADMIN", "CAP_NET_RAW"],
            ),
            ("", &[]),
        ] {
            assert_eq!(lacking(status), expected, "{status:?}");
        }
    }

    #[test]
    fn a_release_begins_with_the_version() {
        for (release, expected) in [
            ("6.1.0-13-amd64\n", Some((6, 1))),
            ("5.10.0+", Some((5, 10))),
            ("4.19-rc1", Some((4, 19))),
            ("7", None),
            ("linux", None),
        ] {
            assert_eq!(version(release), expected, "{release:?}");
        }
        assert!(kernel_version().is_some());
    }
}

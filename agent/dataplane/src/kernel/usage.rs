// SPDX-License-Identifier: Apache-2.0

//! Use of real servers and of virtual servers, read beside the loop that programs them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_model::ipvs::VirtualServerKey;
use portolan_netlink::ipvs::{Ipvs, Totals, Usage};

use super::blocking::blocking;
use crate::DataplaneError;

/// The use of real servers, by virtual server. One that the kernel does not have is empty.
pub type UsageOf = BTreeMap<VirtualServerKey, BTreeMap<SocketAddr, Usage>>;

/// Reads the use of the real servers of virtual servers by a socket of its own, in the network namespace of
/// the process. Blocks: about 0.3 s for 100,000 real servers.
///
/// # Errors
/// If the kernel has no IPVS, or cannot be read.
pub fn read_usage(keys: &[VirtualServerKey]) -> Result<UsageOf, DataplaneError> {
    let mut ipvs = Ipvs::open()?;
    let mut usage = UsageOf::new();
    for key in keys {
        usage.insert(*key, ipvs.usage(key)?);
    }
    Ok(usage)
}

/// Reads the counters of all virtual servers of the kernel, also of others' ones, by a socket of its own. About 10 ms for
/// 10,000; other tasks of the worker go on meanwhile.
///
/// # Errors
/// If the kernel has no IPVS, or cannot be read.
pub fn read_totals() -> Result<BTreeMap<VirtualServerKey, Totals>, DataplaneError> {
    blocking(|| Ok(Ipvs::open()?.totals()?))
}

/// The use of some real servers, and the size of the connection table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SomeUsage {
    /// The use.
    pub usage: UsageOf,
    /// `true` if some virtual servers may have real servers that were left out.
    pub is_truncated: bool,
    /// Number of buckets of the connection table.
    pub buckets: u32,
}

/// Reads the use of at most `limit` real servers of virtual servers, in the order of these, by a socket of its own.
/// Other tasks of the worker go on meanwhile.
///
/// # Errors
/// If the kernel has no IPVS, or cannot be read.
pub fn read_some_usage(
    keys: &[VirtualServerKey],
    limit: usize,
) -> Result<SomeUsage, DataplaneError> {
    blocking(|| {
        let mut ipvs = Ipvs::open()?;
        let buckets = ipvs.info()?.connection_table_size;
        let (usage, is_truncated) = within(keys, limit, |key| ipvs.usage(key))?;
        Ok(SomeUsage {
            usage,
            is_truncated,
            buckets,
        })
    })
}

/// Reads until there is no more room, and tells whether anything may be left out.
fn within<E>(
    keys: &[VirtualServerKey],
    limit: usize,
    mut read: impl FnMut(&VirtualServerKey) -> Result<BTreeMap<SocketAddr, Usage>, E>,
) -> Result<(UsageOf, bool), E> {
    let mut usage = UsageOf::new();
    let mut room = limit;
    for key in keys {
        if room == 0 {
            return Ok((usage, true));
        }
        let mut servers = read(key)?;
        let is_truncated = servers.len() > room;
        while servers.len() > room {
            servers.pop_last();
        }
        room -= servers.len();
        usage.insert(*key, servers);
        if is_truncated {
            return Ok((usage, true));
        }
    }
    Ok((usage, false))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use portolan_model::Protocol;

    use super::*;

    #[test]
    fn a_kernel_is_read_as_far_as_there_is_room() {
        let keys = [1, 2, 3].map(|last: u8| {
            let address = [192, 0, 2, last].into();
            VirtualServerKey::new(Protocol::Tcp, address, 80)
        });
        // Virtual servers that are read, their real servers, and whether that is all: there are two behind each.
        for (limit, expected) in [
            (1, (1, vec![1], true)),
            (2, (1, vec![2], true)),
            (3, (2, vec![2, 1], true)),
            (6, (3, vec![2, 2, 2], false)),
        ] {
            let mut reads = 0;
            let read = |_: &VirtualServerKey| {
                reads += 1;
                let server = |last: u8| {
                    let address = SocketAddr::from(([10, 0, 0, last], 80));
                    (address, Usage::default())
                };
                Ok::<_, Infallible>([1, 2].map(server).into())
            };
            let (usage, is_truncated) = within(&keys, limit, read).unwrap();
            let found: Vec<usize> = usage.values().map(BTreeMap::len).collect();
            assert_eq!((reads, found, is_truncated), expected, "{limit}");
        }
    }
}

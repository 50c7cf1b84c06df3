// SPDX-License-Identifier: Apache-2.0

//! Borrowed view of a virtual server in the kernel's answer.

use portolan_model::ipvs::{Flags, VirtualServerConfig};

use super::reply;

/// A virtual server without its real servers, in the kernel's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Glimpse<'a> {
    /// The scheduler's name.
    pub(super) scheduler: &'a [u8],
    pub(super) flags: u32,
    pub(super) timeout: u32,
    /// A mask of ones for none.
    pub(super) netmask: [u8; 4],
    /// Number of its real servers.
    pub real_servers: u32,
}

impl Glimpse<'_> {
    /// Its configuration without the persistence engine, which is not shown.
    #[must_use]
    pub fn config(&self) -> VirtualServerConfig {
        let scheduler = String::from_utf8_lossy(self.scheduler).into_owned();
        let netmask = reply::netmask_v4(self.netmask);
        reply::config(scheduler, self.flags, self.timeout, netmask)
    }

    /// Returns `true` if this is its configuration, the persistence engine aside.
    #[must_use]
    pub fn is(&self, config: &VirtualServerConfig) -> bool {
        self.scheduler == config.scheduler.as_bytes()
            && self.flags & Flags::MASK == config.flags.0
            && reply::persistence(self.flags, self.timeout) == config.persistence
            && reply::netmask_v4(self.netmask) == config.netmask
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::PERSISTENT;
    use super::*;

    #[test]
    fn a_glimpse_is_what_its_config_says_and_nothing_else() {
        let glimpse = Glimpse {
            scheduler: b"mh",
            flags: PERSISTENT | 2 | Flags::SCHED1,
            timeout: 60,
            netmask: [255; 4],
            real_servers: 3,
        };
        let config = glimpse.config();
        assert_eq!(
            (config.flags.0, config.persistence),
            (Flags::SCHED1, Some(60))
        );
        assert!(glimpse.is(&config));
        for other in [
            Glimpse {
                scheduler: b"m",
                ..glimpse
            },
            Glimpse {
                flags: PERSISTENT,
                ..glimpse
            },
            Glimpse {
                flags: Flags::SCHED1,
                ..glimpse
            },
            Glimpse {
                timeout: 61,
                ..glimpse
            },
            Glimpse {
                netmask: [255, 255, 255, 0],
                ..glimpse
            },
        ] {
            assert!(!other.is(&config), "{other:?}");
        }
        let hashed = Glimpse {
            flags: glimpse.flags & !2,
            real_servers: 4,
            ..glimpse
        };
        assert!(hashed.is(&config));
    }
}

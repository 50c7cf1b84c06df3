// SPDX-License-Identifier: Apache-2.0

//! The numbers of attributes (kernel: `include/uapi/linux/ip_vs.h`, `enum` of `IPVS_*_ATTR_*`).

/// `AF_INET`, which is the same on every architecture.
pub(super) const AF_INET: u16 = 2;
/// `AF_INET6`.
pub(super) const AF_INET6: u16 = 10;

/// `IPVS_CMD_ATTR_SERVICE`, a nest of [`service`].
pub(super) const SERVICE: u16 = 1;
/// `IPVS_CMD_ATTR_DEST`, a nest of [`dest`].
pub(super) const DEST: u16 = 2;

/// `IPVS_SVC_ATTR_*`.
pub(super) mod service {
    pub(in crate::ipvs) const ADDRESS_FAMILY: u16 = 1;
    pub(in crate::ipvs) const PROTOCOL: u16 = 2;
    pub(in crate::ipvs) const ADDRESS: u16 = 3;
    pub(in crate::ipvs) const PORT: u16 = 4;
    pub(in crate::ipvs) const FIREWALL_MARK: u16 = 5;
    pub(in crate::ipvs) const SCHEDULER: u16 = 6;
    pub(in crate::ipvs) const FLAGS: u16 = 7;
    pub(in crate::ipvs) const TIMEOUT: u16 = 8;
    pub(in crate::ipvs) const NETMASK: u16 = 9;
    pub(in crate::ipvs) const ENGINE: u16 = 11;
    /// `IPVS_SVC_ATTR_STATS64`, a nest of [`super::counters`].
    pub(in crate::ipvs) const COUNTERS: u16 = 12;
}

/// `IPVS_DEST_ATTR_*`.
pub(super) mod dest {
    pub(in crate::ipvs) const ADDRESS: u16 = 1;
    pub(in crate::ipvs) const PORT: u16 = 2;
    pub(in crate::ipvs) const FORWARDING: u16 = 3;
    pub(in crate::ipvs) const WEIGHT: u16 = 4;
    pub(in crate::ipvs) const UPPER_THRESHOLD: u16 = 5;
    pub(in crate::ipvs) const LOWER_THRESHOLD: u16 = 6;
    pub(in crate::ipvs) const ACTIVE: u16 = 7;
    pub(in crate::ipvs) const INACTIVE: u16 = 8;
    pub(in crate::ipvs) const PERSISTENT: u16 = 9;
    pub(in crate::ipvs) const ADDRESS_FAMILY: u16 = 11;
    /// `IPVS_DEST_ATTR_STATS64`, a nest of [`super::counters`].
    pub(in crate::ipvs) const COUNTERS: u16 = 12;
    pub(in crate::ipvs) const TUNNEL_TYPE: u16 = 13;
    pub(in crate::ipvs) const TUNNEL_PORT: u16 = 14;
    pub(in crate::ipvs) const TUNNEL_FLAGS: u16 = 15;
}

/// `IPVS_INFO_ATTR_*`.
pub(super) mod info {
    pub(in crate::ipvs) const VERSION: u16 = 1;
    pub(in crate::ipvs) const TABLE_SIZE: u16 = 2;
}

/// `IPVS_STATS_ATTR_*`.
pub(super) mod counters {
    pub(in crate::ipvs) const CONNECTIONS: u16 = 1;
    pub(in crate::ipvs) const PACKETS_IN: u16 = 2;
    pub(in crate::ipvs) const PACKETS_OUT: u16 = 3;
    pub(in crate::ipvs) const BYTES_IN: u16 = 4;
    pub(in crate::ipvs) const BYTES_OUT: u16 = 5;
}

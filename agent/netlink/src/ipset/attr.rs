// SPDX-License-Identifier: Apache-2.0

//! Commands, attributes and flags (kernel: `include/uapi/linux/netfilter/ipset/ip_set.h`).

/// `NFNL_SUBSYS_IPSET`, the upper byte of a message type.
pub(super) const SUBSYSTEM: u16 = 6 << 8;
/// `IPSET_PROTOCOL`; since Linux 4.20.
pub(super) const PROTOCOL_VERSION: u8 = 7;

/// `IPSET_CMD_*`.
pub(super) mod command {
    pub(in crate::ipset) const PROTOCOL: u16 = 1;
    pub(in crate::ipset) const CREATE: u16 = 2;
    pub(in crate::ipset) const DESTROY: u16 = 3;
    pub(in crate::ipset) const FLUSH: u16 = 4;
    pub(in crate::ipset) const SWAP: u16 = 6;
    pub(in crate::ipset) const LIST: u16 = 7;
    pub(in crate::ipset) const ADD: u16 = 9;
    pub(in crate::ipset) const DEL: u16 = 10;
    pub(in crate::ipset) const TYPE: u16 = 13;
}

/// `IPSET_ATTR_*` of a command.
pub(super) const PROTOCOL: u16 = 1;
pub(super) const NAME: u16 = 2;
pub(super) const TYPE_NAME: u16 = 3;
pub(super) const NAME2: u16 = 3;
pub(super) const REVISION: u16 = 4;
pub(super) const FAMILY: u16 = 5;
pub(super) const FLAGS: u16 = 6;
/// A nest of [`create`] or [`entry`].
pub(super) const DATA: u16 = 7;
/// A nest of many [`DATA`].
pub(super) const ENTRIES: u16 = 8;
/// Of a command and of an entry: the kernel returns that of a bad entry as that of the command.
pub(super) const LINE: u16 = 9;

/// `IPSET_ATTR_*` of a new set.
pub(super) mod create {
    pub(in crate::ipset) const PORT_FROM: u16 = 4;
    pub(in crate::ipset) const PORT_TO: u16 = 5;
    pub(in crate::ipset) const FLAGS: u16 = 8;
    pub(in crate::ipset) const HASH_SIZE: u16 = 18;
    pub(in crate::ipset) const MAX_ENTRIES: u16 = 19;
    /// In listings only: how many entries there are.
    pub(in crate::ipset) const ENTRY_COUNT: u16 = 24;
}

/// `IPSET_ATTR_*` of an entry.
pub(super) mod entry {
    pub(in crate::ipset) const IP: u16 = 1;
    pub(in crate::ipset) const PORT: u16 = 4;
    pub(in crate::ipset) const PROTOCOL: u16 = 7;
    pub(in crate::ipset) const FLAGS: u16 = 8;
    pub(in crate::ipset) const IP2: u16 = 20;
    pub(in crate::ipset) const PREFIX2: u16 = 21;
    /// 64 bits: the mark, and a mask of those of its bits that count.
    pub(in crate::ipset) const MARK: u16 = 27;
    /// In the nest of an address.
    pub(in crate::ipset) const IPV4: u16 = 1;
    pub(in crate::ipset) const IPV6: u16 = 2;
}

/// `IPSET_FLAG_LIST_SETNAME`: names only.
pub(super) const LIST_NAMES: u32 = 2;
/// `IPSET_FLAG_LIST_HEADER`: no entries.
pub(super) const LIST_HEADERS: u32 = 4;
/// `IPSET_FLAG_NOMATCH` of an entry: an exception to the others.
pub(super) const NO_MATCH: u32 = 4;

/// `IPSET_FLAG_WITH_SKBINFO` of a set: its entries have a mark.
pub(super) const WITH_MARKS: u32 = 64;

/// Families, `NFPROTO_*`.
pub(super) const UNSPECIFIED: u8 = 0;
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 10;

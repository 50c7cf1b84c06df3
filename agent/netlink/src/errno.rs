// SPDX-License-Identifier: Apache-2.0

//! Error numbers as the kernel returns them, with their names.

use std::fmt;

/// An error number of the kernel, positive: of `errno.h`, or one of ipset's private ones from 4097
/// on (kernel: `include/uapi/linux/netfilter/ipset/ip_set.h`, `enum ipset_errno`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Not permitted: `CAP_NET_ADMIN` is missing.
    pub const EPERM: Self = Self(libc::EPERM);
    /// No such set, real server, scheduler or generic netlink family.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// No such virtual server.
    pub const ESRCH: Self = Self(libc::ESRCH);
    /// A virtual server, real server or set of that key exists.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// No such network interface.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// The kernel finds a value invalid.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// There is no such subsystem, or it cannot do that.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// A weight or a threshold is out of range.
    pub const ERANGE: Self = Self(libc::ERANGE);
    /// nftables: a set has as many elements as its size.
    pub const ENFILE: Self = Self(libc::ENFILE);
    /// nftables: another change came first.
    pub const ERESTART: Self = Self(libc::ERESTART);
    /// ipset: a set is referred to by a rule or by another set.
    pub const IPSET_BUSY: Self = Self(4100);
    /// ipset: the two sets of a swap differ in type or family.
    pub const IPSET_TYPE_MISMATCH: Self = Self(4102);
    /// ipset: a hash set holds its maximum of entries.
    pub const IPSET_HASH_FULL: Self = Self(4352);
    /// ipset: the value cannot be an entry of a hash set, such as 0.0.0.0 of a `hash:ip`.
    pub const IPSET_HASH_ELEM: Self = Self(4353);

    /// The error of a number; its sign is dropped, since netlink carries negative numbers.
    #[must_use]
    pub fn new(number: i32) -> Self {
        Self(number.saturating_abs())
    }

    /// The positive number.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }

    /// The C name, if it is one that these interfaces are known to return.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES
            .iter()
            .find(|(number, _)| *number == self.0)
            .map(|(_, name)| *name)
    }

    pub(crate) fn last() -> Self {
        Self::new(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    }
}

impl fmt::Display for Errno {
    /// `ENOENT (2)`, or `errno 999` without a known name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// From 4352 on the numbers depend on the set's type; the names are those of the hash types, since
/// all of `bitmap:port`'s entries are in range.
const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENFILE, "ENFILE"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ERANGE, "ERANGE"),
    (libc::ENOMSG, "ENOMSG"),
    (libc::EPROTO, "EPROTO"),
    (libc::EMSGSIZE, "EMSGSIZE"),
    (libc::ENOPROTOOPT, "ENOPROTOOPT"),
    (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::ENOBUFS, "ENOBUFS"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ELOOP, "ELOOP"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::ENOTEMPTY, "ENOTEMPTY"),
    (libc::ERESTART, "ERESTART"),
    (4097, "IPSET_ERR_PROTOCOL"),
    (4098, "IPSET_ERR_FIND_TYPE"),
    (4099, "IPSET_ERR_MAX_SETS"),
    (4100, "IPSET_ERR_BUSY"),
    (4101, "IPSET_ERR_EXIST_SETNAME2"),
    (4102, "IPSET_ERR_TYPE_MISMATCH"),
    (4103, "IPSET_ERR_EXIST"),
    (4104, "IPSET_ERR_INVALID_CIDR"),
    (4105, "IPSET_ERR_INVALID_NETMASK"),
    (4106, "IPSET_ERR_INVALID_FAMILY"),
    (4107, "IPSET_ERR_TIMEOUT"),
    (4108, "IPSET_ERR_REFERENCED"),
    (4109, "IPSET_ERR_IPADDR_IPV4"),
    (4110, "IPSET_ERR_IPADDR_IPV6"),
    (4111, "IPSET_ERR_COUNTER"),
    (4112, "IPSET_ERR_COMMENT"),
    (4113, "IPSET_ERR_INVALID_MARKMASK"),
    (4114, "IPSET_ERR_SKBINFO"),
    (4352, "IPSET_ERR_HASH_FULL"),
    (4353, "IPSET_ERR_HASH_ELEM"),
    (4354, "IPSET_ERR_INVALID_PROTO"),
    (4355, "IPSET_ERR_MISSING_PROTO"),
    (4356, "IPSET_ERR_HASH_RANGE_UNSUPPORTED"),
    (4357, "IPSET_ERR_HASH_RANGE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_names() {
        assert_eq!(Errno::ENOENT.to_string(), "ENOENT (2)");
        assert_eq!(Errno::new(-4352).to_string(), "IPSET_ERR_HASH_FULL (4352)");
        assert_eq!(Errno::new(4103).to_string(), "IPSET_ERR_EXIST (4103)");
        assert_eq!(Errno::new(999).to_string(), "errno 999");
        assert_eq!(Errno::new(i32::MIN).number(), i32::MAX);
    }
}

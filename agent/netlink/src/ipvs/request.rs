// SPDX-License-Identifier: Apache-2.0

//! Requests to IPVS as messages (kernel: `include/uapi/linux/ip_vs.h`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipvs::{
    Flags, ForwardingMethod, RealServerConfig, VirtualServerConfig, VirtualServerKey,
};

use super::{attr, tunnel};
use crate::wire::Writer;

pub(super) const NEW_SERVICE: u8 = 1;
pub(super) const SET_SERVICE: u8 = 2;
pub(super) const DEL_SERVICE: u8 = 3;
pub(super) const GET_SERVICE: u8 = 4;
pub(super) const NEW_DEST: u8 = 5;
pub(super) const SET_DEST: u8 = 6;
pub(super) const DEL_DEST: u8 = 7;
pub(super) const GET_DEST: u8 = 8;
pub(super) const GET_INFO: u8 = 15;

/// `IP_VS_SVC_F_PERSISTENT`.
pub(super) const PERSISTENT: u32 = 0x0001;
/// `IP_VS_SCHEDNAME_MAXLEN` and `IP_VS_PENAME_MAXLEN` less the NUL.
const NAME_MAX: usize = 15;

/// A change of one IPVS object, in the kernel's words: a *service* is a virtual server, a *dest* a
/// real server.
///
/// All of them may fail with `EPERM` and `ENOMEM`; other errors are named below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Adds a virtual server. `EEXIST` if there is one; `ENOENT` if the kernel has no such scheduler or
    /// persistence engine; `EINVAL` for an IPv6 netmask that is no prefix length; `EINVAL`, found out here,
    /// for port 0 without persistence, for mark 0, and for a scheduler's or an engine's name that is empty,
    /// longer than 15 bytes, or contains a NUL.
    AddService {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its configuration.
        config: Arc<VirtualServerConfig>,
    },
    /// Changes a virtual server; its connections stay. `ESRCH` if there is none; otherwise as
    /// [`AddService`](Self::AddService).
    SetService {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its configuration.
        config: Arc<VirtualServerConfig>,
    },
    /// Deletes a virtual server and its real servers. `ESRCH` if there is none.
    DelService {
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// Adds a real server. `ESRCH` without the virtual server, `EEXIST` if it has it already,
    /// `ERANGE` for a weight above 2^31 - 1 or a lower threshold above the upper one, `EINVAL` for an address
    /// none can forward to, such as broadcast; for an address of another family, except with a tunnel and
    /// without a sync daemon; for GUE to port 0; for every IPv4 address in a network namespace whose loopback
    /// device was never up.
    AddDest {
        /// The virtual server.
        key: VirtualServerKey,
        /// The real server.
        real_server: SocketAddr,
        /// Its configuration.
        config: RealServerConfig,
    },
    /// Changes a real server; its connections stay. `ESRCH` without the virtual server, `ENOENT`
    /// without the real server, otherwise as [`AddDest`](Self::AddDest).
    SetDest {
        /// The virtual server.
        key: VirtualServerKey,
        /// The real server.
        real_server: SocketAddr,
        /// Its configuration.
        config: RealServerConfig,
    },
    /// Deletes a real server. `ESRCH` without the virtual server, `ENOENT` without the real server.
    DelDest {
        /// The virtual server.
        key: VirtualServerKey,
        /// The real server.
        real_server: SocketAddr,
    },
}

impl Request {
    /// The kernel accepts port 0 by netlink although nothing could ever match it, and takes mark 0
    /// for no mark.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::AddService { key, config } | Self::SetService { key, config } => {
                is_name(&config.scheduler)
                    && config.engine.as_deref().is_none_or(is_name)
                    && could_match(key, config)
            }
            _ => true,
        }
    }

    /// Writes the message's payload.
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Self::AddService { key, config } => {
                write_header(writer, NEW_SERVICE);
                write_service(writer, key, Some(config));
            }
            Self::SetService { key, config } => {
                write_header(writer, SET_SERVICE);
                write_service(writer, key, Some(config));
            }
            Self::DelService { key } => {
                write_header(writer, DEL_SERVICE);
                write_service(writer, key, None);
            }
            Self::AddDest {
                key,
                real_server,
                config,
            } => {
                write_header(writer, NEW_DEST);
                write_service(writer, key, None);
                writer.nest(attr::DEST, |nest| {
                    write_dest(nest, *real_server, Some(config))
                });
            }
            Self::SetDest {
                key,
                real_server,
                config,
            } => {
                write_header(writer, SET_DEST);
                write_service(writer, key, None);
                writer.nest(attr::DEST, |nest| {
                    write_dest(nest, *real_server, Some(config))
                });
            }
            Self::DelDest { key, real_server } => {
                write_header(writer, DEL_DEST);
                write_service(writer, key, None);
                writer.nest(attr::DEST, |nest| write_dest(nest, *real_server, None));
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.contains('\0')
}

fn could_match(key: &VirtualServerKey, config: &VirtualServerConfig) -> bool {
    match key {
        VirtualServerKey::Address { port, .. } => *port != 0 || config.persistence.is_some(),
        VirtualServerKey::Mark { mark, .. } => *mark != 0,
    }
}

/// `struct genlmsghdr`: the command, and version 1 of IPVS's interface.
pub(super) fn write_header(writer: &mut Writer, command: u8) {
    writer.raw(&[command, 1, 0, 0]);
}

/// Writes a virtual server: its key, and its configuration if the command has one.
pub(super) fn write_service(
    writer: &mut Writer,
    key: &VirtualServerKey,
    config: Option<&VirtualServerConfig>,
) {
    writer.nest(attr::SERVICE, |nest| {
        write_key(nest, key);
        let Some(config) = config else { return };
        nest.string(attr::service::SCHEDULER, &config.scheduler);
        write_flags(nest, config);
        nest.u32(attr::service::TIMEOUT, config.persistence.unwrap_or(0));
        write_netmask(nest, key.family(), config.netmask);
        // Without the attribute the kernel takes the engine away.
        if let Some(engine) = &config.engine {
            nest.string(attr::service::ENGINE, engine);
        }
    });
}

/// A mask in network order for IPv4 (`__be32`), a prefix length in host order for IPv6.
fn write_netmask(nest: &mut Writer, family: Family, netmask: Option<u32>) {
    let bytes = match family {
        Family::V4 => netmask.unwrap_or(u32::MAX).to_be_bytes(),
        Family::V6 => netmask.unwrap_or(128).to_ne_bytes(),
    };
    nest.attribute(attr::service::NETMASK, &bytes);
}

/// A mark stands in the place of protocol, address and port.
fn write_key(nest: &mut Writer, key: &VirtualServerKey) {
    nest.u16(attr::service::ADDRESS_FAMILY, family_number(key.family()));
    match key {
        VirtualServerKey::Address {
            protocol,
            address,
            port,
        } => {
            nest.u16(attr::service::PROTOCOL, u16::from(protocol.number()));
            write_address(nest, attr::service::ADDRESS, *address);
            nest.attribute(attr::service::PORT, &port.to_be_bytes());
        }
        VirtualServerKey::Mark { mark, .. } => nest.u32(attr::service::FIREWALL_MARK, *mark),
    }
}

/// `struct ip_vs_flags`: the flags, and a mask of those to set, which must be all.
fn write_flags(writer: &mut Writer, config: &VirtualServerConfig) {
    let persistent = if config.persistence.is_some() {
        PERSISTENT
    } else {
        0
    };
    let flags = (config.flags.0 & Flags::MASK) | persistent;
    let [[a, b, c, d], [e, f, g, h]] = [flags.to_ne_bytes(), u32::MAX.to_ne_bytes()];
    writer.attribute(attr::service::FLAGS, &[a, b, c, d, e, f, g, h]);
}

/// Writes a real server into its nest: its address, and its configuration if the command has one.
pub(super) fn write_dest(
    nest: &mut Writer,
    address: SocketAddr,
    config: Option<&RealServerConfig>,
) {
    write_address(nest, attr::dest::ADDRESS, address.ip());
    nest.attribute(attr::dest::PORT, &address.port().to_be_bytes());
    nest.u16(
        attr::dest::ADDRESS_FAMILY,
        family_number(Family::of(address.ip())),
    );
    let Some(config) = config else { return };
    nest.u32(attr::dest::FORWARDING, forwarding_number(config.forwarding));
    nest.u32(attr::dest::WEIGHT, config.weight);
    nest.u32(attr::dest::UPPER_THRESHOLD, config.thresholds.upper);
    nest.u32(attr::dest::LOWER_THRESHOLD, config.thresholds.lower);
    if let ForwardingMethod::Tunnel(kind) = config.forwarding {
        tunnel::write(nest, kind);
    }
}

/// `AF_INET` or `AF_INET6`, which are the same on every architecture.
fn family_number(family: Family) -> u16 {
    match family {
        Family::V4 => attr::AF_INET,
        Family::V6 => attr::AF_INET6,
    }
}

/// `union nf_inet_addr`: IPv4 takes the first four of the sixteen bytes.
fn write_address(writer: &mut Writer, kind: u16, address: IpAddr) {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    writer.attribute(kind, &bytes);
}

/// `IP_VS_CONN_F_*`.
fn forwarding_number(method: ForwardingMethod) -> u32 {
    match method {
        ForwardingMethod::Masquerade => 0,
        ForwardingMethod::Local => 1,
        ForwardingMethod::Tunnel(_) => 2,
        ForwardingMethod::Direct => 3,
    }
}

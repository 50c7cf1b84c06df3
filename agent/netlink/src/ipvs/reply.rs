// SPDX-License-Identifier: Apache-2.0

//! Replies of IPVS.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::ipvs::{
    Connections, Flags, ForwardingMethod, RealServerConfig, Thresholds, Tunnel,
    VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};

use super::request::PERSISTENT;
use super::{Summary, attr, family, tunnel};
use crate::wire::{Attribute, Attributes, Malformed, array};

/// The bits of a forwarding method that tell the method (`IP_VS_CONN_F_FWD_MASK`).
pub(super) const FORWARDING_MASK: u32 = 7;
/// `IP_VS_CONN_F_TUNNEL`.
pub(super) const TUNNEL: u32 = 2;

/// Version and size of the kernel's IPVS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// Major, minor and patch version; 1.2.1 since 2008.
    pub version: (u8, u8, u8),
    /// Number of buckets of the connection table; a module parameter.
    pub connection_table_size: u32,
}

/// A real server as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dest {
    pub(super) config: RealServerConfig,
    pub(super) connections: Connections,
}

/// Objects as read, and the number of those without a type here.
#[derive(Debug)]
pub(super) struct Objects<K, V> {
    pub(super) known: Vec<(K, V)>,
    pub(super) skipped: usize,
}

impl<K, V> Default for Objects<K, V> {
    fn default() -> Self {
        Self {
            known: Vec::new(),
            skipped: 0,
        }
    }
}

impl<K, V> Objects<K, V> {
    pub(super) fn add(&mut self, object: Option<(K, V)>) {
        match object {
            Some(object) => self.known.push(object),
            None => self.skipped += 1,
        }
    }
}

/// Virtual servers by key.
pub(super) type Services = Objects<VirtualServerKey, Summary>;
/// The real servers of a virtual server.
pub(super) type Dests = Objects<SocketAddr, Dest>;

/// Adds the virtual server of a reply, unless it is of IPv4.
pub(super) fn read_v6_service(services: &mut Services, payload: &[u8]) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(attr::SERVICE)?
        .nested();
    if nest.get(attr::service::ADDRESS_FAMILY)?.u16()? == attr::AF_INET6 {
        let summary = |(key, config)| {
            (
                key,
                Summary {
                    config,
                    real_servers: None,
                },
            )
        };
        services.add(service(&nest)?.map(summary));
    }
    Ok(())
}

/// `None` for those without a type here.
pub(super) fn service(
    nest: &Attributes<'_>,
) -> Result<Option<(VirtualServerKey, VirtualServerConfig)>, Malformed> {
    let Some(key) = key(nest)? else {
        return Ok(None);
    };
    let flags: [u8; 8] = nest.get(attr::service::FLAGS)?.exact()?;
    let netmask: [u8; 4] = nest.get(attr::service::NETMASK)?.exact()?;
    let engine = nest.find(attr::service::ENGINE)?;
    let config = VirtualServerConfig {
        engine: engine.map(|engine| engine.string().into()),
        ..config(
            nest.get(attr::service::SCHEDULER)?.string(),
            u32::from_ne_bytes(array(&flags, 0)?),
            nest.get(attr::service::TIMEOUT)?.u32()?,
            match key.family() {
                Family::V4 => netmask_v4(netmask),
                Family::V6 => Some(u32::from_ne_bytes(netmask)).filter(|length| *length != 128),
            },
        )
    };
    Ok(Some((key, config)))
}

pub(super) fn key(nest: &Attributes<'_>) -> Result<Option<VirtualServerKey>, Malformed> {
    let address_family = nest.get(attr::service::ADDRESS_FAMILY)?.u16()?;
    if let Some(mark) = nest.find(attr::service::FIREWALL_MARK)? {
        let mark = mark.u32()?;
        let family = match address_family {
            attr::AF_INET => Family::V4,
            attr::AF_INET6 => Family::V6,
            _ => return Ok(None),
        };
        return Ok(Some(VirtualServerKey::Mark { family, mark }));
    }
    let protocol = nest.get(attr::service::PROTOCOL)?.u16()?;
    let address = address(nest.get(attr::service::ADDRESS)?, address_family)?;
    let port = nest.get(attr::service::PORT)?.be16()?;
    let protocol = Protocol::from_number(protocol);
    Ok(protocol
        .zip(address)
        .map(|(protocol, address)| VirtualServerKey::new(protocol, address, port)))
}

/// The configuration of a virtual server, without its engine.
pub(super) fn config(
    scheduler: String,
    flags: u32,
    timeout: u32,
    netmask: Option<u32>,
) -> VirtualServerConfig {
    VirtualServerConfig {
        scheduler: scheduler.into(),
        flags: Flags(flags & Flags::MASK),
        persistence: persistence(flags, timeout),
        netmask,
        engine: None,
    }
}

/// `None` for a mask of all ones, with which each address is a client of its own.
pub(super) fn netmask_v4(bytes: [u8; 4]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes)).filter(|mask| *mask != u32::MAX)
}

/// The engine in the reply about one virtual server.
pub(super) fn read_engine(engine: &mut Option<String>, payload: &[u8]) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(attr::SERVICE)?
        .nested();
    *engine = nest.find(attr::service::ENGINE)?.map(|name| name.string());
    Ok(())
}

/// Of the kernel's own flags only `PERSISTENT` means something, and only with it the timeout does.
pub(super) fn persistence(flags: u32, timeout: u32) -> Option<u32> {
    (flags & PERSISTENT != 0).then_some(timeout)
}

/// Adds the real server of a reply.
pub(super) fn read_dest(dests: &mut Dests, payload: &[u8]) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(attr::DEST)?
        .nested();
    let address_family = nest.get(attr::dest::ADDRESS_FAMILY)?.u16()?;
    let address = address(nest.get(attr::dest::ADDRESS)?, address_family)?;
    let port = nest.get(attr::dest::PORT)?.be16()?;
    let config = config_of_dest(
        nest.get(attr::dest::FORWARDING)?.u32()?,
        nest.get(attr::dest::WEIGHT)?.u32()?,
        Thresholds {
            upper: nest.get(attr::dest::UPPER_THRESHOLD)?.u32()?,
            lower: nest.get(attr::dest::LOWER_THRESHOLD)?.u32()?,
        },
        tunnel::read(&nest)?,
    );
    let connections = connections(&nest)?;
    let dest = config.map(|config| Dest {
        config,
        connections,
    });
    dests.add(
        address
            .zip(dest)
            .map(|(address, dest)| (SocketAddr::new(address, port), dest)),
    );
    Ok(())
}

/// Connections of a real server.
pub(super) fn connections(nest: &Attributes<'_>) -> Result<Connections, Malformed> {
    Ok(Connections {
        active: nest.get(attr::dest::ACTIVE)?.u32()?,
        inactive: nest.get(attr::dest::INACTIVE)?.u32()?,
        persistent: nest.get(attr::dest::PERSISTENT)?.u32()?,
    })
}

/// `None` for a forwarding method without a type here, which is bypass or an unknown tunnel.
pub(super) fn config_of_dest(
    flags: u32,
    weight: u32,
    thresholds: Thresholds,
    tunnel: Option<Tunnel>,
) -> Option<RealServerConfig> {
    let forwarding = match flags & FORWARDING_MASK {
        0 => ForwardingMethod::Masquerade,
        1 => ForwardingMethod::Local,
        TUNNEL => ForwardingMethod::Tunnel(tunnel?),
        3 => ForwardingMethod::Direct,
        _ => return None,
    };
    Some(RealServerConfig {
        weight,
        forwarding,
        thresholds,
    })
}

pub(super) fn read_info(info: &mut Info, payload: &[u8]) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, family::HEADER_LEN)?;
    let [_, major, minor, patch] = attributes.get(attr::info::VERSION)?.u32()?.to_be_bytes();
    info.version = (major, minor, patch);
    info.connection_table_size = attributes.get(attr::info::TABLE_SIZE)?.u32()?;
    Ok(())
}

/// `union nf_inet_addr`; `None` for an address family that IPVS did not have.
pub(super) fn address(attribute: Attribute<'_>, family: u16) -> Result<Option<IpAddr>, Malformed> {
    let bytes: [u8; 16] = attribute.exact()?;
    Ok(match family {
        attr::AF_INET => Some(IpAddr::V4(Ipv4Addr::from(array::<4>(&bytes, 0)?))),
        attr::AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
        _ => None,
    })
}

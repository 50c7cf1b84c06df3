// SPDX-License-Identifier: Apache-2.0

//! Entries of sets as attributes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use portolan_model::ipset::{SetEntry, SetHeader, SetKind};
use portolan_model::{Family, Protocol};

use super::attr;
use crate::wire::{Attribute, Attributes, Malformed, Writer};

/// Reason an entry does not fit a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// It is an entry of another type of set.
    #[error("its type is not that of the set")]
    Kind,
    /// It has an address of another family than the set's.
    #[error("its address family is not that of the set")]
    Family,
    /// Its network has the prefix length 0, which the kernel does not know.
    #[error("a network of prefix length 0 cannot be an entry")]
    ZeroPrefix,
}

/// Checks that the kernel would accept `entry` unchanged.
pub(super) fn check(header: &SetHeader, entry: &SetEntry) -> Result<(), EntryFault> {
    let (kind, addresses) = match entry {
        SetEntry::Ip(ip) => (SetKind::HashIp, [Some(*ip), None]),
        SetEntry::IpPort(ip, ..) => (SetKind::HashIpPort, [Some(*ip), None]),
        SetEntry::IpPortMark(ip, ..) => (SetKind::HashIpPortMark, [Some(*ip), None]),
        SetEntry::IpPortIp(ip, _, _, ip2) => (SetKind::HashIpPortIp, [Some(*ip), Some(*ip2)]),
        SetEntry::IpPortNet(ip, _, _, net) => {
            (SetKind::HashIpPortNet, [Some(*ip), Some(net.addr())])
        }
        SetEntry::Port(_) => (SetKind::BitmapPort, [None, None]),
    };
    if kind != header.kind {
        return Err(EntryFault::Kind);
    }
    if addresses
        .into_iter()
        .flatten()
        .any(|address| Family::of(address) != header.family)
    {
        return Err(EntryFault::Family);
    }
    match entry {
        SetEntry::IpPortNet(.., net) if net.prefix_len() == 0 => Err(EntryFault::ZeroPrefix),
        _ => Ok(()),
    }
}

/// Writes the attributes of an entry, 80 bytes at most.
pub(super) fn write(nest: &mut Writer, entry: &SetEntry) {
    match entry {
        SetEntry::Ip(ip) => write_ip(nest, attr::entry::IP, *ip),
        SetEntry::IpPort(ip, protocol, port) => write_ip_port(nest, *ip, *protocol, *port),
        SetEntry::IpPortMark(ip, protocol, port, mark) => {
            write_ip_port(nest, *ip, *protocol, *port);
            let value = u64::from(*mark) << 32 | u64::from(u32::MAX);
            nest.be_bytes(attr::entry::MARK, &value.to_be_bytes());
        }
        SetEntry::IpPortIp(ip, protocol, port, ip2) => {
            write_ip_port(nest, *ip, *protocol, *port);
            write_ip(nest, attr::entry::IP2, *ip2);
        }
        SetEntry::IpPortNet(ip, protocol, port, net) => {
            write_ip_port(nest, *ip, *protocol, *port);
            write_ip(nest, attr::entry::IP2, net.addr());
            nest.u8(attr::entry::PREFIX2, net.prefix_len());
        }
        SetEntry::Port(port) => nest.be16(attr::entry::PORT, *port),
    }
}

fn write_ip_port(nest: &mut Writer, ip: IpAddr, protocol: Protocol, port: u16) {
    write_ip(nest, attr::entry::IP, ip);
    nest.be16(attr::entry::PORT, port);
    nest.u8(attr::entry::PROTOCOL, protocol.number());
}

fn write_ip(nest: &mut Writer, kind: u16, ip: IpAddr) {
    nest.nest(kind, |nest| match ip {
        IpAddr::V4(ip) => nest.be_bytes(attr::entry::IPV4, &ip.octets()),
        IpAddr::V6(ip) => nest.be_bytes(attr::entry::IPV6, &ip.octets()),
    });
}

/// The relevant attributes of an entry.
#[derive(Debug, Default)]
struct Fields {
    ip: Option<IpAddr>,
    port: Option<u16>,
    protocol: Option<u8>,
    ip2: Option<IpAddr>,
    prefix2: Option<u8>,
    flags: u32,
    mark: Option<u64>,
}

impl Fields {
    /// The mark; none if only some of its bits count, for which there is no type.
    fn whole_mark(&self) -> Option<u32> {
        let (mark, mask) = (self.mark? >> 32, self.mark? & u64::from(u32::MAX));
        u32::try_from(mark)
            .ok()
            .filter(|_| mask == u64::from(u32::MAX))
    }
}

/// Reads an entry; `None` if there is no type for it: another protocol, an exception, or
/// no mark of 32 bits where there should be one.
pub(super) fn read(kind: SetKind, nest: Attributes<'_>) -> Result<Option<SetEntry>, Malformed> {
    let fields = read_fields(nest)?;
    if fields.flags & attr::NO_MATCH != 0 {
        return Ok(None);
    }
    let port = || required(fields.port, attr::entry::PORT);
    if kind == SetKind::BitmapPort {
        return Ok(Some(SetEntry::Port(port()?)));
    }
    let ip = required(fields.ip, attr::entry::IP)?;
    if kind == SetKind::HashIp {
        return Ok(Some(SetEntry::Ip(ip)));
    }
    let number = required(fields.protocol, attr::entry::PROTOCOL)?;
    let Some(protocol) = Protocol::from_number(u16::from(number)) else {
        return Ok(None);
    };
    let port = port()?;
    if kind == SetKind::HashIpPort {
        return Ok(Some(SetEntry::IpPort(ip, protocol, port)));
    }
    if kind == SetKind::HashIpPortMark {
        let mark = fields.whole_mark();
        return Ok(mark.map(|mark| SetEntry::IpPortMark(ip, protocol, port, mark)));
    }
    let ip2 = required(fields.ip2, attr::entry::IP2)?;
    if kind == SetKind::HashIpPortIp {
        return Ok(Some(SetEntry::IpPortIp(ip, protocol, port, ip2)));
    }
    let full = if ip2.is_ipv4() { 32 } else { 128 };
    let net = IpNet::new(ip2, fields.prefix2.unwrap_or(full)).map_err(|_| Malformed::Value {
        kind: attr::entry::PREFIX2,
    })?;
    Ok(Some(SetEntry::IpPortNet(ip, protocol, port, net)))
}

fn read_fields(nest: Attributes<'_>) -> Result<Fields, Malformed> {
    let mut fields = Fields::default();
    for attribute in nest {
        let attribute = attribute?;
        match attribute.kind {
            attr::entry::IP => fields.ip = Some(read_ip(attribute)?),
            attr::entry::PORT => fields.port = Some(attribute.be16()?),
            attr::entry::PROTOCOL => fields.protocol = Some(attribute.u8()?),
            attr::entry::FLAGS => fields.flags = attribute.be32()?,
            attr::entry::IP2 => fields.ip2 = Some(read_ip(attribute)?),
            attr::entry::MARK => fields.mark = Some(u64::from_be_bytes(attribute.exact()?)),
            attr::entry::PREFIX2 => fields.prefix2 = Some(attribute.u8()?),
            _ => {}
        }
    }
    Ok(fields)
}

fn read_ip(attribute: Attribute<'_>) -> Result<IpAddr, Malformed> {
    let nest = attribute.nested();
    match nest.find(attr::entry::IPV4)? {
        Some(ip) => Ok(Ipv4Addr::from(ip.exact::<4>()?).into()),
        None => Ok(Ipv6Addr::from(nest.get(attr::entry::IPV6)?.exact::<16>()?).into()),
    }
}

fn required<T>(field: Option<T>, kind: u16) -> Result<T, Malformed> {
    field.ok_or(Malformed::Missing { kind })
}

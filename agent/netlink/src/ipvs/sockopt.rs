// SPDX-License-Identifier: Apache-2.0

//! Reading IPVS's IPv4 objects by its older interface, `getsockopt`: measured at least ten times
//! faster than netlink for virtual servers and four times for real servers.
//!
//! The layouts are those of 64-bit architectures (kernel: `struct ip_vs_get_services` and
//! `struct ip_vs_get_dests` of `include/uapi/linux/ip_vs.h`). Persistence engines, kinds of tunnels, and
//! real servers of the other family, which only tunnels can have, are not shown.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use portolan_model::ipvs::{Connections, Thresholds, VirtualServerKey};
use portolan_model::{Family, Protocol};

use super::reply::{self, Dest, Dests, Services};
use super::{Glimpse, IpvsError, Summary};
use crate::wire::{Malformed, array};
use crate::{Errno, sys};

const GET_INFO: i32 = 1153;
const GET_SERVICES: i32 = 1154;
const GET_DESTS: i32 = 1156;

/// `num_services` and padding.
const SERVICES_HEADER: usize = 8;
/// The size of `struct ip_vs_service_entry`.
const SERVICE_LEN: usize = 104;
/// The key, `num_dests` and padding.
const DESTS_HEADER: usize = 24;
/// The size of `struct ip_vs_dest_entry`.
const DEST_LEN: usize = 96;
/// Spare room of a buffer for objects added meanwhile.
const SPARE: u32 = 8;

/// An IPv4 socket; every one takes IPVS's options, and a raw one would need another capability.
#[derive(Debug)]
pub(super) struct Sockopt {
    fd: OwnedFd,
}

impl Sockopt {
    pub(super) fn open() -> Result<Self, IpvsError> {
        sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
            .map(|fd| Self { fd })
            .map_err(IpvsError::Sockopt)
    }

    /// All IPv4 virtual servers.
    pub(super) fn services(&self) -> Result<Services, IpvsError> {
        let mut services = Services::default();
        self.glance(|service| {
            services.add(service.map(|(key, glimpse)| {
                let config = glimpse.config();
                let real_servers = Some(glimpse.real_servers);
                let summary = Summary {
                    config,
                    real_servers,
                };
                (key, summary)
            }));
        })?;
        Ok(services)
    }

    /// Shows all IPv4 virtual servers, `None` for one without a type here.
    pub(super) fn glance(
        &self,
        mut each: impl FnMut(Option<(VirtualServerKey, Glimpse<'_>)>),
    ) -> Result<(), IpvsError> {
        let mut info = [0; 12];
        self.get(GET_INFO, &mut info)?;
        let expected = u32_at(&info, 8)?;
        let table = self.table(expected, SERVICE_LEN, GET_SERVICES, |count| {
            let mut header = vec![0; SERVICES_HEADER];
            header[..4].copy_from_slice(&count.to_ne_bytes());
            header
        })?;
        for entry in table[SERVICES_HEADER..].chunks_exact(SERVICE_LEN) {
            let (protocol, mark) = (u16_at(entry, 0)?, u32_at(entry, 12)?);
            if protocol == 0 && mark == 0 {
                break;
            }
            each(service(protocol, mark, entry)?);
        }
        Ok(())
    }

    /// The real servers of an IPv4 virtual server, `None` if it does not exist. Those reached by a tunnel are
    /// counted as skipped.
    pub(super) fn dests(
        &self,
        key: &VirtualServerKey,
        expected: u32,
    ) -> Result<Option<Dests>, IpvsError> {
        let Some(key) = raw_key(key) else {
            return Ok(None);
        };
        let table = self.table(expected, DEST_LEN, GET_DESTS, |count| {
            let mut header = vec![0; DESTS_HEADER];
            header[..key.len()].copy_from_slice(&key);
            header[16..20].copy_from_slice(&count.to_ne_bytes());
            header
        });
        let table = match table {
            Err(IpvsError::Sockopt(Errno::ESRCH)) => return Ok(None),
            table => table?,
        };
        let mut dests = Dests::default();
        for entry in table[DESTS_HEADER..].chunks_exact(DEST_LEN) {
            let address = Ipv4Addr::from(array::<4>(entry, 0)?);
            if address.is_unspecified() {
                break;
            }
            let port = u16::from_be_bytes(array(entry, 4)?);
            dests.add(dest(entry)?.map(|dest| (SocketAddr::new(address.into(), port), dest)));
        }
        Ok(Some(dests))
    }

    /// Reads a table into a buffer that is certainly large enough. The kernel fills the room there
    /// is without reporting the length, so zeros must be left over.
    fn table(
        &self,
        expected: u32,
        entry_len: usize,
        name: i32,
        header: impl Fn(u32) -> Vec<u8>,
    ) -> Result<Vec<u8>, IpvsError> {
        let mut count = expected.saturating_add(SPARE);
        loop {
            let mut table = header(count);
            table.resize(table.len() + entry_len * count as usize, 0);
            self.get(name, &mut table)?;
            let last = &table[table.len() - entry_len..];
            if last.iter().all(|byte| *byte == 0) {
                return Ok(table);
            }
            count = count.saturating_mul(2);
        }
    }

    fn get(&self, name: i32, buffer: &mut [u8]) -> Result<(), IpvsError> {
        sys::get_option(&self.fd, libc::IPPROTO_IP, name, buffer).map_err(|errno| {
            match errno.number() {
                libc::ENOPROTOOPT => IpvsError::NoIpvs,
                _ => IpvsError::Sockopt(errno),
            }
        })
    }
}

/// The part of a key that `struct ip_vs_get_dests` begins with; `None` for IPv6.
fn raw_key(key: &VirtualServerKey) -> Option<[u8; 16]> {
    let mut raw = [0; 16];
    match key {
        VirtualServerKey::Address {
            protocol,
            address: IpAddr::V4(address),
            port,
        } => {
            raw[..2].copy_from_slice(&u16::from(protocol.number()).to_ne_bytes());
            raw[4..8].copy_from_slice(&address.octets());
            raw[8..10].copy_from_slice(&port.to_be_bytes());
        }
        VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        } => raw[12..].copy_from_slice(&mark.to_ne_bytes()),
        _ => return None,
    }
    Some(raw)
}

fn service(
    protocol: u16,
    mark: u32,
    entry: &[u8],
) -> Result<Option<(VirtualServerKey, Glimpse<'_>)>, Malformed> {
    let key = match Protocol::from_number(protocol) {
        _ if mark != 0 => VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        },
        None => return Ok(None),
        Some(protocol) => {
            let address = IpAddr::V4(Ipv4Addr::from(array::<4>(entry, 4)?));
            let port = u16::from_be_bytes(array(entry, 8)?);
            VirtualServerKey::new(protocol, address, port)
        }
    };
    let scheduler = entry.get(16..32).ok_or(Malformed::Truncated)?;
    let name = scheduler.split(|byte| *byte == 0).next();
    Ok(Some((
        key,
        Glimpse {
            scheduler: name.unwrap_or_default(),
            flags: u32_at(entry, 32)?,
            timeout: u32_at(entry, 36)?,
            netmask: array(entry, 40)?,
            real_servers: u32_at(entry, 44)?,
        },
    )))
}

/// `None` for a real server without a type here, and for one that a tunnel leads to, whose kind is not shown.
fn dest(entry: &[u8]) -> Result<Option<Dest>, Malformed> {
    let thresholds = Thresholds {
        upper: u32_at(entry, 16)?,
        lower: u32_at(entry, 20)?,
    };
    let (flags, weight) = (u32_at(entry, 8)?, u32_at(entry, 12)?);
    let config = reply::config_of_dest(flags, weight, thresholds, None);
    let connections = Connections {
        active: u32_at(entry, 24)?,
        inactive: u32_at(entry, 28)?,
        persistent: u32_at(entry, 32)?,
    };
    Ok(config.map(|config| Dest {
        config,
        connections,
    }))
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, Malformed> {
    array(bytes, offset).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, Malformed> {
    array(bytes, offset).map(u32::from_ne_bytes)
}

// SPDX-License-Identifier: Apache-2.0

//! Sync daemons, `ipvsadm --start-daemon` (kernel: `net/netfilter/ipvs/ip_vs_sync.c`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_model::ipvs::{SyncDaemon, SyncRole};

use super::{Ipvs, IpvsError, family, request};
use crate::wire::{Attributes, Malformed, Writer};

const NEW_DAEMON: u8 = 9;
const DEL_DAEMON: u8 = 10;
const GET_DAEMON: u8 = 11;

/// `IPVS_CMD_ATTR_DAEMON`, a nest of [`attr`].
const DAEMON: u16 = 3;

/// `IPVS_DAEMON_ATTR_*`.
mod attr {
    pub(super) const STATE: u16 = 1;
    pub(super) const INTERFACE: u16 = 2;
    pub(super) const ID: u16 = 3;
    pub(super) const MAX_LENGTH: u16 = 4;
    pub(super) const GROUP: u16 = 5;
    pub(super) const GROUP_V6: u16 = 6;
    /// In host order, unlike all other ports of IPVS.
    pub(super) const PORT: u16 = 7;
    pub(super) const TTL: u16 = 8;
}

/// The daemons of a network namespace, by role.
pub type SyncDaemons = BTreeMap<SyncRole, SyncDaemon>;

impl Ipvs {
    /// Starts a sync daemon.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], with `EEXIST` if one of this role runs, `ENODEV` without the interface, `EINVAL`
    /// while a virtual server has a real server of the other family.
    pub fn add_daemon(&mut self, role: SyncRole, daemon: &SyncDaemon) -> Result<(), IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, NEW_DAEMON);
            writer.nest(DAEMON, |nest| write(nest, role, daemon));
        };
        Ok(self.socket.request(self.family, fill, nothing)?)
    }

    /// Stops the sync daemon of a role.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], with `ESRCH` if none runs.
    pub fn del_daemon(&mut self, role: SyncRole) -> Result<(), IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, DEL_DAEMON);
            writer.nest(DAEMON, |nest| nest.u32(attr::STATE, number(role)));
        };
        Ok(self.socket.request(self.family, fill, nothing)?)
    }

    /// The running sync daemons.
    ///
    /// # Errors
    /// [`IpvsError::Socket`].
    pub fn daemons(&mut self) -> Result<SyncDaemons, IpvsError> {
        let fill = |writer: &mut Writer| request::write_header(writer, GET_DAEMON);
        Ok(self.socket.dump(self.family, fill, read)?)
    }
}

fn nothing((): &mut (), _: &[u8]) -> Result<(), Malformed> {
    Ok(())
}

/// `IP_VS_STATE_MASTER` and `IP_VS_STATE_BACKUP`.
fn number(role: SyncRole) -> u32 {
    match role {
        SyncRole::Master => 1,
        SyncRole::Backup => 2,
    }
}

fn write(nest: &mut Writer, role: SyncRole, daemon: &SyncDaemon) {
    nest.u32(attr::STATE, number(role));
    nest.string(attr::INTERFACE, &daemon.interface);
    nest.u32(attr::ID, daemon.id.into());
    nest.u16(attr::MAX_LENGTH, daemon.max_length);
    match daemon.group {
        IpAddr::V4(group) => nest.attribute(attr::GROUP, &group.octets()),
        IpAddr::V6(group) => nest.attribute(attr::GROUP_V6, &group.octets()),
    }
    nest.u16(attr::PORT, daemon.port);
    nest.u8(attr::TTL, daemon.ttl);
}

/// Adds the daemon of a reply. Kernels before 4.3 have neither group, port, ttl nor length: they run with the
/// defaults.
fn read(daemons: &mut SyncDaemons, payload: &[u8]) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(DAEMON)?
        .nested();
    let state = nest.get(attr::STATE)?.u32()?;
    let Some(role) = SyncRole::ALL
        .into_iter()
        .find(|role| number(*role) == state)
    else {
        return Ok(());
    };
    let id = nest.get(attr::ID)?.u32()?;
    let mut daemon = SyncDaemon {
        id: u8::try_from(id).unwrap_or(u8::MAX),
        ..SyncDaemon::new(nest.get(attr::INTERFACE)?.string())
    };
    if let Some(length) = nest.find(attr::MAX_LENGTH)? {
        daemon.max_length = length.u16()?;
    }
    if let Some(group) = nest.find(attr::GROUP)? {
        daemon.group = Ipv4Addr::from(group.exact::<4>()?).into();
    } else if let Some(group) = nest.find(attr::GROUP_V6)? {
        daemon.group = Ipv6Addr::from(group.exact::<16>()?).into();
    }
    if let Some(port) = nest.find(attr::PORT)? {
        daemon.port = port.u16()?;
    }
    if let Some(ttl) = nest.find(attr::TTL)? {
        daemon.ttl = ttl.u8()?;
    }
    daemons.insert(role, daemon);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: SyncRole, daemon: &SyncDaemon) -> Vec<u8> {
        let mut writer = Writer::default();
        request::write_header(&mut writer, NEW_DAEMON);
        writer.nest(DAEMON, |nest| write(nest, role, daemon));
        writer.as_bytes().to_vec()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn new_daemon_is_these_bytes() {
        let daemon = SyncDaemon {
            id: 7,
            ..SyncDaemon::new("eth0")
        };
        let expected: &[u8] = &[
            9, 1, 0, 0, // NEW_DAEMON, version 1
            64, 0, 3, 0x80, // daemon
            8, 0, 1, 0, 1, 0, 0, 0, // master
            9, 0, 2, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // interface
            8, 0, 3, 0, 7, 0, 0, 0, // id
            6, 0, 4, 0, 0xc0, 5, 0, 0, // 1472 bytes
            8, 0, 5, 0, 224, 0, 0, 81, // group
            6, 0, 7, 0, 0x90, 0x22, 0, 0, // port 8848, host order
            5, 0, 8, 0, 1, 0, 0, 0, // ttl
        ];
        assert_eq!(message(SyncRole::Master, &daemon), expected);
    }

    #[test]
    fn both_daemons_are_read_back() {
        let v6 = SyncDaemon {
            id: 255,
            max_length: 996,
            group: "ff02::81".parse().unwrap(),
            port: 9000,
            ttl: 9,
            ..SyncDaemon::new("a-long-name-15b")
        };
        let expected = SyncDaemons::from([
            (SyncRole::Master, SyncDaemon::new("eth0")),
            (SyncRole::Backup, v6),
        ]);
        let mut found = SyncDaemons::new();
        for (role, daemon) in &expected {
            read(&mut found, &message(*role, daemon)).unwrap();
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_daemon_without_optional_attributes_has_the_defaults() {
        let mut writer = Writer::default();
        request::write_header(&mut writer, NEW_DAEMON);
        writer.nest(DAEMON, |nest| {
            nest.u32(attr::STATE, 2);
            nest.string(attr::INTERFACE, "eth0");
            nest.u32(attr::ID, 0);
        });
        let mut found = SyncDaemons::new();
        read(&mut found, writer.as_bytes()).unwrap();
        let expected = (SyncRole::Backup, SyncDaemon::new("eth0"));
        assert_eq!(found, SyncDaemons::from([expected]));
    }
}

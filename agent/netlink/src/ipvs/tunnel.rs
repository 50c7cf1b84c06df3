// SPDX-License-Identifier: Apache-2.0

//! Attributes of tunnels to real servers.

use portolan_model::ipvs::{GueChecksum, Tunnel};

use super::attr::dest::{TUNNEL_FLAGS, TUNNEL_PORT, TUNNEL_TYPE};
use crate::wire::{Attributes, Malformed, Writer};

/// `IP_VS_CONN_F_TUNNEL_TYPE_IPIP`.
const IPIP: u8 = 0;
/// `IP_VS_CONN_F_TUNNEL_TYPE_GUE`.
const GUE: u8 = 1;
/// `IP_VS_CONN_F_TUNNEL_TYPE_GRE`.
const GRE: u8 = 2;
/// `IP_VS_TUNNEL_ENCAP_FLAG_CSUM`.
const CHECKSUM: u16 = 1;
/// `IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM`.
const REMOTE_CHECKSUM: u16 = 2;

/// Writes all attributes of a tunnel: the kernel takes an absent one for IP in IP, port 0, no flag.
pub(super) fn write(nest: &mut Writer, tunnel: Tunnel) {
    let (kind, port, flags) = match tunnel {
        Tunnel::Ipip => (IPIP, 0, 0),
        Tunnel::Gue { port, checksum } => {
            let flags = match checksum {
                GueChecksum::None => 0,
                GueChecksum::Full => CHECKSUM,
                GueChecksum::Remote => REMOTE_CHECKSUM,
            };
            (GUE, port, flags)
        }
        Tunnel::Gre { checksum } => (GRE, 0, if checksum { CHECKSUM } else { 0 }),
    };
    nest.attribute(TUNNEL_TYPE, &[kind]);
    nest.attribute(TUNNEL_PORT, &u16::to_be_bytes(port));
    nest.u16(TUNNEL_FLAGS, flags);
}

/// Reads the tunnel of a real server, IP in IP before Linux 5.3, which has no attributes for it. `None` for
/// one without a type here.
pub(super) fn read(nest: &Attributes<'_>) -> Result<Option<Tunnel>, Malformed> {
    let Some(kind) = nest.find(TUNNEL_TYPE)? else {
        return Ok(Some(Tunnel::Ipip));
    };
    let [kind] = kind.exact::<1>()?;
    let port = nest.get(TUNNEL_PORT)?.be16()?;
    let flags = nest.get(TUNNEL_FLAGS)?.u16()?;
    let gue = |checksum| Some(Tunnel::Gue { port, checksum });
    let gre = |checksum| Some(Tunnel::Gre { checksum });
    Ok(match (kind, flags) {
        (IPIP, _) => Some(Tunnel::Ipip),
        (GUE, 0) => gue(GueChecksum::None),
        (GUE, CHECKSUM) => gue(GueChecksum::Full),
        (GUE, REMOTE_CHECKSUM) => gue(GueChecksum::Remote),
        (GRE, 0) => gre(false),
        (GRE, CHECKSUM) => gre(true),
        _ => None,
    })
}

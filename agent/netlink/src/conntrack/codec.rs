// SPDX-License-Identifier: Apache-2.0

//! Conntrack's messages (kernel: `include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use std::net::{IpAddr, SocketAddr};

use portolan_model::{Family, Protocol};

use super::{Flow, Tuple};
use crate::wire::{Attributes, Malformed, Writer};

/// `IPCTNL_MSG_CT_GET`.
pub(super) const GET: u8 = 1;
/// `IPCTNL_MSG_CT_DELETE`.
pub(super) const DELETE: u8 = 2;
/// Few flows are stale at once; this is some hundreds.
pub(super) const MAX_SEND: usize = 64 << 10;

/// `NFNL_SUBSYS_CTNETLINK`.
const SUBSYSTEM: u16 = 1;
/// The length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `CTA_FILTER`, since Linux 5.8; an older kernel ignores it and sends all protocols.
const FILTER: u16 = 25;
/// `CTA_FILTER_ORIG_FLAGS`.
const FILTER_ORIG_FLAGS: u16 = 1;
/// `CTA_FILTER_REPLY_FLAGS`.
const FILTER_REPLY_FLAGS: u16 = 2;
/// `CTA_FILTER_F_CTA_PROTO_NUM`, of the kernel's `nf_internals.h`.
const FILTER_PROTOCOL: u32 = 1 << 3;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;

const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;

/// The attributes of an address: `CTA_IP_V4_SRC` and `_DST`, `CTA_IP_V6_SRC` and `_DST`.
const IP_V4: [u16; 2] = [1, 2];
const IP_V6: [u16; 2] = [3, 4];

/// `IPS_DST_NAT`.
pub(super) const STATUS_DNAT: u32 = 1 << 5;

/// The type of a message.
pub(super) fn kind(message: u8) -> u16 {
    (SUBSYSTEM << 8) | u16::from(message)
}

/// `struct nfgenmsg`: the family, version 0, and nothing.
fn write_header(writer: &mut Writer, family: Family) {
    let family = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    writer.raw(&[u8::try_from(family).unwrap_or_default(), 0, 0, 0]);
}

/// Asks for the UDP flows of a family.
pub(super) fn write_dump(writer: &mut Writer, family: Family) {
    write_header(writer, family);
    writer.nest(TUPLE_ORIG, |tuple| {
        tuple.nest(TUPLE_PROTO, |proto| {
            proto.u8(PROTO_NUM, Protocol::Udp.number());
        });
    });
    writer.nest(FILTER, |filter| {
        filter.u32(FILTER_ORIG_FLAGS, FILTER_PROTOCOL);
        filter.u32(FILTER_REPLY_FLAGS, 0);
    });
}

/// Asks to delete a flow, and no later one between the same addresses.
pub(super) fn write_delete(writer: &mut Writer, flow: &Flow) {
    let Tuple {
        source,
        destination,
    } = flow.original;
    write_header(writer, Family::of(source.ip()));
    writer.nest(TUPLE_ORIG, |tuple| {
        tuple.nest(TUPLE_IP, |ip| {
            for (index, address) in [source.ip(), destination.ip()].into_iter().enumerate() {
                match address {
                    IpAddr::V4(v4) => ip.attribute(IP_V4[index], &v4.octets()),
                    IpAddr::V6(v6) => ip.attribute(IP_V6[index], &v6.octets()),
                }
            }
        });
        tuple.nest(TUPLE_PROTO, |proto| {
            proto.u8(PROTO_NUM, Protocol::Udp.number());
            proto.attribute(PROTO_SRC_PORT, &source.port().to_be_bytes());
            proto.attribute(PROTO_DST_PORT, &destination.port().to_be_bytes());
        });
    });
    writer.attribute(ID, &flow.id.to_be_bytes());
}

/// Reads a flow; `None` if it is not of UDP, or in a zone, which the agent does not serve.
pub(super) fn read_flow(payload: &[u8]) -> Result<Option<Flow>, Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    if let Some(zone) = attributes.find(ZONE)?
        && zone.be16()? != 0
    {
        return Ok(None);
    }
    let original = read_tuple(&attributes.get(TUPLE_ORIG)?.nested())?;
    let reply = read_tuple(&attributes.get(TUPLE_REPLY)?.nested())?;
    let id = attributes.get(ID)?.be32()?;
    Ok(original.zip(reply).map(|(original, reply)| Flow {
        original,
        reply,
        id,
    }))
}

/// Reads the status bits of a flow.
pub(super) fn read_status(payload: &[u8]) -> Result<u32, Malformed> {
    match Attributes::new(payload, HEADER_LEN)?.find(STATUS)? {
        Some(status) => status.be32(),
        None => Ok(0),
    }
}

fn read_tuple(tuple: &Attributes<'_>) -> Result<Option<Tuple>, Malformed> {
    let (ip, proto) = (
        tuple.get(TUPLE_IP)?.nested(),
        tuple.get(TUPLE_PROTO)?.nested(),
    );
    if proto.get(PROTO_NUM)?.u8()? != Protocol::Udp.number() {
        return Ok(None);
    }
    let end = |index: usize, port: u16| -> Result<SocketAddr, Malformed> {
        let port = proto.get(port)?.be16()?;
        let address = match ip.find(IP_V4[index])? {
            Some(v4) => IpAddr::from(v4.exact::<4>()?),
            None => IpAddr::from(ip.get(IP_V6[index])?.exact::<16>()?),
        };
        Ok(SocketAddr::new(address, port))
    };
    Ok(Some(Tuple {
        source: end(0, PROTO_SRC_PORT)?,
        destination: end(1, PROTO_DST_PORT)?,
    }))
}

// SPDX-License-Identifier: Apache-2.0

//! Netlink messages encoded by hand. The encoder shares nothing with the product's, so that the
//! floor measures the kernel alone.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};

use crate::load::Load;

pub(crate) const ACK: u16 = 4;
const REQUEST: u16 = 1;
const CREATE: u16 = 0x400;
const NESTED: u16 = 0x8000;
const BIG_ENDIAN: u16 = 0x4000;
/// The number of entries in a message: an attribute has at most 64 KiB.
pub(crate) const ENTRIES: usize = 1_800;

/// Concatenated messages, and the offset at which each ends.
#[derive(Default)]
pub(crate) struct Pack {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<usize>,
}

impl Pack {
    pub(crate) fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        let out = &mut self.bytes;
        let sequence = u32::try_from(self.ends.len() + 1).unwrap_or_default();
        out.extend([0; 4]);
        out.extend(kind.to_ne_bytes());
        out.extend((REQUEST | flags).to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        fill(out);
        let length = u32::try_from(out.len() - start).unwrap_or_default();
        out[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.ends.push(out.len());
    }
}

fn attribute(out: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    nest(out, kind, |out| out.extend(payload));
}

fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 2]);
    out.extend(kind.to_ne_bytes());
    fill(out);
    let length = u16::try_from(out.len() - start).unwrap_or_default();
    out[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A request for the number of the generic netlink family of IPVS.
pub(crate) fn family_request() -> Pack {
    let mut pack = Pack::default();
    pack.message(0x10, 0, |out| {
        out.extend([3, 1, 0, 0]);
        attribute(out, 2, b"IPVS\0");
    });
    pack
}

/// The family's number in the answer: attribute 1.
pub(crate) fn family_number(answer: &[u8]) -> Result<u16> {
    let mut rest = answer.get(20..).context("a short answer")?;
    while let [a, b, c, d, payload @ ..] = rest {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        if u16::from_ne_bytes([*c, *d]) == 1 {
            return Ok(u16::from_ne_bytes([payload[0], payload[1]]));
        }
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or(&[]);
    }
    anyhow::bail!("no family number in the answer")
}

fn padded(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address.octets());
    bytes
}

fn service(out: &mut Vec<u8>, vip: Ipv4Addr, with_config: bool) {
    nest(out, 1, |out| {
        attribute(out, 1, &2u16.to_ne_bytes());
        attribute(out, 2, &6u16.to_ne_bytes());
        attribute(out, 3, &padded(vip));
        attribute(out, 4, &80u16.to_be_bytes());
        if with_config {
            attribute(out, 6, b"rr\0");
            attribute(out, 7, &[0, 0, 0, 0, 255, 255, 255, 255]);
            attribute(out, 8, &0u32.to_ne_bytes());
            attribute(out, 9, &u32::MAX.to_ne_bytes());
        }
    });
}

/// All virtual servers, then all real servers.
pub(crate) fn ipvs(load: Load, family: u16) -> Pack {
    let mut pack = Pack::default();
    for number in 0..load.services {
        pack.message(family, 0, |out| {
            out.extend([1, 1, 0, 0]);
            service(out, load.vip(number), true);
        });
    }
    for (vip, address) in load.pairs() {
        pack.message(family, 0, |out| {
            out.extend([5, 1, 0, 0]);
            service(out, vip, false);
            nest(out, 2, |out| {
                attribute(out, 1, &padded(address));
                attribute(out, 2, &8080u16.to_be_bytes());
                attribute(out, 3, &0u32.to_ne_bytes());
                attribute(out, 4, &1u32.to_ne_bytes());
                attribute(out, 5, &0u32.to_ne_bytes());
                attribute(out, 6, &0u32.to_ne_bytes());
            });
        });
    }
    pack
}

/// The entries of the three sets that contain a cluster IP, `chunk` in each message.
pub(crate) fn sets(load: Load, chunk: usize) -> Pack {
    let mut pack = Pack::default();
    let vips: Vec<Ipv4Addr> = (0..load.services).map(|number| load.vip(number)).collect();
    for (name, with_port) in [
        ("KUBE-CLUSTER-IP", true),
        ("KUBE-IPVS-IPS", false),
        ("KUBE-PORTOLAN-OWNED", true),
    ] {
        for vips in vips.chunks(chunk) {
            pack.message((6 << 8) | 9, 0, |out| {
                out.extend([2, 0, 0, 0]);
                attribute(out, 1, &[7]);
                attribute(out, 2, format!("{name}\0").as_bytes());
                attribute(out, 9, &1u32.to_ne_bytes());
                nest(out, 8 | NESTED, |out| {
                    vips.iter().for_each(|vip| entry(out, *vip, with_port));
                });
            });
        }
    }
    pack
}

fn entry(out: &mut Vec<u8>, vip: Ipv4Addr, with_port: bool) {
    nest(out, 7 | NESTED, |out| {
        nest(out, 1 | NESTED, |out| {
            attribute(out, 1 | BIG_ENDIAN, &vip.octets());
        });
        if with_port {
            attribute(out, 4 | BIG_ENDIAN, &80u16.to_be_bytes());
            attribute(out, 7, &[6]);
        }
    });
}

/// `local VIP/32 dev lo src SOURCE proto 99 metric 1099 table local scope host`.
pub(crate) fn routes(load: Load, source: Ipv4Addr) -> Pack {
    let mut pack = Pack::default();
    for number in 0..load.services {
        pack.message(24, CREATE, |out| {
            out.extend([2, 32, 0, 0, 255, 99, 254, 2, 0, 0, 0, 0]);
            attribute(out, 1, &load.vip(number).octets());
            attribute(out, 4, &1u32.to_ne_bytes());
            attribute(out, 6, &1_099u32.to_ne_bytes());
            attribute(out, 7, &source.octets());
        });
    }
    pack
}

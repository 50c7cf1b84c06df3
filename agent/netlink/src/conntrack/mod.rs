// SPDX-License-Identifier: Apache-2.0

//! UDP flows of conntrack: reading and deletion (kernel: `net/netfilter/nf_conntrack_netlink.c`).

mod codec;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use portolan_model::Family;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use codec::{DELETE, GET, MAX_SEND, kind};

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Source of its packets.
    pub source: SocketAddr,
    /// Destination of its packets.
    pub destination: SocketAddr,
}

/// A UDP flow in conntrack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Packets of the client.
    pub original: Tuple,
    /// Packets of the reply, whose source differs after translation.
    pub reply: Tuple,
    /// Distinguishes it from a later flow between the same addresses.
    pub id: u32,
}

/// The conntrack of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens the socket.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open() -> Result<Self, SocketError> {
        let socket = Socket::open(Bus::Netfilter)?;
        Ok(Self { socket })
    }

    /// The UDP flows of a family outside of zones that `keep` selects. It is no snapshot: some may be missing
    /// if the kernel's table changed meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses, as one without conntrack does, or the socket fails.
    pub fn udp_flows(
        &mut self,
        family: Family,
        keep: &dyn Fn(&Flow) -> bool,
    ) -> Result<Vec<Flow>, SocketError> {
        self.flows(family, &|_, flow| keep(flow))
    }

    /// As [`Self::udp_flows`], of those flows alone whose destination no rule has translated: IPVS changes
    /// the reply only.
    ///
    /// # Errors
    /// Same as [`Self::udp_flows`].
    pub fn untranslated_udp_flows(
        &mut self,
        family: Family,
        keep: &dyn Fn(&Flow) -> bool,
    ) -> Result<Vec<Flow>, SocketError> {
        let is_kept = |status, flow: &Flow| status & codec::STATUS_DNAT == 0 && keep(flow);
        self.flows(family, &is_kept)
    }

    fn flows(
        &mut self,
        family: Family,
        keep: &dyn Fn(u32, &Flow) -> bool,
    ) -> Result<Vec<Flow>, SocketError> {
        let fill = |writer: &mut _| codec::write_dump(writer, family);
        let decode = |flows: &mut Vec<Flow>, payload: &[u8]| {
            let flow = codec::read_flow(payload)?;
            let status = codec::read_status(payload)?;
            flows.extend(flow.filter(|flow| keep(status, flow)));
            Ok(())
        };
        self.socket.dump_once(kind(GET), fill, decode)
    }

    /// Deletes flows; returns how many still existed.
    ///
    /// # Errors
    /// With the first refusal other than that a flow is not there any more, or if the socket fails.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<usize, SocketError> {
        let mut batch = self.socket.batch(MAX_SEND);
        for flow in flows {
            batch.push(kind(DELETE), 0, |writer| codec::write_delete(writer, flow))?;
        }
        let refused = batch.finish()?;
        let is_gone = |errno: Errno| errno == Errno::ENOENT;
        match refused.iter().find(|refused| !is_gone(refused.errno)) {
            Some(refused) => Err(SocketError::Refused(refused.errno)),
            None => Ok(flows.len() - refused.len()),
        }
    }
}

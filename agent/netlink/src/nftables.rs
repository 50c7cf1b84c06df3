// SPDX-License-Identifier: Apache-2.0

//! Tables of nftables (kernel: `net/netfilter/nf_tables_api.c`): their names.

use portolan_model::Family;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use crate::wire::{Attributes, Malformed, Writer};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFT_MSG_GETTABLE`.
const GET_TABLE: u16 = 1;
/// `NFTA_TABLE_NAME`.
const NAME: u16 = 1;
/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// Names of the tables of a family, in the network namespace of the calling thread. A kernel without
/// nftables has none. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// If the kernel refuses, or the socket fails.
pub fn tables(family: Family) -> Result<Vec<String>, SocketError> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let fill = |writer: &mut Writer| writer.raw(&header(family));
    let kind = (SUBSYSTEM << 8) | GET_TABLE;
    match socket.dump(kind, fill, read_name) {
        // There is no such subsystem.
        Err(SocketError::Refused(Errno::EINVAL)) => Ok(Vec::new()),
        other => other,
    }
}

/// `struct nfgenmsg`: the family, version 0, and nothing.
fn header(family: Family) -> [u8; HEADER_LEN] {
    let family = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    [u8::try_from(family).unwrap_or_default(), 0, 0, 0]
}

fn read_name(names: &mut Vec<String>, payload: &[u8]) -> Result<(), Malformed> {
    let name = Attributes::new(payload, HEADER_LEN)?.get(NAME)?;
    names.push(name.string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_table_is_read() {
        let mut writer = Writer::default();
        writer.raw(&header(Family::V6));
        writer.u32(2, 0);
        writer.string(NAME, "kube-proxy");
        let mut names = Vec::new();
        read_name(&mut names, writer.as_bytes()).unwrap();
        assert_eq!(names, ["kube-proxy"]);
        assert!(read_name(&mut names, &header(Family::V4)).is_err());
    }
}

// SPDX-License-Identifier: Apache-2.0

//! IPVS's own timeouts, `ipvsadm --set` (kernel: `IPVS_CMD_SET_CONFIG`).

use super::{Ipvs, IpvsError, request};
use crate::wire::{Attributes, Malformed, Writer};

const SET_CONFIG: u8 = 12;
const GET_CONFIG: u8 = 13;

/// `IPVS_CMD_ATTR_TIMEOUT_TCP` and the two that follow it.
const TCP: u16 = 4;
const TCP_FIN: u16 = 5;
const UDP: u16 = 6;

/// The length of `struct genlmsghdr`.
const HEADER_LEN: usize = 4;

/// Timeouts of connections without packets, in seconds. When they are set, 0 leaves one unchanged.
/// The kernel's defaults are 900, 120 and 300.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Of an established TCP connection.
    pub tcp: u32,
    /// Of a TCP connection that is closing.
    pub tcp_fin: u32,
    /// Of UDP.
    pub udp: u32,
}

impl Ipvs {
    /// Sets the timeouts that are not 0, for connections from now on.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], with `EINVAL` for one of more than 2^31 / `HZ` seconds.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, SET_CONFIG);
            write(writer, timeouts);
        };
        let nothing = |(): &mut (), _: &[u8]| Ok(());
        Ok(self.socket.request(self.family, fill, nothing)?)
    }

    /// The timeouts in force.
    ///
    /// # Errors
    /// [`IpvsError::Socket`].
    pub fn timeouts(&mut self) -> Result<Timeouts, IpvsError> {
        let fill = |writer: &mut Writer| request::write_header(writer, GET_CONFIG);
        Ok(self.socket.request(self.family, fill, read)?)
    }
}

fn write(writer: &mut Writer, timeouts: &Timeouts) {
    let Timeouts { tcp, tcp_fin, udp } = *timeouts;
    for (kind, seconds) in [(TCP, tcp), (TCP_FIN, tcp_fin), (UDP, udp)] {
        if seconds != 0 {
            writer.u32(kind, seconds);
        }
    }
}

fn read(timeouts: &mut Timeouts, payload: &[u8]) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let seconds = |kind| match attributes.find(kind)? {
        Some(attribute) => attribute.u32(),
        // A kernel without the protocol has no timeout for it.
        None => Ok(0),
    };
    *timeouts = Timeouts {
        tcp: seconds(TCP)?,
        tcp_fin: seconds(TCP_FIN)?,
        udp: seconds(UDP)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_timeouts_are_not_written_and_read_as_zero() {
        let timeouts = Timeouts {
            tcp: 3600,
            tcp_fin: 0,
            udp: 30,
        };
        let mut writer = Writer::default();
        writer.raw(&[GET_CONFIG, 1, 0, 0]);
        write(&mut writer, &timeouts);
        assert_eq!(writer.len(), HEADER_LEN + 2 * 8);
        let mut got = Timeouts::default();
        assert_eq!(read(&mut got, writer.as_bytes()), Ok(()));
        assert_eq!(got, timeouts);
    }
}

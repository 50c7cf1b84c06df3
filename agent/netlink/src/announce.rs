// SPDX-License-Identifier: Apache-2.0

//! Announcements of addresses to neighbours: gratuitous ARP (RFC 5227, section 3), and unsolicited neighbour
//! advertisements (RFC 4861, section 7.2.6). The address need not be one of the interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use crate::Errno;
use crate::sys;

/// `ETH_P_ARP`, `ETH_P_IPV6`.
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
/// Octets of an Ethernet address.
const HARDWARE: usize = 6;
const BROADCAST: [u8; HARDWARE] = [0xff; HARDWARE];
/// The Ethernet address of ff02::1.
const ALL_NODES: [u8; HARDWARE] = [0x33, 0x33, 0, 0, 0, 1];

/// Sends announcements by an interface. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
    index: u32,
    hardware: [u8; HARDWARE],
}

impl Announcer {
    /// Opens a socket at an Ethernet interface.
    ///
    /// # Errors
    /// If there is no such interface, it has no Ethernet address, or the capability is missing.
    pub fn open(interface: &str) -> io::Result<Self> {
        let index = sys::interface_index(interface).map_err(of_errno)?;
        // Protocol 0 receives nothing.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0).map_err(of_errno)?;
        let (kind, hardware) = sys::hardware_address(&socket, interface).map_err(of_errno)?;
        if kind != libc::ARPHRD_ETHER {
            return Err(io::Error::other(format!(
                "{interface} has no Ethernet address"
            )));
        }
        Ok(Self {
            socket,
            index,
            hardware,
        })
    }

    /// Announces an address once: by an ARP request and an ARP reply, or an advertisement.
    ///
    /// # Errors
    /// If a packet cannot be sent, as while the interface is down.
    pub fn announce(&self, address: IpAddr) -> io::Result<()> {
        match address {
            IpAddr::V4(address) => {
                for operation in [1, 2] {
                    let packet = arp(operation, self.hardware, address);
                    self.send(ARP, BROADCAST, &packet)?;
                }
                Ok(())
            }
            IpAddr::V6(address) => {
                self.send(IPV6, ALL_NODES, &advertisement(self.hardware, address))
            }
        }
    }

    fn send(&self, protocol: u16, to: [u8; HARDWARE], packet: &[u8]) -> io::Result<()> {
        sys::send_frame(&self.socket, self.index, protocol, to, packet).map_err(of_errno)
    }
}

fn of_errno(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.number())
}

/// An ARP packet in which sender and target are the address. As a reply it names the target's Ethernet address
/// too.
fn arp(operation: u8, hardware: [u8; HARDWARE], address: Ipv4Addr) -> Vec<u8> {
    let target = if operation == 1 {
        [0; HARDWARE]
    } else {
        hardware
    };
    [
        &[0, 1, 8, 0, 6, 4, 0, operation][..],
        &hardware,
        &address.octets(),
        &target,
        &address.octets(),
    ]
    .concat()
}

/// An advertisement from the address to all nodes, with the flag Override: neighbours take the new Ethernet
/// address in place of the one they have.
fn advertisement(hardware: [u8; HARDWARE], address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = [
        // Type 136, checksum, flags Router and Override.
        &[136, 0, 0, 0, 0xa0, 0, 0, 0][..],
        &address.octets(),
        // Option 2: target link-layer address, of 8 octets.
        &[2, 1],
        &hardware,
    ]
    .concat();
    let length = u8::try_from(message.len()).unwrap_or_default();
    let pseudo = [
        &address.octets()[..],
        &all_nodes.octets(),
        &[0, 0, 0, length, 0, 0, 0, 58],
    ]
    .concat();
    let sum = checksum(&[pseudo, message.clone()].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    [
        // Version 6; next header ICMPv6; hop limit 255, without which nobody takes it.
        &[0x60, 0, 0, 0, 0, length, 58, 255][..],
        &address.octets(),
        &all_nodes.octets(),
        &message,
    ]
    .concat()
}

/// The internet checksum of an even number of octets.
fn checksum(octets: &[u8]) -> u16 {
    let words = octets
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn arp_packets_name_the_address_twice() {
        let vip = Ipv4Addr::new(192, 0, 2, 10);
        let request = arp(1, MAC, vip);
        assert_eq!(request.len(), 28);
        assert_eq!(request[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(
            (&request[8..14], &request[14..18]),
            (&MAC[..], &vip.octets()[..])
        );
        assert_eq!(
            (&request[18..24], &request[24..]),
            (&[0; 6][..], &vip.octets()[..])
        );
        let reply = arp(2, MAC, vip);
        assert_eq!((reply[7], &reply[18..24]), (2, &MAC[..]));
    }

    #[test]
    fn an_advertisement_overrides_and_its_checksum_is_right() {
        let vip: Ipv6Addr = "2001:db8::10".parse().unwrap();
        let packet = advertisement(MAC, vip);
        assert_eq!(packet.len(), 40 + 32);
        assert_eq!((packet[5], packet[6], packet[7]), (32, 58, 255));
        let message = &packet[40..];
        assert_eq!((message[0], message[4] & 0x20), (136, 0x20));
        assert_eq!(
            (&message[8..24], &message[26..]),
            (&vip.octets()[..], &MAC[..])
        );
        // The sum over everything, checksum included, is all ones.
        let covered = [&packet[8..40], &[0, 0, 0, 32, 0, 0, 0, 58], message].concat();
        assert_eq!(checksum(&covered), 0);
    }

    #[test]
    fn a_name_that_is_no_interface_is_refused() {
        for name in ["", "a/b", "a\0b", "portolan-none"] {
            Announcer::open(name).unwrap_err();
        }
    }
}

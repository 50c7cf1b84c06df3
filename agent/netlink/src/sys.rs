// SPDX-License-Identifier: Apache-2.0

//! The system calls, and all unsafe code of this crate. Nothing here knows a protocol.
#![allow(unsafe_code)]

use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

use crate::Errno;

/// `socket(2)`, closed on exec.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the descriptor is new, valid, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `setsockopt(2)` of an `int`.
pub(crate) fn set_option(
    fd: &OwnedFd,
    level: c_int,
    name: c_int,
    value: c_int,
) -> Result<(), Errno> {
    set_raw(fd, level, name, &value)
}

/// Makes `recv` fail with `EAGAIN` after `timeout`.
pub(crate) fn set_receive_timeout(fd: &OwnedFd, timeout: Duration) -> Result<(), Errno> {
    let value = libc::timeval {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(timeout.subsec_micros()),
    };
    set_raw(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value)
}

/// `T` must be the plain C type that the option takes.
fn set_raw<T: Copy>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: the pointer is that of a live `T` and the length is its size; the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast::<c_void>(),
            option_len(size_of::<T>()),
        )
    };
    check(result)
}

/// `getsockopt(2)` into `buffer`, whose present content and length are the request.
pub(crate) fn get_option(
    fd: &OwnedFd,
    level: c_int,
    name: c_int,
    buffer: &mut [u8],
) -> Result<(), Errno> {
    let mut len = option_len(buffer.len());
    // SAFETY: the pointer and the length are those of a live and initialised slice, which the
    // kernel reads and fills to at most that length.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            buffer.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    check(result)
}

/// `send(2)` of one datagram.
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the pointer and the length are those of a live slice; the kernel only reads.
    let sent = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast::<c_void>(),
            bytes.len(),
            0,
        )
    };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// `recv(2)` of one datagram. The result is its true length, which may exceed the buffer's.
pub(crate) fn receive(fd: &OwnedFd, buffer: &mut [u8], wait: bool) -> Result<usize, Errno> {
    let flags = libc::MSG_TRUNC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the pointer and the length are those of a live and initialised slice, which the
    // kernel fills to at most that length.
    let len = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast::<c_void>(),
            buffer.len(),
            flags,
        )
    };
    usize::try_from(len).map_err(|_| Errno::last())
}

/// `if_nametoindex(3)`.
pub(crate) fn interface_index(name: &str) -> Result<u32, Errno> {
    let name = std::ffi::CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the pointer is that of a live string that ends with NUL.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Errno::last()),
        index => Ok(index),
    }
}

/// `if_indextoname(3)`.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the pointer is that of a live buffer of the length that the function takes for granted.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast::<libc::c_char>()) };
    if found.is_null() {
        return None;
    }
    let name = std::ffi::CStr::from_bytes_until_nul(&name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// The kind of an interface (`ARPHRD_*`) and its hardware address.
pub(crate) fn hardware_address(fd: &OwnedFd, name: &str) -> Result<(u16, [u8; 6]), Errno> {
    // SAFETY: all zeros are a valid `ifreq`: numbers, and a union of plain types.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    if name.len() > room {
        return Err(Errno::ENODEV);
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        // A `char` of C has a sign or has none, by architecture.
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: the pointer is that of a live `ifreq`, which the kernel reads and fills.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    check(result)?;
    // SAFETY: the kernel has filled this member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut octets = [0; 6];
    for (place, octet) in octets.iter_mut().zip(address.sa_data) {
        *place = octet.to_ne_bytes()[0];
    }
    Ok((address.sa_family, octets))
}

/// `sendto(2)` of one packet without its Ethernet header, by a packet socket.
pub(crate) fn send_frame(
    fd: &OwnedFd,
    index: u32,
    protocol: u16,
    to: [u8; 6],
    packet: &[u8],
) -> Result<(), Errno> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&to);
    let address = libc::sockaddr_ll {
        sll_family: libc::c_ushort::try_from(libc::AF_PACKET).unwrap_or_default(),
        sll_protocol: protocol.to_be(),
        sll_ifindex: c_int::try_from(index).map_err(|_| Errno::ENODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: address,
    };
    // SAFETY: both pointers and lengths are those of live values; the kernel only reads.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            packet.as_ptr().cast::<c_void>(),
            packet.len(),
            0,
            std::ptr::from_ref(&address).cast::<libc::sockaddr>(),
            option_len(size_of::<libc::sockaddr_ll>()),
        )
    };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

fn check(result: c_int) -> Result<(), Errno> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(())
    }
}

/// The kernel takes option lengths as `int`, so a longer buffer is used in part only.
fn option_len(len: usize) -> socklen_t {
    c_int::try_from(len).unwrap_or(c_int::MAX).unsigned_abs()
}

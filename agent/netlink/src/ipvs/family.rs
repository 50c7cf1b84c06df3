// SPDX-License-Identifier: Apache-2.0

//! Finding a generic netlink family by name (kernel: `include/uapi/linux/genetlink.h`).

use crate::Errno;
use crate::socket::{Socket, SocketError};
use crate::wire::{Attributes, Malformed, Writer};

/// The length of `struct genlmsghdr`.
pub(super) const HEADER_LEN: usize = 4;

/// `GENL_ID_CTRL`, the message type of the controller.
const CONTROLLER: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// The number of a family, or `None` if the kernel has none of that name.
pub(super) fn resolve(socket: &mut Socket, name: &str) -> Result<Option<u16>, SocketError> {
    let fill = |writer: &mut Writer| {
        writer.raw(&[CTRL_CMD_GETFAMILY, 1, 0, 0]);
        writer.string(CTRL_ATTR_FAMILY_NAME, name);
    };
    match socket.request(CONTROLLER, fill, read) {
        Err(SocketError::Refused(Errno::ENOENT)) => Ok(None),
        result => result,
    }
}

fn read(family: &mut Option<u16>, payload: &[u8]) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    *family = Some(attributes.get(CTRL_ATTR_FAMILY_ID)?.u16()?);
    Ok(())
}

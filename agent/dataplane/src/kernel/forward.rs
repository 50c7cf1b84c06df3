// SPDX-License-Identifier: Apache-2.0

//! Base chains of all tables that drop forwarded packets, in the network namespace of the calling process.

use portolan_netlink::nftables::{DropChain, Nftables};

use super::blocking::blocking;
use crate::DataplaneError;

/// Looks at the hook of forwarded packets.
#[derive(Debug)]
pub struct ForwardHook {
    nftables: Nftables,
    /// The generation of all tables at the last look.
    generation: Option<u32>,
}

impl ForwardHook {
    /// Opens a socket.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open() -> Result<Self, DataplaneError> {
        Ok(Self {
            nftables: Nftables::open().map_err(DataplaneError::Nftables)?,
            generation: None,
        })
    }

    /// The chains that drop; `None` if nobody has changed a table since the last look.
    ///
    /// # Errors
    /// If the kernel cannot be read. The next look reads it again.
    pub fn look(&mut self) -> Result<Option<Vec<DropChain>>, DataplaneError> {
        let Self {
            nftables,
            generation,
        } = self;
        let look = || {
            // Before the chains: a change after that is read at the next look.
            let now = nftables.generation()?;
            if *generation == Some(now) {
                return Ok(None);
            }
            let chains = nftables.drop_chains()?;
            *generation = Some(now);
            Ok(Some(chains))
        };
        blocking(look).map_err(DataplaneError::Nftables)
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Conntrack, when it is needed.

use portolan_netlink::conntrack::Conntrack;

use crate::DataplaneError;

/// Conntrack, opened on first use: only UDP Services need it.
#[derive(Debug, Default)]
pub(super) struct LateConntrack(Option<Conntrack>);

impl LateConntrack {
    /// Opens it, unless it is open.
    pub(super) fn get(&mut self) -> Result<&mut Conntrack, DataplaneError> {
        match &mut self.0 {
            Some(conntrack) => Ok(conntrack),
            none => {
                let opened = Conntrack::open().map_err(DataplaneError::Conntrack)?;
                Ok(none.insert(opened))
            }
        }
    }
}

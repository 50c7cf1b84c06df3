// SPDX-License-Identifier: Apache-2.0

//! All that IPVS has in the network namespace of the process, whoever programmed it.

use std::collections::BTreeMap;

use portolan_model::ipvs::{VirtualServer, VirtualServerKey};
use portolan_netlink::ipvs::{Ipvs, SyncDaemons, Timeouts};

use crate::DataplaneError;

/// The virtual servers with their real servers, the timeouts and the sync daemons.
#[derive(Debug, Clone)]
pub struct Whole {
    /// The virtual servers.
    pub virtual_servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Number of virtual and real servers of a kind that is not known here.
    pub unknown: usize,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// The sync daemons.
    pub daemons: SyncDaemons,
}

/// Reads everything by a socket of its own; changes nothing. Blocks.
///
/// # Errors
/// If the kernel has no IPVS, or cannot be read.
pub fn read_whole() -> Result<Whole, DataplaneError> {
    let mut ipvs = Ipvs::open()?;
    let state = ipvs.dump()?;
    Ok(Whole {
        virtual_servers: state.virtual_servers,
        unknown: state.skipped,
        timeouts: ipvs.timeouts()?,
        daemons: ipvs.daemons()?,
    })
}

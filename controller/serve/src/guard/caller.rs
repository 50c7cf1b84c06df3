// SPDX-License-Identifier: Apache-2.0

//! The sender of a request.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_auth::{Identity, Refusal};
use tonic::Status;

use crate::Registry;

/// The admitted sender of a request: an extension of requests to services beside `portolan.v1.Tables`.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(super) identity: Arc<Identity>,
    pub(super) registry: Arc<Registry>,
    pub(super) address: IpAddr,
}

impl Caller {
    /// Checks that the sender may send the objects of a cluster as an edge controller of this name.
    ///
    /// # Errors
    /// If it may not, as [`Identity::authorize_edge`] says. That is counted and logged.
    pub fn authorize_edge(&self, cluster: &str, edge: &str) -> Result<(), Status> {
        let authorized = self.identity.authorize_edge(cluster, edge);
        authorized.map_err(|refusal| self.refuse(refusal))
    }

    /// Counts and logs a refusal.
    pub fn refuse(&self, refusal: Refusal) -> Status {
        let Refusal { reason, status } = refusal;
        self.registry.refuse(self.address, reason, status.message());
        status
    }
}

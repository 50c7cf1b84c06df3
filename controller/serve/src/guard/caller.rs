// SPDX-License-Identifier: Apache-2.0

//! The sender of a request.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use portolan_auth::{Identity, Refusal};
use portolan_listener::{Admission, Peer};
use tonic::Status;

use crate::Registry;

/// A stream's place on its connection, shared by its caller and its keeper.
#[derive(Debug, Clone)]
pub(super) struct Place {
    peer: Option<Peer>,
    admission: Arc<OnceLock<Admission>>,
}

impl Place {
    pub(super) fn new(peer: Option<Peer>) -> Self {
        Self {
            peer,
            admission: Arc::default(),
        }
    }

    /// Admits the stream, which keeps its connection open from then on.
    pub(super) fn admit(&self) {
        if let Some(peer) = &self.peer {
            self.admission.get_or_init(|| peer.admit());
        }
    }

    /// Closes the connection of an admitted stream. A stream that is not admitted keeps none open.
    pub(super) fn cut(&self) {
        if let Some(admission) = self.admission.get() {
            admission.cut();
        }
    }

    /// The address for which a refusal is counted.
    pub(super) fn ip(&self) -> IpAddr {
        Peer::ip(self.peer.as_ref())
    }
}

/// The authenticated sender of a request: an extension of requests to services beside `portolan.v1.Tables`.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(super) identity: Arc<Identity>,
    pub(super) registry: Arc<Registry>,
    pub(super) place: Place,
}

impl Caller {
    /// Checks that the sender may send the objects of a cluster as an edge controller of this name.
    /// The stream then keeps its connection open, which has the input budget of an edge.
    ///
    /// # Errors
    /// If it may not, as [`Identity::authorize_edge`] says. That is counted and logged.
    pub fn authorize_edge(&self, cluster: &str, edge: &str) -> Result<(), Status> {
        let authorized = self.identity.authorize_edge(cluster, edge);
        authorized.map_err(|refusal| self.refuse(refusal))?;
        self.place.admit();
        if let Some(peer) = &self.place.peer {
            peer.admit_edge();
        }
        Ok(())
    }

    /// Counts and logs a refusal.
    pub fn refuse(&self, refusal: Refusal) -> Status {
        let Refusal { reason, status } = refusal;
        self.registry
            .refuse(self.place.ip(), reason, status.message());
        status
    }
}

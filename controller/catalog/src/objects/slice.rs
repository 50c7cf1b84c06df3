//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{Family, Protocol};
use serde::Serialize;

use super::ObjectKey;

/// An EndpointSlice: endpoints of one family, all with the same ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointSlice {
    /// Its name.
    pub key: ObjectKey,
    /// The name of the Service it belongs to (label `kubernetes.io/service-name`).
    pub service: Arc<str>,
    /// `addressType`.
    pub family: Family,
    /// Its ports; a port without a number never becomes one.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The Service it belongs to.
    #[must_use]
    pub fn service_key(&self) -> ObjectKey {
        ObjectKey {
            name: Arc::clone(&self.service),
            ..self.key.clone()
        }
    }
}

/// One port of an EndpointSlice: the number that the Service port's target has on these endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlicePort {
    /// The name of the Service port it belongs to.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on the endpoint.
    pub port: u16,
}

/// One endpoint of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// `addresses[0]`: the others are never used.
    pub address: IpAddr,
    /// `conditions.ready`, true if unset.
    pub ready: bool,
    /// `conditions.serving`, true if unset.
    pub serving: bool,
    /// `conditions.terminating`, false if unset.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `targetRef.name`, if that is a Pod; it is of the slice's namespace.
    pub pod: Option<Arc<str>>,
    /// `hints.forZones[].name`; `None` if the endpoint has no such hint.
    pub zone_hints: Option<Vec<Arc<str>>>,
    /// `hints.forNodes[].name`; `None` if the endpoint has no such hint.
    pub node_hints: Option<Vec<Arc<str>>>,
}

impl Endpoint {
    /// An endpoint that is ready, on no known node, without hints.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            pod: None,
            zone_hints: None,
            node_hints: None,
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

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
    /// The trigger time of its last change, in milliseconds of Unix time (annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`). A slice that differs in nothing else
    /// has not changed.
    pub triggered_ms: Option<u64>,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
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
    /// `hostname`: its label in DNS.
    pub hostname: Option<Arc<str>>,
    /// `hints.forZones[].name`; `None` if the endpoint has no such hint.
    pub zone_hints: Option<Vec<Arc<str>>>,
    /// `hints.forNodes[].name`; `None` if the endpoint has no such hint.
    pub node_hints: Option<Vec<Arc<str>>>,
}

impl Endpoint {
    /// A ready endpoint without node and hints.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            pod: None,
            hostname: None,
            zone_hints: None,
            node_hints: None,
        }
    }

    /// The endpoint as the catalog shows it.
    #[must_use]
    pub fn view(&self) -> EndpointRef<'_> {
        EndpointRef {
            address: self.address,
            ready: self.ready,
            serving: self.serving,
            terminating: self.terminating,
            node: self.node.as_ref(),
            pod: self.pod.as_deref(),
            hostname: self.hostname.as_deref(),
            zone_hints: self.zone_hints.as_deref(),
            node_hints: self.node_hints.as_deref(),
        }
    }
}

/// One endpoint as the catalog shows it. The fields are those of an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "said at Endpoint")]
pub struct EndpointRef<'a> {
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node: Option<&'a Arc<str>>,
    pub pod: Option<&'a str>,
    pub hostname: Option<&'a str>,
    pub zone_hints: Option<&'a [Arc<str>]>,
    pub node_hints: Option<&'a [Arc<str>]>,
}

impl EndpointRef<'_> {
    /// Returns `true` if it can be a destination: it is ready, or terminating and still serving
    /// (KEP-1669).
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.ready || (self.serving && self.terminating)
    }
}

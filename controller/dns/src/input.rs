// SPDX-License-Identifier: Apache-2.0

//! The input of the records: Services, EndpointSlices, Pods and Namespaces, reduced to the fields
//! that a DNS answer depends on.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use portolan_model::Protocol;

/// A Service, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The Service's namespace, a DNS label.
    pub namespace: String,
    /// The Service's name, a DNS label.
    pub name: String,
}

impl ServiceKey {
    /// The Service `name` of `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A port of a Service, or of the endpoints of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The port's name; empty for an unnamed port, which has no SRV name of its own.
    pub name: String,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port number, 1 to 65535. `None` in a slice means "all ports": such a port has no SRV
    /// record.
    pub number: Option<u16>,
}

/// The target of a Service's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Its cluster IPs, at most one per family. NodePort and LoadBalancer Services are of this
    /// kind too.
    ClusterIp {
        /// The cluster IPs; empty while none is allocated.
        ips: Vec<IpAddr>,
    },
    /// Its ready endpoints (`clusterIP: None`).
    Headless,
    /// Another name (`type: ExternalName`).
    ExternalName {
        /// `spec.externalName`: a DNS name, absolute with or without the dot at its end.
        target: String,
    },
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ServiceKey,
    /// The target of its name.
    pub kind: Kind,
    /// `spec.ports`.
    pub ports: Vec<Port>,
    /// `spec.publishNotReadyAddresses`: all endpoints count as ready.
    pub publish_not_ready: bool,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The endpoint's addresses, all of the slice's family.
    pub addresses: Vec<IpAddr>,
    /// `conditions.ready`; unknown counts as ready.
    pub ready: bool,
    /// `hostname`: the endpoint's label below the Service's name.
    pub hostname: Option<String>,
    /// `targetRef.name`.
    pub pod: Option<String>,
    /// `zone`: the topology zone that the endpoint is in.
    pub zone: Option<String>,
}

/// An EndpointSlice, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    /// The slice's namespace, which is its Service's too.
    pub namespace: String,
    /// The slice's name.
    pub name: String,
}

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub key: SliceKey,
    /// The name of the Service that it belongs to (label `kubernetes.io/service-name`).
    pub service: String,
    /// The id of the cluster that its endpoints are in, for names of imported Services; `None` in a zone of one
    /// cluster.
    pub cluster: Option<String>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A Pod, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// The Pod's namespace.
    pub namespace: String,
    /// The Pod's name.
    pub name: String,
}

/// A Pod. Needed for [`PodMode::Verified`](crate::PodMode::Verified) only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// The addresses that have names: as in CoreDNS all of `status.podIPs`.
    pub addresses: Vec<IpAddr>,
}

/// One change of the cluster. Changes are idempotent; the deletion of a missing object changes
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamesChange {
    /// A Namespace exists.
    Namespace(String),
    /// A Namespace was deleted. It exists in DNS for as long as Services or Pods are in it.
    NamespaceRemoved(String),
    /// A Service was added or changed.
    Service(Service),
    /// A Service was deleted.
    ServiceRemoved(ServiceKey),
    /// An EndpointSlice was added or changed.
    Slice(Slice),
    /// An EndpointSlice was deleted.
    SliceRemoved(SliceKey),
    /// The state of a Service with all its slices; without both, it was deleted. For copies of a
    /// zone.
    Whole {
        /// Its namespace and name.
        key: ServiceKey,
        /// The Service; `None` while only slices of it are known.
        service: Option<Service>,
        /// All its slices.
        slices: Vec<Slice>,
    },
    /// A Pod was added or changed.
    Pod(Pod),
    /// A Pod was deleted.
    PodRemoved(PodKey),
    /// The number of a Namespace's Pods with an address. For copies of a zone.
    PodAddress {
        /// The Pods' namespace.
        namespace: String,
        /// The address.
        address: IpAddr,
        /// The number of Pods; 0 for none.
        count: usize,
    },
    /// A listing is complete: other objects of the kind were deleted in the meantime.
    Listed(Listing),
    /// All existing objects have been reported; from now on a missing object does not exist.
    Synced,
}

/// All objects of a kind that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// All Namespaces.
    Namespaces(BTreeSet<String>),
    /// All Services.
    Services(BTreeSet<ServiceKey>),
    /// All EndpointSlices.
    Slices(BTreeSet<SliceKey>),
    /// All Pods that have names.
    Pods(BTreeSet<PodKey>),
}

/// A group of records that change together, for exporters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The names that are no object's: the zones' name servers, and all after [`NamesChange::Synced`].
    Apex,
    /// A Namespace began or ceased to exist.
    Namespace(String),
    /// A Service's own names, and the names below it.
    Service(ServiceKey),
    /// The PTR records of an address.
    Address(IpAddr),
    /// The name of a Pod's address, or how many Pods have it.
    Pod {
        /// The Pod's namespace.
        namespace: String,
        /// The address that the name stands for.
        address: IpAddr,
    },
}

//! EndpointSlices: 12 bytes for an IPv4 endpoint, 24 for an IPv6 one, and the pods' names.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use portolan_model::{Family, Protocol};

use crate::shared::Shared;
use crate::{Endpoint, EndpointRef, EndpointSlice, SlicePort};

/// Between names. The API server has no names with it, and a file that does has itself to blame:
/// a name ends there.
const SEPARATOR: char = '\0';

/// A name up to a separator, if it has one.
pub(crate) fn cut(name: &str) -> &str {
    name.split(SEPARATOR).next().unwrap_or_default()
}

/// An EndpointSlice without its namespace and Service, which are where it is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PackedSlice {
    /// Its name, and that of each endpoint's pod after it if any has one.
    names: Box<str>,
    addresses: Addresses,
    ports: Arc<[SlicePort]>,
    /// One per address.
    places: Box<[Arc<Place>]>,
}

#[derive(Debug, PartialEq, Eq)]
enum Addresses {
    V4(Box<[Ipv4Addr]>),
    V6(Box<[Ipv6Addr]>),
}

/// All that an endpoint says beside its address and pod. Endpoints on one node mostly say the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    node: Option<Arc<str>>,
    zone_hints: Option<Arc<[Arc<str>]>>,
    node_hints: Option<Arc<[Arc<str>]>>,
    ready: bool,
    serving: bool,
    terminating: bool,
}

/// What objects have in common.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    names: Shared<str>,
    ports: Shared<[SlicePort]>,
    hints: Shared<[Arc<str>]>,
    places: Shared<Place>,
}

impl Pack {
    /// Packs a slice. Endpoints of another family than the slice's are none.
    pub(crate) fn slice(&mut self, slice: EndpointSlice) -> PackedSlice {
        let mut endpoints = slice.endpoints;
        endpoints.retain(|endpoint| Family::of(endpoint.address) == slice.family);
        let ports = slice.ports.into_iter().map(|port| SlicePort {
            name: self.name(port.name),
            ..port
        });
        let ports: Vec<_> = ports.collect();
        PackedSlice {
            names: names(&slice.key.name, &endpoints),
            addresses: Addresses::of(slice.family, &endpoints),
            ports: self.ports.get(ports),
            places: endpoints.into_iter().map(|e| self.place(e)).collect(),
        }
    }

    /// A name that other objects have too.
    pub(crate) fn name(&mut self, name: Arc<str>) -> Arc<str> {
        self.names.get(name)
    }

    fn place(&mut self, endpoint: Endpoint) -> Arc<Place> {
        let place = Place {
            node: endpoint.node.map(|name| self.name(name)),
            zone_hints: endpoint.zone_hints.map(|names| self.hints(names)),
            node_hints: endpoint.node_hints.map(|names| self.hints(names)),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
        };
        self.places.get(place)
    }

    fn hints(&mut self, names: Vec<Arc<str>>) -> Arc<[Arc<str>]> {
        let names: Vec<_> = names.into_iter().map(|name| self.name(name)).collect();
        self.hints.get(names)
    }
}

impl PackedSlice {
    pub(crate) fn name(&self) -> &str {
        cut(&self.names)
    }

    pub(crate) fn family(&self) -> Family {
        match self.addresses {
            Addresses::V4(_) => Family::V4,
            Addresses::V6(_) => Family::V6,
        }
    }

    /// The numbers that a Service port has here.
    pub(crate) fn numbers(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let is_it = move |port: &&SlicePort| &*port.name == name && port.protocol == protocol;
        self.ports.iter().filter(is_it).map(|port| port.port)
    }

    /// The endpoints, in the slice's order.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointRef<'_>> {
        let mut pods = self.names.split(SEPARATOR).skip(1);
        self.places.iter().enumerate().map(move |(index, place)| {
            let pod = pods.next().filter(|name| !name.is_empty());
            place.view(self.addresses.get(index), pod)
        })
    }

    /// Whether an endpoint that was ready, or could be used, no longer is or can in what comes in
    /// this slice's place.
    pub(crate) fn loses(&self, after: Option<&Self>) -> bool {
        let after = after.into_iter().flat_map(Self::endpoints);
        let after: HashMap<IpAddr, EndpointRef<'_>> = after.map(|e| (e.address, e)).collect();
        self.endpoints().any(|before| {
            let after = after.get(&before.address);
            let is_ready = after.is_some_and(|after| after.ready);
            let is_usable = after.is_some_and(EndpointRef::is_usable);
            (before.ready && !is_ready) || (before.is_usable() && !is_usable)
        })
    }
}

impl Place {
    fn view<'a>(&'a self, address: IpAddr, pod: Option<&'a str>) -> EndpointRef<'a> {
        EndpointRef {
            address,
            ready: self.ready,
            serving: self.serving,
            terminating: self.terminating,
            node: self.node.as_ref(),
            pod,
            zone_hints: self.zone_hints.as_deref(),
            node_hints: self.node_hints.as_deref(),
        }
    }
}

impl Addresses {
    fn of(family: Family, endpoints: &[Endpoint]) -> Self {
        let addresses = endpoints.iter().map(|endpoint| endpoint.address);
        let v4 = |address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        };
        let v6 = |address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(v6),
        };
        match family {
            Family::V4 => Self::V4(addresses.filter_map(v4).collect()),
            Family::V6 => Self::V6(addresses.filter_map(v6).collect()),
        }
    }

    fn get(&self, index: usize) -> IpAddr {
        match self {
            Self::V4(all) => all[index].into(),
            Self::V6(all) => all[index].into(),
        }
    }
}

fn names(name: &str, endpoints: &[Endpoint]) -> Box<str> {
    let mut all = cut(name).to_owned();
    if endpoints.iter().any(|endpoint| endpoint.pod.is_some()) {
        for endpoint in endpoints {
            let pod = endpoint.pod.as_deref().unwrap_or_default();
            all.push(SEPARATOR);
            all.push_str(cut(pod));
        }
    }
    all.into_boxed_str()
}

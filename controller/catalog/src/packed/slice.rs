// SPDX-License-Identifier: Apache-2.0

//! EndpointSlices: 12 bytes for an IPv4 endpoint, 24 for an IPv6 one, and the names of pods and hosts.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{Family, Protocol};

use crate::shared::Shared;
use crate::{Endpoint, EndpointRef, EndpointSlice, QuickMap, SlicePort};

/// Between names. The API server has no names with it, and a file that does has itself to blame:
/// a name ends there.
const SEPARATOR: char = '\0';

/// A name up to a separator, if it has one.
pub(crate) fn cut(name: &str) -> &str {
    name.split(SEPARATOR).next().unwrap_or_default()
}

/// An EndpointSlice without its namespace and Service, which are its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PackedSlice {
    /// Its name, that of each endpoint's pod after it if any has one or a hostname, and after those the
    /// hostname of each endpoint if any has one.
    names: Box<str>,
    /// 4 or 16 bytes per endpoint, by family.
    addresses: Box<[u8]>,
    ports: Arc<[SlicePort]>,
    /// One per endpoint.
    places: Box<[Arc<Place>]>,
}

/// The fields of an endpoint other than address and pod. Mostly equal for endpoints of one node.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    node: Option<Arc<str>>,
    hints: Option<Arc<Hints>>,
    ready: bool,
    serving: bool,
    terminating: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Hints {
    zones: Option<Box<[Arc<str>]>>,
    nodes: Option<Box<[Arc<str>]>>,
}

/// Values shared by objects.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    names: Shared<str>,
    ports: Shared<[SlicePort]>,
    hints: Shared<Hints>,
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
            addresses: octets(&endpoints),
            ports: self.ports.get(ports),
            places: self.places(endpoints),
        }
    }

    fn places(&mut self, endpoints: Vec<Endpoint>) -> Box<[Arc<Place>]> {
        let mut places: Vec<Arc<Place>> = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let last = places.last();
            let place = match last.filter(|last| last.is_of(&endpoint)) {
                Some(last) => Arc::clone(last),
                None => self.place(endpoint),
            };
            places.push(place);
        }
        places.into_boxed_slice()
    }

    /// A name that other objects have too.
    pub(crate) fn name(&mut self, name: Arc<str>) -> Arc<str> {
        self.names.get(name)
    }

    fn place(&mut self, endpoint: Endpoint) -> Arc<Place> {
        let place = Place {
            node: endpoint.node.map(|name| self.name(name)),
            hints: self.hints(endpoint.zone_hints, endpoint.node_hints),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
        };
        self.places.get(place)
    }

    fn hints(
        &mut self,
        zones: Option<Vec<Arc<str>>>,
        nodes: Option<Vec<Arc<str>>>,
    ) -> Option<Arc<Hints>> {
        if zones.is_none() && nodes.is_none() {
            return None;
        }
        let mut shared = |names: Vec<Arc<str>>| -> Box<[Arc<str>]> {
            names.into_iter().map(|name| self.name(name)).collect()
        };
        let hints = Hints {
            zones: zones.map(&mut shared),
            nodes: nodes.map(&mut shared),
        };
        Some(self.hints.get(hints))
    }
}

impl PackedSlice {
    pub(crate) fn name(&self) -> &str {
        cut(&self.names)
    }

    /// The family of its endpoints; unknown without endpoints.
    pub(crate) fn family(&self) -> Option<Family> {
        match self.width() {
            0 => None,
            4 => Some(Family::V4),
            _ => Some(Family::V6),
        }
    }

    /// The numbers that a Service port has here.
    pub(crate) fn numbers(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let is_it = move |port: &&SlicePort| &*port.name == name && port.protocol == protocol;
        self.ports.iter().filter(is_it).map(|port| port.port)
    }

    /// The number of ports.
    pub(crate) fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The number of endpoints.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The endpoints, in the slice's order.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointRef<'_>> {
        // Mostly there is only the slice's own name.
        let more = self.names.split_once(SEPARATOR).map(|(_, more)| more);
        let mut pods = more.map(|more| more.split(SEPARATOR));
        let mut hostnames = more.map(|more| more.split(SEPARATOR).skip(self.places.len()));
        let addresses = self.addresses.chunks_exact(self.width().max(1));
        self.places
            .iter()
            .zip(addresses)
            .map(move |(place, octets)| {
                let pod = pods.as_mut().and_then(Iterator::next);
                let pod = pod.filter(|name| !name.is_empty());
                let hostname = hostnames.as_mut().and_then(Iterator::next);
                let hostname = hostname.filter(|name| !name.is_empty());
                place.view(address(octets), pod, hostname)
            })
    }

    /// The addresses of the endpoints, in the slice's order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let octets = self.addresses.chunks_exact(self.width().max(1));
        octets.map(address)
    }

    /// The bytes of an address; 0 without endpoints.
    fn width(&self) -> usize {
        self.addresses.len() / self.places.len().max(1)
    }

    /// The octets of each endpoint's address, with its states.
    fn states(&self) -> impl Iterator<Item = (&[u8], [bool; 2])> {
        let addresses = self.addresses.chunks_exact(self.width().max(1));
        addresses.zip(self.places.iter().map(|place| place.states()))
    }

    /// Returns `true` if the next version lacks an endpoint of this one that was ready or usable,
    /// or lacks its readiness.
    pub(crate) fn loses(&self, after: Option<&Self>) -> bool {
        let mut left = after.map_or(0, Self::len);
        let mut after = after.into_iter().flat_map(Self::states);
        // Mostly both have one order, and few differ: those of the next version that were passed over.
        let mut others = QuickMap::<&[u8], [bool; 2]>::default();
        self.states().any(|(address, before)| {
            let mut found = others.get(address).copied();
            while found.is_none()
                && let Some((next, states)) = after.next()
            {
                if next == address {
                    found = Some(states);
                } else {
                    others.reserve(left);
                    others.insert(next, states);
                }
                left -= 1;
            }
            let found = found.unwrap_or_default();
            before.into_iter().zip(found).any(|(was, is)| was && !is)
        })
    }
}

impl Place {
    /// Returns `true` if it is that of an endpoint. Hints are not compared: few have some.
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        let no_hints = self.hints.is_none() && endpoint.zone_hints.is_none();
        no_hints
            && endpoint.node_hints.is_none()
            && self.node == endpoint.node
            && (self.ready, self.serving, self.terminating)
                == (endpoint.ready, endpoint.serving, endpoint.terminating)
    }

    /// Readiness and usability of an endpoint.
    fn states(&self) -> [bool; 2] {
        let is_usable = self.ready || (self.serving && self.terminating);
        [self.ready, is_usable]
    }

    fn view<'a>(
        &'a self,
        address: IpAddr,
        pod: Option<&'a str>,
        hostname: Option<&'a str>,
    ) -> EndpointRef<'a> {
        let hints = self.hints.as_deref();
        EndpointRef {
            address,
            ready: self.ready,
            serving: self.serving,
            terminating: self.terminating,
            node: self.node.as_ref(),
            pod,
            hostname,
            zone_hints: hints.and_then(|hints| hints.zones.as_deref()),
            node_hints: hints.and_then(|hints| hints.nodes.as_deref()),
        }
    }
}

fn octets(endpoints: &[Endpoint]) -> Box<[u8]> {
    let width = match endpoints.first().map(|endpoint| endpoint.address) {
        Some(IpAddr::V4(_)) => 4,
        _ => 16,
    };
    let mut all = Vec::with_capacity(width * endpoints.len());
    for endpoint in endpoints {
        match endpoint.address {
            IpAddr::V4(v4) => all.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => all.extend_from_slice(&v6.octets()),
        }
    }
    all.into_boxed_slice()
}

fn address(octets: &[u8]) -> IpAddr {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return v4.into();
    }
    // Their width is one of these two.
    <[u8; 16]>::try_from(octets).unwrap_or_default().into()
}

fn names(name: &str, endpoints: &[Endpoint]) -> Box<str> {
    let mut all = cut(name).to_owned();
    let has_hostnames = endpoints.iter().any(|of| of.hostname.is_some());
    let has_pods = has_hostnames || endpoints.iter().any(|of| of.pod.is_some());
    let pods = endpoints.iter().filter(|_| has_pods).map(|of| &of.pod);
    let hostnames = endpoints.iter().filter(|_| has_hostnames);
    for name in pods.chain(hostnames.map(|of| &of.hostname)) {
        all.push(SEPARATOR);
        all.push_str(cut(name.as_deref().unwrap_or_default()));
    }
    all.into_boxed_str()
}

// SPDX-License-Identifier: Apache-2.0

//! The machines on which rows are run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use serde_json::Value;

use super::expect::Seen;
use super::objects::{Target, node_objects};
use super::row::{Row, Source};
use super::situation::Place;
use crate::cluster::EchoPod;
use crate::rig::{Family, Host, Pod, Protocol, Rig, has_sctp};

/// Address ranges that outside clients reach by the node here.
const VIRTUAL: [(&str, Family); 6] = [
    ("10.96.0.0/16", Family::V4),
    ("198.51.100.0/24", Family::V4),
    ("203.0.113.0/24", Family::V4),
    ("fd00:10:96::/112", Family::V6),
    ("2001:db8:100::/112", Family::V6),
    ("2001:db8:113::/112", Family::V6),
];

/// Two nodes with a pod each that may be an endpoint and one that may not, and an outside client.
#[derive(Debug)]
pub struct Stage {
    nodes: [Host; 2],
    gateways: [[IpAddr; 2]; 2],
    endpoints: [EchoPod; 2],
    visitors: [Pod; 2],
    client: Host,
    command: Option<Host>,
}

impl Stage {
    /// Adds pods, routes and servers to a rig of two nodes.
    pub fn new(rig: &Rig) -> Result<Self> {
        let protocols: &[Protocol] = if has_sctp() {
            &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        } else {
            &Protocol::ALL
        };
        let node = |place: Place| rig.node(place.number());
        let endpoint = |place| EchoPod::serving(node(place), &place.to_string(), protocols);
        let visitor = |place| node(place).add_pod(&format!("visitor {place}"));
        let stage = Self {
            nodes: Place::ALL.map(|place| Host::clone(node(place))),
            gateways: Place::ALL.map(|place| {
                let (v4, v6) = node(place).gateway();
                [v4.into(), v6.into()]
            }),
            endpoints: [endpoint(Place::Here)?, endpoint(Place::There)?],
            visitors: [visitor(Place::Here)?, visitor(Place::There)?],
            client: rig.client().clone(),
            command: None,
        };
        stage.prepare(rig)?;
        Ok(stage)
    }

    /// Requests of the node here come from a command that an agent serves by sockets. Its node ports are those of
    /// localhost.
    #[must_use]
    pub fn with_command(self, command: Host) -> Self {
        Self {
            command: Some(command),
            ..self
        }
    }

    fn prepare(&self, rig: &Rig) -> Result<()> {
        let here = self.node(Place::Here);
        for (range, family) in VIRTUAL {
            self.client.add_route(range, here.address(family))?;
        }
        for node in &self.nodes {
            // Rules that rewrite or refuse a packet see only those that have a route. The machine
            // at the end of this one forwards nothing.
            if let Some(router) = rig.clients().last() {
                for family in Family::ALL {
                    node.add_route("default", router.address(family))?;
                }
            }
        }
        Ok(())
    }

    /// The objects that rows need.
    #[must_use]
    pub fn objects(&self, rig: &Rig, rows: &[Row]) -> Vec<Value> {
        let pods = [&self.endpoints[0].pod, &self.endpoints[1].pod];
        let protocols = rows.iter().map(|row| row.protocol).collect();
        let needed = |target: &Target| rows.iter().any(|row| Target::of(row) == *target);
        let mut objects = node_objects(rig);
        for target in Target::all().filter(needed) {
            objects.push(target.service(&protocols));
            objects.extend(target.slices(&protocols, pods));
        }
        objects
    }

    /// A node.
    #[must_use]
    pub fn node(&self, place: Place) -> &Host {
        &self.nodes[place.number()]
    }

    /// The client of a row.
    #[must_use]
    pub fn asker(&self, source: Source) -> &Host {
        match source {
            Source::Pod => &self.visitors[0],
            Source::PodThere => &self.visitors[1],
            Source::Endpoint => &self.endpoints[0].pod,
            Source::Node => self.command.as_ref().unwrap_or(&self.nodes[0]),
            Source::NodeThere => &self.nodes[1],
            Source::Outside => &self.client,
        }
    }

    /// The address at which a client asks for node ports.
    pub(super) fn node_port_address(&self, source: Source, family: Family) -> IpAddr {
        match (source, &self.command, family) {
            (Source::Node, Some(_), Family::V4) => Ipv4Addr::LOCALHOST.into(),
            (Source::Node, Some(_), Family::V6) => Ipv6Addr::LOCALHOST.into(),
            _ => self.node(Place::Here).address(family),
        }
    }

    /// The endpoint that has a name.
    pub(super) fn place_of(&self, name: &str) -> Option<Place> {
        let is_it = |place: &Place| self.endpoints[place.number()].pod.name() == name;
        Place::ALL.into_iter().find(is_it)
    }

    /// The meaning of a source address, given the client.
    pub(super) fn seen(&self, asker: Source, address: IpAddr) -> Seen {
        for place in Place::ALL {
            let node = self.node(place);
            if Family::ALL.iter().any(|f| node.address(*f) == address) {
                return Seen::Node(place);
            }
            if self.gateways[place.number()].contains(&address) {
                return Seen::Gateway(place);
            }
        }
        let asker = self.asker(asker);
        if Family::ALL.iter().any(|f| asker.address(*f) == address) {
            return Seen::Asker;
        }
        Seen::Other(address)
    }
}

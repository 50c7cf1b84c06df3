// SPDX-License-Identifier: Apache-2.0

//! A straightforward schema: strings, and a row for each endpoint with all fields of its slice.

use prost::Message;

use crate::world::{World, node_name, record_key, zone};

/// The number of Services in a message: about as many bytes as a frame of the protocol.
const SERVICES_PER_MESSAGE: usize = 100;

/// A message of Services.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rows {
    #[prost(message, repeated, tag = "1")]
    pub(crate) services: Vec<ServiceRow>,
}

/// A Service with its endpoints.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServiceRow {
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) cluster_ips: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) port_name: String,
    #[prost(string, tag = "5")]
    pub(crate) protocol: String,
    #[prost(uint32, tag = "6")]
    pub(crate) port: u32,
    #[prost(message, repeated, tag = "7")]
    pub(crate) endpoints: Vec<EndpointRow>,
}

/// An endpoint, with the fields of one in an EndpointSlice.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EndpointRow {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
    #[prost(uint32, tag = "2")]
    pub(crate) port: u32,
    #[prost(string, tag = "3")]
    pub(crate) node: String,
    #[prost(string, tag = "4")]
    pub(crate) zone: String,
    #[prost(bool, tag = "5")]
    pub(crate) ready: bool,
    #[prost(bool, tag = "6")]
    pub(crate) serving: bool,
    #[prost(bool, tag = "7")]
    pub(crate) terminating: bool,
    #[prost(string, tag = "8")]
    pub(crate) pod: String,
}

/// Encodes all Services as the messages of a snapshot.
pub(super) fn snapshot(world: &World) -> Vec<Rows> {
    let services: Vec<_> = (0..world.size().services)
        .map(|service| row(world, service))
        .collect();
    let messages = services.chunks(SERVICES_PER_MESSAGE);
    messages
        .map(|services| Rows {
            services: services.to_vec(),
        })
        .collect()
}

fn row(world: &World, service: u32) -> ServiceRow {
    let (key, record) = (record_key(service), world.record(service));
    let vips = record.frontends.iter().filter_map(|f| match f.address {
        portolan_model::FrontendAddress::Vip(ip) => Some(ip.to_string()),
        portolan_model::FrontendAddress::NodeAddresses(_)
        | portolan_model::FrontendAddress::Mark { .. } => None,
    });
    let endpoints = world.endpoints(service).map(|endpoint| EndpointRow {
        ip: endpoint.address().ip().to_string(),
        port: endpoint.address().port().into(),
        node: node_name(endpoint.node),
        zone: zone(endpoint.node).to_owned(),
        ready: true,
        serving: true,
        terminating: false,
        pod: format!("{}-{:05x}", key.service, endpoint.node),
    });
    ServiceRow {
        namespace: key.namespace.to_string(),
        name: key.service.to_string(),
        cluster_ips: vips.collect(),
        port_name: key.port.to_string(),
        protocol: key.protocol.to_string(),
        port: 80,
        endpoints: endpoints.collect(),
    }
}

// SPDX-License-Identifier: Apache-2.0

//! A cluster of a given number of Services, as the API server lists it. A tenth are headless with
//! hostnames, a hundredth are ExternalName, and the others have a cluster IP of each family. Each
//! has four endpoints.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use portolan_catalog::Kind;
use portolan_dns::NamesChange;
use portolan_source::objects::{Names, names};
use serde_json::{Value, json};

const NAMESPACES: u32 = 100;
const ENDPOINTS: u32 = 4;

fn namespace(number: u32) -> String {
    format!("ns{}", number % NAMESPACES)
}

fn is_headless(number: u32) -> bool {
    number % 10 == 3
}

fn is_external(number: u32) -> bool {
    number % 100 == 7
}

fn metadata(number: u32, name: &str) -> Value {
    json!({"name": name, "namespace": namespace(number), "uid": name, "resourceVersion": "7"})
}

fn cluster_ips(number: u32) -> [String; 2] {
    let v4 = Ipv4Addr::from_bits(0x0a60_0000 + 256 + number);
    let v6 = Ipv6Addr::from_bits((0xfd00_0010_0096 << 80) + u128::from(number));
    [v4.to_string(), v6.to_string()]
}

fn service(number: u32) -> Value {
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let spec = if is_external(number) {
        json!({"type": "ExternalName", "externalName": "svc1.ns1.svc.cluster.local"})
    } else if is_headless(number) {
        json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports})
    } else {
        let ips = cluster_ips(number);
        json!({"clusterIP": ips[0], "clusterIPs": ips, "ports": ports})
    };
    json!({"metadata": metadata(number, &format!("svc{number}")), "spec": spec})
}

/// The slice of a Service. `moved` shifts the address of its first endpoint.
pub(crate) fn slice(number: u32, moved: u32) -> Value {
    let endpoint = |index: u32| {
        let shift = if index == 0 { moved } else { 0 };
        let address = Ipv4Addr::from_bits(0x0b00_0000 + number * 16 + index + shift);
        let mut endpoint = json!({"addresses": [address], "conditions": {"ready": true}});
        if is_headless(number) {
            endpoint["hostname"] = format!("pod-{index}").into();
        }
        endpoint
    };
    let mut metadata = metadata(number, &format!("svc{number}-a"));
    metadata["labels"] = json!({"kubernetes.io/service-name": format!("svc{number}")});
    json!({"metadata": metadata, "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>()})
}

/// The objects that the API server lists at a path.
pub(crate) fn items(services: u32, path: &str) -> Vec<Value> {
    if path.contains("/namespaces") {
        let name = |number| json!({"metadata": {"name": namespace(number), "uid": "u"}});
        (0..NAMESPACES).map(name).collect()
    } else if path.contains("/endpointslices") {
        let own = (0..services).filter(|number| !is_external(*number));
        own.map(|number| slice(number, 0)).collect()
    } else if path.contains("/services") {
        (0..services).map(service).collect()
    } else {
        Vec::new()
    }
}

/// The same objects as changes of a zone.
pub(crate) fn changes(services: u32) -> Result<Vec<NamesChange>> {
    let kinds = [
        ("/namespaces", Kind::Namespace),
        ("/services", Kind::Service),
        ("/endpointslices", Kind::EndpointSlice),
    ];
    let mut changes = Vec::new();
    for (path, kind) in kinds {
        for object in items(services, path) {
            changes.push(change(kind, &object)?);
        }
    }
    changes.push(NamesChange::Synced);
    Ok(changes)
}

/// Converts an object to a change.
pub(crate) fn change(kind: Kind, object: &Value) -> Result<NamesChange> {
    match names(kind, object) {
        Names::Put { change, .. } => Some(*change),
        Names::None | Names::Refused => None,
    }
    .with_context(|| format!("{object} has no names"))
}

/// Typical queries of clients. Of ten, four ask for addresses of cluster IPs, two for headless
/// ones, one is an SRV, one a PTR, and two are names that a search path produces.
pub(crate) fn queries(services: u32) -> Result<Vec<Vec<u8>>> {
    (0..10_000_u32)
        .map(|number| query(number, services))
        .collect()
}

fn query(number: u32, services: u32) -> Result<Vec<u8>> {
    // Far apart, so that the processor's caches do not help.
    let service = number.wrapping_mul(7919) % services;
    let ns = namespace(service);
    let base = format!("svc{service}.{ns}.svc.cluster.local.");
    let headless = service - service % 10 + 3;
    let headless = format!("svc{headless}.{}.svc.cluster.local.", namespace(headless));
    let (name, kind) = match number % 10 {
        0..=2 => (base, RecordType::A),
        3 => (base, RecordType::AAAA),
        4 => (headless, RecordType::A),
        5 => (format!("pod-1.{headless}"), RecordType::AAAA),
        6 => (format!("_http._tcp.{base}"), RecordType::SRV),
        7 => {
            let [v4, _] = cluster_ips(service);
            let mut octets: Vec<_> = v4.split('.').collect();
            octets.reverse();
            (
                format!("{}.in-addr.arpa.", octets.join(".")),
                RecordType::PTR,
            )
        }
        8 => (
            format!("svc{service}.{ns}.{ns}.svc.cluster.local."),
            RecordType::A,
        ),
        _ => (
            format!("www.example.org.{ns}.svc.cluster.local."),
            RecordType::AAAA,
        ),
    };
    let mut message = Message::new(1, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name)?, kind));
    Ok(message.to_vec()?)
}

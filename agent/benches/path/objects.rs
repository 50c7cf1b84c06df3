// SPDX-License-Identifier: Apache-2.0

//! The Services, as a kube-proxy and the agent alone read them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use portolan_e2e::cluster::Cluster;
use portolan_e2e::rig::{Node, Pod};
use portolan_e2e::static_api::StaticObjects;
use serde_json::{Value, json};

use crate::flows::PORT;

/// A number of Services with the same two pods. The one in the middle is asked, by TCP and UDP: where a program looks
/// through all Services, that is the mean.
pub(crate) fn objects(services: usize, node: &Node, pods: &[Pod]) -> StaticObjects {
    let pods: Vec<Ipv4Addr> = pods.iter().map(Pod::v4).collect();
    let (services, slices) = (0..services)
        .map(|number| one(number, number == asked(services), &pods))
        .unzip();
    StaticObjects {
        services,
        slices,
        node: of_node(node),
    }
}

/// The address of the Service that is asked.
pub(crate) fn target(services: usize) -> SocketAddr {
    SocketAddrV4::new(vip(asked(services)), PORT).into()
}

const fn asked(services: usize) -> usize {
    services / 2
}

fn vip(number: usize) -> Ipv4Addr {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits().saturating_add(number))
}

fn one(number: usize, both: bool, pods: &[Ipv4Addr]) -> (Value, Value) {
    let (vip, name) = (vip(number), format!("service-{number:05}"));
    let protocols = if both { &["TCP", "UDP"][..] } else { &["TCP"] };
    let ports = |more: Value| -> Vec<Value> {
        let port = |protocol: &&str| {
            let mut port =
                json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": PORT });
            if let (Some(port), Some(more)) = (port.as_object_mut(), more.as_object()) {
                port.extend(more.clone());
            }
            port
        };
        protocols.iter().map(port).collect()
    };
    let endpoint = |address| json!({ "addresses": [address], "conditions": { "ready": true } });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "bench", "uid": name, "resourceVersion": "1" },
        "spec": { "clusterIP": vip, "clusterIPs": [vip], "ipFamilies": ["IPv4"], "type": "ClusterIP",
            "ports": ports(json!({ "targetPort": PORT })) },
    });
    let slice_name = format!("{name}-1");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": slice_name, "namespace": "bench", "uid": slice_name, "resourceVersion": "1",
            "labels": { "kubernetes.io/service-name": name } },
        "addressType": "IPv4",
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": ports(json!({})),
    });
    (service, slice)
}

fn of_node(node: &Node) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": Cluster::node_name(0), "uid": "n", "resourceVersion": "1" },
        "spec": { "podCIDR": node.pod_range_v4(), "podCIDRs": [node.pod_range_v4()] },
        "status": { "addresses": [
            { "type": "InternalIP", "address": node.v4() },
            { "type": "InternalIP", "address": node.v6() },
        ] },
    })
}

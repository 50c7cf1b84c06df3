// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects for tests, as values to be written as JSON.

use serde_json::{Value, json};

use crate::cluster::EchoPod;
use crate::rig::Family;

/// A Service of both families with the port `http` (TCP 80) and `dns` (UDP 80); both lead to port
/// 8080 of its pods. `spec` is laid over it.
#[must_use]
pub fn service(name: &str, cluster_ips: [&str; 2], spec: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": ports(None),
        },
    });
    merge(&mut service["spec"], spec);
    service
}

/// The two ports of [`service`], with node ports if asked for.
#[must_use]
pub fn ports(node_port: Option<u16>) -> Value {
    let mut ports = json!([
        { "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 },
        { "name": "dns", "protocol": "UDP", "port": 80, "targetPort": 8080 },
    ]);
    if let Some(number) = node_port {
        for port in ports.as_array_mut().into_iter().flatten() {
            port["nodePort"] = number.into();
        }
    }
    ports
}

/// The EndpointSlice of one family for pods on nodes.
#[must_use]
pub fn slice(service: &str, family: Family, pods: &[(&EchoPod, usize)]) -> Value {
    let endpoints: Vec<_> = pods
        .iter()
        .map(|(pod, node)| pod.endpoint(family, *node))
        .collect();
    slice_of(service, family, &endpoints)
}

/// The EndpointSlices of both families.
#[must_use]
pub fn slices(service: &str, pods: &[(&EchoPod, usize)]) -> Vec<Value> {
    Family::ALL
        .into_iter()
        .map(|family| slice(service, family, pods))
        .collect()
}

/// An EndpointSlice with endpoints as given.
#[must_use]
pub fn slice_of(service: &str, family: Family, endpoints: &[Value]) -> Value {
    let (suffix, address_type) = match family {
        Family::V4 => ("v4", "IPv4"),
        Family::V6 => ("v6", "IPv6"),
    };
    let ports = json!([
        { "name": "http", "protocol": "TCP", "port": EchoPod::PORT },
        { "name": "dns", "protocol": "UDP", "port": EchoPod::PORT },
    ]);
    let spec = json!({ "addressType": address_type, "ports": ports, "endpoints": endpoints });
    slice_named(service, suffix, spec)
}

/// An EndpointSlice with the name of its service and a suffix; `spec` is laid over it.
#[must_use]
pub fn slice_named(service: &str, suffix: &str, spec: Value) -> Value {
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{suffix}"),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": service },
        },
    });
    merge(&mut slice, spec);
    slice
}

/// Lays one object over another, key by key.
pub fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

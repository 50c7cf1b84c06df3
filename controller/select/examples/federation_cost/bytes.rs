// SPDX-License-Identifier: Apache-2.0

//! Bytes between edges and the centre, and those of the plain way: EndpointSlices in the API server of each cluster.

use portolan_edge::{Limits, Outbox, Partition};
use portolan_proto::encoded::encode;
use serde_json::json;

use crate::world::{World, name_of};

/// No bounds.
const ALL: Limits = Limits {
    objects: usize::MAX,
    endpoints: usize::MAX,
    bytes: usize::MAX,
    staged_bytes: usize::MAX,
};

/// The objects of one cluster, as its edge keeps them.
pub(crate) fn outbox(world: World) -> Outbox {
    let mut outbox = Outbox::default();
    for change in world.objects(0) {
        outbox.apply(&change).expect("a small object");
    }
    outbox
}

/// The place at the centre for the objects of that cluster.
pub(crate) fn partition() -> Partition {
    Partition::new(name_of(0), ALL)
}

/// Sends the objects that the centre has not, and returns the bytes of the stream.
pub(crate) fn stream(outbox: &mut Outbox, centre: &mut Partition) -> usize {
    let hashes = centre.begin();
    let stream = outbox
        .begin(&hashes)
        .expect("hashes of the centre's buckets");
    let mut bytes = hashes.len();
    while let Some(transition) = outbox.take(stream) {
        let (parts, commit) = transition.into_parts(usize::MAX);
        for part in parts {
            bytes += encode(&part).len();
            centre.stage(part).expect("a part of an edge");
        }
        bytes += encode(&commit).len();
        centre.commit(&commit).expect("what the edge has");
    }
    outbox.end(stream);
    bytes
}

/// The bytes of an EndpointSlice of a Service, as it would be written into one other cluster after each change.
pub(crate) fn slice(world: World) -> usize {
    let endpoint = |number| {
        let addresses = [format!("20.0.0.{number}")];
        json!({"addresses": addresses, "conditions": {"ready": true}, "nodeName": "node-0"})
    };
    let endpoints: Vec<_> = (0..world.endpoints).map(endpoint).collect();
    let labels = json!({
        "endpointslice.kubernetes.io/managed-by": "portolan.dev",
        "multicluster.kubernetes.io/service-name": "service-0",
        "multicluster.kubernetes.io/source-cluster": "cluster-0",
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "service-0-x7k2p-cluster-0", "namespace": "shop", "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    slice.to_string().len()
}

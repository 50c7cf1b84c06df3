// SPDX-License-Identifier: Apache-2.0

//! Replays upstream's cases as data.

use std::sync::Arc;

use portolan_catalog::{Catalog, Endpoint, ObjectKey, Service};
use serde::Deserialize;

use super::*;
use crate::explain::explain_all;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    inputs: Inputs,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Inputs {
    node_name: String,
    node_labels: BTreeMap<String, String>,
    service: ServiceInputs,
    endpoints: Vec<EndpointInputs>,
}

#[derive(Deserialize)]
struct ServiceInputs {
    #[serde(rename = "internalPolicyLocal")]
    internal_local: bool,
    #[serde(rename = "externalPolicyLocal")]
    external_local: bool,
    #[serde(rename = "nodePort")]
    node_port: u16,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    #[serde(rename = "loadBalancerVIPs")]
    load_balancer_ips: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointInputs {
    endpoint: SocketAddr,
    ready: bool,
    serving: bool,
    terminating: bool,
    is_local: bool,
    zone_hints: Option<Vec<Arc<str>>>,
    node_hints: Option<Vec<Arc<str>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    cluster_endpoints: Option<BTreeSet<SocketAddr>>,
    local_endpoints: Option<BTreeSet<SocketAddr>>,
    all_endpoints: BTreeSet<SocketAddr>,
    has_any_endpoints: bool,
}

fn policy(local: bool) -> TrafficPolicy {
    if local {
        TrafficPolicy::Local
    } else {
        TrafficPolicy::Cluster
    }
}

/// "null" must be none; an empty list may be none too.
fn agrees(got: Option<&BTreeSet<SocketAddr>>, expected: Option<&BTreeSet<SocketAddr>>) -> bool {
    match expected {
        None => got.is_none(),
        Some(expected) => got.cloned().unwrap_or_default() == *expected,
    }
}

/// The endpoints that the explanation calls used.
fn explained(
    endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>,
    lists: Lists,
    node: NodeView<'_>,
) -> BTreeSet<SocketAddr> {
    let service = Service::new(ObjectKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: "svc".into(),
    });
    let rule = Rule::new(endpoints, lists, node);
    let all = explain_all(&Catalog::default(), &service, endpoints, rule);
    assert_eq!(all.len(), endpoints.len());
    let used = all.into_iter().filter(|e| e.used);
    used.map(|e| e.address).collect()
}

#[test]
fn upstream_cases() {
    let file: File =
        serde_json::from_str(include_str!("../../testdata/categorize_endpoints.json")).unwrap();
    assert!(file.cases.len() >= 14, "cases are missing");
    for case in file.cases {
        let Inputs {
            node_name,
            node_labels,
            service,
            endpoints,
        } = case.inputs;
        // The upstream cases say "local" by a flag and mostly leave the node nameless.
        let name = if node_name.is_empty() {
            "self".to_owned()
        } else {
            node_name
        };
        let endpoints: Vec<(SocketAddr, Endpoint)> = endpoints
            .into_iter()
            .map(|e| {
                let endpoint = Endpoint {
                    ready: e.ready,
                    serving: e.serving,
                    terminating: e.terminating,
                    node: e.is_local.then(|| name.as_str().into()),
                    zone_hints: e.zone_hints,
                    node_hints: e.node_hints,
                    ..Endpoint::new(e.endpoint.ip())
                };
                (e.endpoint, endpoint)
            })
            .collect();
        let zone = node_labels
            .get("topology.kubernetes.io/zone")
            .map(String::as_str);
        let external = service.node_port != 0
            || !service.external_ips.is_empty()
            || !service.load_balancer_ips.is_empty();
        let views = endpoints
            .iter()
            .map(|(address, endpoint)| (*address, endpoint.view()))
            .collect();
        let node = NodeView {
            name: &name,
            zone: zone.filter(|zone| !zone.is_empty()),
        };
        let got = categorize(
            &views,
            policy(service.internal_local),
            policy(service.external_local),
            external,
            node,
        );
        let expected = case.expected;
        let good = agrees(got.cluster.as_ref(), expected.cluster_endpoints.as_ref())
            && agrees(got.local.as_ref(), expected.local_endpoints.as_ref())
            && got.all == expected.all_endpoints
            && got.has_any == expected.has_any_endpoints;
        assert!(good, "{}: got {got:?}", case.name);
        let lists = [
            (Lists::Cluster, got.cluster, expected.cluster_endpoints),
            (Lists::Local, got.local, expected.local_endpoints),
        ];
        for (lists, got, expected) in lists {
            // Upstream has no list that no frontend uses.
            if got.is_some() {
                let used = explained(&views, lists, node);
                assert_eq!(used, expected.unwrap_or_default(), "{}", case.name);
            }
        }
    }
}

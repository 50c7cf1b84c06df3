// SPDX-License-Identifier: Apache-2.0

mod cases;
mod properties;
mod vectors;
mod wrr;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::*;

/// Everything of a record but the clusters.
#[derive(Debug, Clone)]
struct Rules {
    tiers: Vec<Tier>,
    min_healthy: Threshold,
    spill_over: SpillOver,
    panic_threshold: u8,
    max_endpoints: u32,
    scheduling: Scheduling<'static>,
}

impl Rules {
    fn new(tiers: Vec<Tier>) -> Self {
        Self {
            tiers,
            min_healthy: Threshold::Number(1),
            spill_over: SpillOver::AllAtOnce,
            panic_threshold: 0,
            max_endpoints: 4000,
            scheduling: Scheduling::Default,
        }
    }

    fn percent(mut self, percent: u8) -> Self {
        self.min_healthy = Threshold::Percent(percent);
        self.spill_over = SpillOver::Proportional;
        self
    }

    fn number(mut self, number: u32) -> Self {
        self.min_healthy = Threshold::Number(number);
        self.spill_over = SpillOver::Proportional;
        self
    }

    fn all_at_once(mut self) -> Self {
        self.spill_over = SpillOver::AllAtOnce;
        self
    }

    fn panic(mut self, percent: u8) -> Self {
        self.panic_threshold = percent;
        self
    }

    fn hashed(mut self) -> Self {
        self.scheduling = Scheduling::Affinity;
        self
    }

    fn at_most(mut self, endpoints: u32) -> Self {
        self.max_endpoints = endpoints;
        self
    }

    fn shares(&self, clusters: &BTreeMap<Arc<str>, Cluster>) -> Shares {
        shares(&self.input(clusters))
    }

    fn input<'a>(&'a self, clusters: &'a BTreeMap<Arc<str>, Cluster>) -> Input<'a> {
        Input {
            importing: "local",
            record: b"shop/web@clusterset:http/TCP",
            tiers: &self.tiers,
            clusters,
            min_healthy: self.min_healthy,
            spill_over: self.spill_over,
            panic_threshold: self.panic_threshold,
            max_endpoints: self.max_endpoints,
            scheduling: self.scheduling,
        }
    }
}

fn alike(ids: &[&str]) -> Tier {
    Tier::Alike(ids.iter().map(|id| Arc::from(*id)).collect())
}

fn weighted(weights: &[(&str, u16)]) -> Tier {
    let weights = weights.iter();
    Tier::Weighted(
        weights
            .map(|(id, weight)| (Arc::from(*id), *weight))
            .collect(),
    )
}

/// A cluster with this number of usable endpoints, of as many that are not terminating.
fn pods(ready: u32, expected: u32) -> Cluster {
    owned(&vec![1; ready as usize], expected)
}

/// A cluster with usable endpoints of these own weights.
fn owned(weights: &[u32], expected: u32) -> Cluster {
    let endpoints = (1..).zip(weights).map(|(number, weight)| Endpoint {
        address: address(0, number),
        weight: *weight,
        usable: true,
    });
    Cluster {
        endpoints: endpoints.collect(),
        ready: u32::try_from(weights.len()).unwrap(),
        expected,
        step: 20,
        drained: false,
        gateway: false,
    }
}

fn address(cluster: u8, number: u32) -> SocketAddr {
    let [_, _, high, low] = number.to_be_bytes();
    SocketAddr::from(([10, cluster, high, low], 80))
}

/// Clusters A, B and so on, each with a network of its own.
fn clusters(
    clusters: impl IntoIterator<Item = (&'static str, Cluster)>,
) -> BTreeMap<Arc<str>, Cluster> {
    let numbered = (0..).zip(clusters);
    numbered
        .map(|(number, (id, mut cluster))| {
            for endpoint in &mut cluster.endpoints {
                let SocketAddr::V4(v4) = endpoint.address else {
                    continue;
                };
                let [_, _, high, low] = v4.ip().octets();
                endpoint.address = SocketAddr::from(([10, number, high, low], 80));
            }
            (Arc::from(id), cluster)
        })
        .collect()
}

// SPDX-License-Identifier: Apache-2.0

//! From nodes with their load balancers to load balancers with their nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Context as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One node's report, as a controller tells it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Node {
    node: String,
    connected: bool,
    connected_at_ms: u64,
    balancers: Vec<Reported>,
}

impl Node {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.node
    }
}

/// A load balancer on one node.
#[derive(Debug, Clone, Deserialize)]
struct Reported {
    name: String,
    frontend: String,
    protocol: String,
    quorum: Option<bool>,
    sorry: bool,
    up: u32,
    total: u32,
    backends: Vec<ReportedBackend>,
}

#[derive(Debug, Clone, Deserialize)]
struct ReportedBackend {
    address: SocketAddr,
    state: String,
    administrative: String,
    weight: u32,
    since: u64,
    reason: String,
}

/// Selection of load balancers and nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// `NAMESPACE/NAME`; `None` for all.
    pub(super) name: Option<&'a str>,
    /// Empty for all.
    pub(super) nodes: &'a [String],
}

/// One frontend of a load balancer, as all nodes see it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Balancer {
    /// `NAMESPACE/NAME` of the object.
    pub(super) load_balancer: String,
    /// Name of the frontend; empty for the only one.
    pub(super) frontend: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub(super) protocol: String,
    /// Whether some connected nodes have quorum and others lack it, or nodes disagree about a backend.
    pub(super) disagree: bool,
    /// The nodes that have it, in the order of their names.
    pub(super) nodes: Vec<OnNode>,
    /// The backends, by address.
    pub(super) backends: Vec<Backend>,
}

/// A load balancer on one node.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OnNode {
    /// The node.
    pub(super) node: String,
    /// Whether its agent is connected. If not, this is its last report.
    pub(super) connected: bool,
    /// Whether enough weight is healthy; `None` while it is unknown.
    pub(super) quorum: Option<bool>,
    /// Whether the sorry server serves.
    pub(super) sorry: bool,
    /// Number of backends that are up.
    pub(super) up: u32,
    /// Number of backends.
    pub(super) total: u32,
}

/// One backend, as all nodes see it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Backend {
    /// `ADDRESS:PORT`.
    pub(super) address: SocketAddr,
    /// Whether it is up on some connected nodes, and down on others.
    pub(super) disagree: bool,
    /// The nodes that have it, in the order of their names.
    pub(super) nodes: Vec<State>,
}

/// A backend on one node.
#[derive(Debug, Clone, Serialize)]
pub(super) struct State {
    /// The node.
    pub(super) node: String,
    /// Whether its agent is connected.
    pub(super) connected: bool,
    /// `probing`, `up`, `ramping` or `down`.
    pub(super) state: String,
    /// `enabled`, `drain` or `disabled`.
    pub(super) administrative: String,
    /// Weight that its health gives it.
    pub(super) weight: u32,
    /// When it came up or went down (RFC 3339, UTC).
    pub(super) since: String,
    /// Reason why it is down; empty if it is not.
    pub(super) reason: String,
}

impl State {
    /// Whether the node says that it is up, or down; `None` if it does not know, or is not connected.
    pub(super) fn is_up(&self) -> Option<bool> {
        match &*self.state {
            _ if !self.connected => None,
            "up" | "ramping" => Some(true),
            "down" => Some(false),
            _ => None,
        }
    }
}

impl Backend {
    /// Returns `true` if a connected node says that it is down.
    pub(super) fn is_down(&self) -> bool {
        self.nodes.iter().any(|node| node.is_up() == Some(false))
    }
}

impl OnNode {
    /// Whether it has quorum; `None` if the node does not know, or is not connected.
    pub(super) fn has_quorum(&self) -> Option<bool> {
        self.quorum.filter(|_| self.connected)
    }
}

impl Balancer {
    /// Returns `true` if a connected node says that a backend is down, or that quorum is lacking.
    pub(super) fn is_unhealthy(&self) -> bool {
        let lacks = self.nodes.iter().any(|n| n.has_quorum() == Some(false));
        // Backends of very many are not listed one by one.
        lacks || self.backends.iter().any(Backend::is_down)
    }
}

/// The nodes of all answers, each as the controller tells it that knows it best.
pub(super) fn nodes(answers: Vec<Value>) -> anyhow::Result<Vec<Node>> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for mut answer in answers {
        let told: Vec<Node> =
            serde_json::from_value(answer["nodes"].take()).context("the controller's answer")?;
        for node in told {
            let age = |node: &Node| (node.connected, node.connected_at_ms);
            let known = nodes.get(&node.node);
            if known.is_none_or(|known| age(known) < age(&node)) {
                nodes.insert(node.node.clone(), node);
            }
        }
    }
    Ok(nodes.into_values().collect())
}

/// The load balancers of the nodes.
pub(super) fn merged(nodes: Vec<Node>, wanted: Wanted<'_>) -> Vec<Balancer> {
    let mut all = BTreeMap::new();
    for node in nodes {
        if !wanted.nodes.is_empty() && !wanted.nodes.contains(&node.node) {
            continue;
        }
        let (name, connected) = (node.node, node.connected);
        for reported in node.balancers {
            if wanted.name.is_some_and(|wanted| wanted != reported.name) {
                continue;
            }
            let Reported {
                name: load_balancer,
                frontend,
                protocol,
                ..
            } = &reported;
            let key = (load_balancer.clone(), frontend.clone(), protocol.clone());
            let (on_nodes, backends): &mut (Vec<_>, BTreeMap<_, Vec<_>>) =
                all.entry(key).or_default();
            on_nodes.push(OnNode {
                node: name.clone(),
                connected,
                quorum: reported.quorum,
                sorry: reported.sorry,
                up: reported.up,
                total: reported.total,
            });
            for backend in reported.backends {
                let states = backends.entry(backend.address).or_default();
                states.push(state(backend, &name, connected));
            }
        }
    }
    let all = all.into_iter();
    all.map(|((load_balancer, frontend, protocol), (nodes, backends))| {
        let backends = backends.into_iter().map(backend);
        let backends: Vec<_> = backends.collect();
        let quorums = || nodes.iter().filter_map(OnNode::has_quorum);
        Balancer {
            load_balancer,
            frontend,
            protocol,
            disagree: differ(quorums()) || backends.iter().any(|each| each.disagree),
            nodes,
            backends,
        }
    })
    .collect()
}

fn backend((address, nodes): (SocketAddr, Vec<State>)) -> Backend {
    Backend {
        address,
        disagree: differ(nodes.iter().filter_map(State::is_up)),
        nodes,
    }
}

fn differ(mut all: impl Iterator<Item = bool>) -> bool {
    let first = all.next();
    all.any(|each| Some(each) != first)
}

fn state(backend: ReportedBackend, node: &str, connected: bool) -> State {
    let since = i64::try_from(backend.since).ok();
    let since = since.and_then(|seconds| Timestamp::from_second(seconds).ok());
    State {
        node: node.to_owned(),
        connected,
        state: backend.state,
        administrative: backend.administrative,
        weight: backend.weight,
        since: since.map(|time| time.to_string()).unwrap_or_default(),
        reason: backend.reason,
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The oracle: the expected result of each row.
//!
//! It describes kube-proxy's iptables and nftables modes. Where IPVS mode differs, it has a defect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use super::row::{Kind, Policy, Row, Source};
use super::situation::{Endpoint, Place, State};

/// The source address of a request as an endpoint sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seen {
    /// The client's own address, if the client is not a node.
    Asker,
    /// The address of a node.
    Node(Place),
    /// The gateway address of a node towards its own pods.
    Gateway(Place),
    /// Any other address; never expected.
    Other(IpAddr),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Exactly these endpoints answer; each sees one of these sources.
    Answers(BTreeMap<Place, BTreeSet<Seen>>),
    /// Neither an answer nor an error.
    Dropped,
    /// An immediate error.
    Refused,
}

/// The client as seen by the node whose virtual server decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// A pod of the cluster.
    Pod,
    /// The node itself.
    Itself,
    /// Any other machine.
    Foreign,
}

/// The expected result of a row.
#[must_use]
pub fn expect(row: &Row) -> Expectation {
    let endpoints = &row.situation.endpoints();
    let list = if is_held_to_the_node(row) {
        local_list(endpoints, row.entry())
    } else {
        cluster_list(endpoints, row.entry())
    };
    if !list.is_empty() {
        return Expectation::Answers(list.into_iter().map(|to| (to, sources(row, to))).collect());
    }
    let elsewhere = endpoints
        .iter()
        .any(|endpoint| endpoint.state != State::NotReady);
    if elsewhere && !is_of_other_node(row) {
        Expectation::Dropped
    } else {
        Expectation::Refused
    }
}

fn class(row: &Row) -> Class {
    match row.source {
        Source::Pod | Source::Endpoint | Source::PodThere => Class::Pod,
        Source::Node => Class::Itself,
        Source::NodeThere if row.entry() == Place::There => Class::Itself,
        Source::NodeThere | Source::Outside => Class::Foreign,
    }
}

/// Returns `true` if the row is limited to endpoints of the node. Policy Local limits all clients
/// at cluster IPs. At the other frontends it limits neither the node's pods nor the node itself,
/// for which these are short circuits.
fn is_held_to_the_node(row: &Row) -> bool {
    let is_foreign = class(row) == Class::Foreign || is_of_other_node(row);
    row.policy == Policy::Local && (row.kind == Kind::ClusterIp || is_foreign)
}

/// True if a pod asks another node than its own. Where kube-proxy knows pods by a network of the whole
/// cluster, it leads such a pod to all endpoints, and the connection hangs if one of another node
/// answers. Here it has the endpoints of the node, and is refused if there are none.
fn is_of_other_node(row: &Row) -> bool {
    class(row) == Class::Pod && row.source.node() != Some(row.entry())
}

/// Ready endpoints, by zone hints if all have one and some match this zone. If none is ready, the
/// serving ones, whatever their hints.
fn cluster_list(endpoints: &[Endpoint], node: Place) -> Vec<Place> {
    let ready = in_state(endpoints, State::Ready);
    let hinted: Vec<_> = ready.iter().filter(|e| e.hint == Some(node)).collect();
    if ready.iter().all(|e| e.hint.is_some()) && !hinted.is_empty() {
        return hinted.into_iter().map(|e| e.place).collect();
    }
    places_or_terminating(ready, endpoints)
}

/// Ready endpoints on the node, whatever their hints. If none is ready, the serving ones.
fn local_list(endpoints: &[Endpoint], node: Place) -> Vec<Place> {
    let here: Vec<_> = endpoints
        .iter()
        .filter(|endpoint| endpoint.place == node)
        .copied()
        .collect();
    places_or_terminating(in_state(&here, State::Ready), &here)
}

fn places_or_terminating(ready: Vec<Endpoint>, all: &[Endpoint]) -> Vec<Place> {
    let usable = if ready.is_empty() {
        in_state(all, State::Terminating)
    } else {
        ready
    };
    usable.into_iter().map(|endpoint| endpoint.place).collect()
}

fn in_state(endpoints: &[Endpoint], state: State) -> Vec<Endpoint> {
    let matching = endpoints.iter().filter(|endpoint| endpoint.state == state);
    matching.copied().collect()
}

/// The source addresses that the endpoint may see.
fn sources(row: &Row, endpoint: Place) -> BTreeSet<Seen> {
    let entry = row.entry();
    let masqueraded = if endpoint == entry {
        Seen::Gateway(entry)
    } else {
        Seen::Node(entry)
    };
    let itself = row.source == Source::Endpoint && endpoint == Place::Here;
    match class(row) {
        // A pod drops its own packet when it returns with its own address.
        Class::Pod if itself => [masqueraded].into(),
        Class::Pod if row.kind == Kind::ClusterIp || row.policy == Policy::Local => {
            [Seen::Asker].into()
        }
        Class::Foreign if row.kind != Kind::ClusterIp && row.policy == Policy::Local => {
            [own(row.source)].into()
        }
        // Both addresses are the node's own; the answer returns without masquerade too.
        Class::Itself if row.kind != Kind::ClusterIp && row.policy == Policy::Local => {
            [masqueraded, Seen::Node(entry)].into()
        }
        Class::Pod | Class::Itself | Class::Foreign => [masqueraded].into(),
    }
}

fn own(source: Source) -> Seen {
    match source {
        Source::Node => Seen::Node(Place::Here),
        Source::NodeThere => Seen::Node(Place::There),
        Source::Pod | Source::Endpoint | Source::PodThere | Source::Outside => Seen::Asker,
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asker => f.write_str("asker"),
            Self::Node(place) => write!(f, "node {place}"),
            Self::Gateway(place) => write!(f, "gateway {place}"),
            Self::Other(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = match self {
            Self::Dropped => return f.write_str("dropped"),
            Self::Refused => return f.write_str("refused"),
            Self::Answers(places) => places,
        };
        f.write_str("answered by ")?;
        for (number, (place, sources)) in places.iter().enumerate() {
            let sources: Vec<_> = sources.iter().map(ToString::to_string).collect();
            let separator = if number == 0 { "" } else { " and " };
            write!(f, "{separator}{place} (source {})", sources.join(" or "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

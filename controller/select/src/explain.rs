// SPDX-License-Identifier: Apache-2.0

//! Explanations of a node's forwarding: the rule behind the tables, in words.

mod import;
mod reason;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{Catalog, Claim, Claimant, EndpointRef, Reason, Service};
use portolan_model::{Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeKey, Protocol};
use serde::{Deserialize, Serialize};

use crate::federation::{Federation, exported_service, is_import};
use crate::project::{Projection, project, record_key};
use crate::rule::{Rule, Topology};
use crate::{NodeView, SelectConfig};
use reason::in_words;

/// A question for the destinations of connections to an address that arrive on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// The node.
    pub node: NodeKey,
    /// Whether an agent of this node is connected: then a Node object is not needed.
    pub has_agent: bool,
    /// Any virtual address, or any address of any Node for a node port.
    pub address: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
}

/// Where they go, and why nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The record, as `namespace/service[:port]/PROTOCOL`.
    pub record: String,
    /// The kind of frontend that the address is.
    pub kind: FrontendKind,
    /// The list that the frontend uses on every node.
    pub lists: Lists,
    /// The node.
    pub node: String,
    /// The node's zone.
    pub zone: Option<String>,
    /// All endpoints of the address's family, sorted by address.
    pub endpoints: Vec<Explained>,
    /// Further notes, each a sentence.
    pub notes: Vec<String>,
}

/// One endpoint, as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Address and port.
    pub address: SocketAddr,
    /// Share of new connections.
    pub weight: u32,
    /// The endpoint's node, if known.
    pub node: Option<String>,
    /// That node's zone.
    pub zone: Option<String>,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Whether it is a destination.
    pub used: bool,
    /// Reason why they may or may not, in words.
    pub reason: String,
}

/// The reason for a question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The Node does not exist.
    #[error("node {0}: there is no such Node")]
    UnknownNode(NodeKey),
    /// No Service has the address, with this protocol and port.
    #[error("{protocol} {address}: no Service has it{near}")]
    UnknownAddress {
        /// The protocol that was asked for.
        protocol: Protocol,
        /// The address and port that were asked for.
        address: SocketAddr,
        /// A hint at existing names; begins with a comma or a semicolon, or is empty.
        near: String,
    },
}

/// Answers from the catalog. Costs O(endpoints of the Service port).
pub(crate) fn explain(
    catalog: &Catalog,
    federation: &Federation,
    config: SelectConfig,
    inquiry: &Inquiry,
) -> Result<Explanation, NoAnswer> {
    let name = &inquiry.node;
    let info = catalog.node_info(name);
    if info.is_none() && !inquiry.has_agent {
        return Err(NoAnswer::UnknownNode(name.clone()));
    }
    let zone = info.as_ref().and_then(|info| info.zone.as_deref());
    let unknown = || unknown_address(catalog, inquiry);
    let holder = holder(catalog, inquiry).ok_or_else(unknown)?;
    if is_import(&holder.service) {
        let import = import::explain(catalog, federation, config, inquiry, &holder);
        return import.ok_or_else(unknown);
    }
    if exported_service(&holder.service).is_some() {
        let export = import::explain_gateway(catalog, federation, config, inquiry, &holder);
        return export.ok_or_else(unknown);
    }
    let service = catalog.service(&holder.service).ok_or_else(unknown)?;
    let projection = project(catalog, config, &service, holder.port);
    let frontend = frontend(&projection, &holder, inquiry).ok_or_else(unknown)?;

    let endpoints = catalog.endpoints(&service, &service.ports[holder.port]);
    let mut endpoints: BTreeMap<_, _> = endpoints.into_iter().collect();
    endpoints.retain(|address, _| Family::of(address.ip()) == frontend.family());
    let mut notes = Vec::new();
    for problem in &projection.problems {
        if problem.reason == Reason::TooMany {
            endpoints.values_mut().for_each(|e| e.zone_hints = None);
        }
        notes.push(problem.to_string());
    }
    let node = NodeView {
        name: &name.name,
        zone,
    };
    let rule = Rule::new(&endpoints, frontend.lists, node);
    let all = explain_all(catalog, &service, &endpoints, rule);
    notes.extend(notes_on(catalog, inquiry, frontend));
    notes.extend(ignored_hints(&endpoints, rule, frontend));
    notes.extend(nothing_used(&all, &projection, frontend));
    Ok(Explanation {
        record: record_key(&service, holder.port).to_string(),
        kind: frontend.kind,
        lists: frontend.lists,
        node: name.name.to_string(),
        zone: zone.map(str::to_owned),
        endpoints: all,
        notes,
    })
}

/// All endpoints, in order.
pub(crate) fn explain_all(
    catalog: &Catalog,
    service: &Service,
    endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>,
    rule: Rule<'_>,
) -> Vec<Explained> {
    let cluster = &service.key.cluster;
    let zone_of = |name: &Arc<str>| {
        let key = NodeKey {
            cluster: Arc::clone(cluster),
            name: Arc::clone(name),
        };
        Some(catalog.zone(&key)?.to_string())
    };
    let explained = endpoints.iter().map(|(address, endpoint)| {
        let verdict = rule.judge(endpoint);
        Explained {
            address: *address,
            weight: catalog.weight(&service.key, endpoint),
            node: endpoint.node.map(|name| (**name).to_owned()),
            zone: endpoint.node.and_then(zone_of),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            used: verdict.is_in(),
            reason: in_words(verdict, endpoint),
        }
    });
    explained.collect()
}

/// The Service port that has the address.
fn holder(catalog: &Catalog, inquiry: &Inquiry) -> Option<Claimant> {
    let claim = |address| Claim {
        cluster: Arc::clone(&inquiry.node.cluster),
        address,
        port: inquiry.address.port(),
        protocol: inquiry.protocol,
    };
    let ip = inquiry.address.ip();
    let of_vip = catalog.holder(&claim(Some(ip)));
    of_vip.or_else(|| {
        catalog.node_with_address(&inquiry.node.cluster, ip)?;
        catalog.holder(&claim(None))
    })
}

/// The way in that was asked for.
fn frontend<'a>(
    projection: &'a Projection,
    holder: &Claimant,
    inquiry: &Inquiry,
) -> Option<&'a Frontend> {
    let ip = inquiry.address.ip();
    let address = match holder.kind {
        FrontendKind::NodePort => FrontendAddress::NodeAddresses(Family::of(ip)),
        _ => FrontendAddress::Vip(ip),
    };
    let is_it = |f: &&Frontend| (f.address, f.port) == (address, inquiry.address.port());
    projection.record.as_ref()?.frontends.iter().find(is_it)
}

fn unknown_address(catalog: &Catalog, inquiry: &Inquiry) -> NoAnswer {
    let (cluster, ip) = (&inquiry.node.cluster, inquiry.address.ip());
    let claims = catalog.claims_on(cluster, ip).into_iter();
    let ports: Vec<_> = claims
        .map(|(port, protocol)| format!("{protocol} {port}"))
        .collect();
    let near = if !ports.is_empty() {
        format!("; {ip} has {}", ports.join(", "))
    } else if let Some(node) = catalog.node_with_address(cluster, ip) {
        format!(", nor such a node port; {ip} is an address of Node {node}")
    } else {
        format!(", nor any other port of {ip}")
    };
    NoAnswer::UnknownAddress {
        protocol: inquiry.protocol,
        address: inquiry.address,
        near,
    }
}

/// Notes on a frontend.
fn notes_on(catalog: &Catalog, inquiry: &Inquiry, frontend: &Frontend) -> Vec<String> {
    let mut notes = Vec::new();
    if frontend.has_short_circuit() {
        let note = "connections from the node itself and from its pods go to the whole cluster's \
                    endpoints";
        notes.push(note.to_owned());
    }
    if frontend.kind == FrontendKind::NodePort {
        let (cluster, name) = (&inquiry.node.cluster, &inquiry.node.name);
        let ip = inquiry.address.ip();
        let has_it = catalog.node_with_address(cluster, ip);
        if let Some(owner) = has_it.filter(|owner| *owner != name) {
            notes.push(format!(
                "{ip} is an address of Node {owner}; the answer is for {name}'s own addresses"
            ));
        }
    }
    if !frontend.source_ranges.is_empty() {
        let ranges: Vec<_> = frontend
            .source_ranges
            .iter()
            .map(|r| r.to_string())
            .collect();
        notes.push(format!("only sources in {} may connect", ranges.join(", ")));
    }
    notes
}

/// A note on topology hints that do not count.
fn ignored_hints(
    endpoints: &BTreeMap<SocketAddr, EndpointRef<'_>>,
    rule: Rule<'_>,
    frontend: &Frontend,
) -> Option<String> {
    let is_hinted = |e: &EndpointRef<'_>| e.zone_hints.is_some() || e.node_hints.is_some();
    let ignored = frontend.lists == Lists::Cluster
        && rule.topology() == Topology::All
        && endpoints.values().any(|e| e.ready && is_hinted(e));
    ignored.then(|| {
        "hints do not count here: some ready endpoint has none, or none names this node or its zone"
            .to_owned()
    })
}

/// A note on the fate of connections without a destination.
fn nothing_used(all: &[Explained], projection: &Projection, frontend: &Frontend) -> Option<String> {
    if all.iter().any(|explained| explained.used) {
        return None;
    }
    let record = projection.record.as_ref()?;
    Some(if record.available.contains(frontend.family()) {
        "nothing to forward to on this node, but on others: connections are dropped".to_owned()
    } else {
        "nothing to forward to on any node: connections are refused".to_owned()
    })
}

#[cfg(test)]
mod tests;

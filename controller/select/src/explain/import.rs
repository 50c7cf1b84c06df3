// SPDX-License-Identifier: Apache-2.0

//! Explanations of the addresses of imports.

use portolan_catalog::{Catalog, Claimant};
use portolan_model::{Family, Frontend, Lists, NodeOverlay, Record};

use super::{Explained, Explanation, Inquiry, frontend};
use crate::SelectConfig;
use crate::federation::{Extent, Federation};
use crate::project::OfFamily;

/// Where connections to an import go on a node: the endpoints of all clusters that expose the port.
pub(super) fn explain(
    catalog: &Catalog,
    federation: &Federation,
    config: SelectConfig,
    inquiry: &Inquiry,
    holder: &Claimant,
) -> Option<Explanation> {
    let projected = federation.project(catalog, config, &holder.service, Extent::All);
    let (projection, families) = projected.ports.into_iter().nth(holder.port)?;
    let frontend = frontend(&projection, holder, inquiry)?;
    let record = projection.record.as_ref()?;
    let mut families = families.iter();
    let (_, of_family) = families.find(|(family, _)| *family == frontend.family())?;
    let own = projection.lists.get(&inquiry.node);
    let mut endpoints = explained(of_family, frontend.lists, own);
    endpoints.sort_by_key(|endpoint| endpoint.address);
    let mut notes: Vec<String> = projection
        .problems
        .iter()
        .map(ToString::to_string)
        .collect();
    notes.push(String::from(
        "an import: `portolanctl explain-import` shows the shares of clusters",
    ));
    let of = (record, frontend);
    Some(explanation(catalog, inquiry, of, endpoints, notes))
}

/// Where connections to an export at the gateways of its cluster go: the endpoints of that cluster.
pub(super) fn explain_gateway(
    catalog: &Catalog,
    federation: &Federation,
    config: SelectConfig,
    inquiry: &Inquiry,
    holder: &Claimant,
) -> Option<Explanation> {
    let projected = federation.project_at_gateways(catalog, config, &holder.service);
    let projection = projected.into_iter().nth(holder.port)?;
    let frontend = frontend(&projection, holder, inquiry)?;
    let record = projection.record.as_ref()?;
    let destinations = record.destinations.iter();
    let of_family = destinations.filter(|one| Family::of(one.address.ip()) == frontend.family());
    let endpoints = of_family.map(|one| Explained {
        address: one.address,
        weight: one.weight,
        node: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        used: true,
        reason: String::from("an endpoint of the export"),
    });
    let ranges: Vec<_> = frontend
        .source_ranges
        .iter()
        .map(ToString::to_string)
        .collect();
    let note = format!(
        "an export at a gateway, for nodes of other clusters in {}",
        ranges.join(", ")
    );
    let (of, endpoints) = ((record, frontend), endpoints.collect());
    Some(explanation(catalog, inquiry, of, endpoints, vec![note]))
}

fn explanation(
    catalog: &Catalog,
    inquiry: &Inquiry,
    (record, frontend): (&Record, &Frontend),
    endpoints: Vec<Explained>,
    notes: Vec<String>,
) -> Explanation {
    let info = catalog.node_info(&inquiry.node);
    let zone = info.as_ref().and_then(|info| info.zone.as_deref());
    Explanation {
        record: record.key.to_string(),
        kind: frontend.kind,
        lists: frontend.lists,
        node: inquiry.node.name.to_string(),
        zone: zone.map(str::to_owned),
        endpoints,
        notes,
    }
}

fn explained(of_family: &OfFamily, lists: Lists, own: Option<&NodeOverlay>) -> Vec<Explained> {
    let local = own.map(|own| own.local.as_slice()).unwrap_or_default();
    let all = of_family.clusters.iter().flat_map(|(id, cluster)| {
        let share = of_family.shares.clusters.get(id);
        cluster.endpoints.iter().map(move |endpoint| {
            let weight = match lists {
                Lists::Cluster => share.and_then(|share| share.weight(endpoint.address)),
                Lists::Local => {
                    let mut local = local.iter();
                    let found = local.find(|one| one.address == endpoint.address);
                    found.map(|one| one.weight)
                }
            };
            let reason = match (weight, lists) {
                (Some(_), _) => format!("of cluster {id}"),
                (None, _) if !endpoint.usable => format!("of cluster {id}: not ready"),
                (None, Lists::Local) => {
                    format!("of cluster {id}: not on this node, and the traffic policy is Local")
                }
                (None, Lists::Cluster) if share.is_none() => {
                    format!("of cluster {id}: the cluster has no share")
                }
                (None, Lists::Cluster) => format!("of cluster {id}: its weight is 0"),
            };
            Explained {
                address: endpoint.address,
                weight: weight.unwrap_or(0),
                node: None,
                zone: None,
                ready: endpoint.usable,
                serving: endpoint.usable,
                terminating: false,
                used: weight.is_some(),
                reason,
            }
        })
    });
    all.collect()
}

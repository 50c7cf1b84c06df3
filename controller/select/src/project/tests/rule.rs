// SPDX-License-Identifier: Apache-2.0

//! One projection for all nodes against upstream's rule for one node.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_catalog::EndpointRef;
use portolan_model::{FrontendAddress, NodeInfo, NodeTable};
use proptest::prelude::*;

use super::*;
use crate::testing::{NODES, config, node, pod, service, slice};
use crate::{NodeView, categorize};

fn table_of(projection: &Projection, node: &str, zone: Option<&str>) -> NodeTable {
    let record = projection.record.clone().unwrap();
    let node = NodeKey {
        cluster: "".into(),
        name: node.into(),
    };
    let lists = projection.lists.get(&node).cloned();
    NodeTable {
        node: NodeInfo {
            zone: zone.map(Into::into),
            ..NodeInfo::default()
        },
        lists: lists
            .map(|lists| (record.key.clone(), Arc::new(lists)))
            .into_iter()
            .collect(),
        health: Default::default(),
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// One projection for all nodes agrees with upstream's rule for each node.
    #[test]
    fn the_projection_agrees_with_the_rule_for_each_node(
        service in service(),
        slices in prop::collection::vec(slice(), 0..4),
        others in prop::collection::vec(prop_oneof![
            node().prop_map(Object::Node),
            pod().prop_map(Object::Pod),
        ], 0..4),
        config in config(),
    ) {
        let slices = slices.into_iter().map(|mut slice| {
            slice.service = Arc::clone(&service.key.name);
            Object::EndpointSlice(slice)
        });
        let objects = slices.chain(others).chain([Object::Service(service.clone())]);
        let catalog = catalog(objects.collect());
        for index in 0..service.ports.len() {
            let projection = project(&catalog, config, &service, index);
            let Some(record) = projection.record.clone() else { continue };
            let port = Port { catalog: &catalog, service: &service, index };
            port.check_settings(&record)?;
            for (node, zone) in NODES.iter().flat_map(|n| {
                [None, Some("a"), Some("b"), Some("c")].map(|z| (*n, z))
            }) {
                let table = table_of(&projection, node, zone);
                for family in Family::ALL {
                    port.check_node(&table, &record, family, NodeView { name: node, zone })?;
                }
            }
        }
    }
}

/// One Service port, to compare its projection with the rule.
#[derive(Clone, Copy)]
struct Port<'a> {
    catalog: &'a Catalog,
    service: &'a Service,
    index: usize,
}

impl Port<'_> {
    fn endpoints(&self, family: Family) -> BTreeMap<SocketAddr, EndpointRef<'_>> {
        let endpoints = self
            .catalog
            .endpoints(self.service, &self.service.ports[self.index]);
        let of_family = endpoints.into_iter();
        let of_family = of_family.filter(|(address, _)| Family::of(address.ip()) == family);
        of_family.collect()
    }

    /// The settings that are equal on all nodes.
    fn check_settings(&self, record: &Record) -> Result<(), TestCaseError> {
        prop_assert_eq!(record.drain_seconds, self.service.drain_seconds);
        prop_assert_eq!(record.health_check_port, self.service.health_check_port);
        prop_assert_eq!(record.scheduling.flags, self.service.scheduling.flags);
        if let Some(named) = &self.service.scheduling.scheduler {
            prop_assert_eq!(record.scheduling.scheduler.as_ref(), Some(named));
        }
        for frontend in &record.frontends {
            let owned = match frontend.address {
                FrontendAddress::Vip(ip) => self.catalog.node_with_address("", ip).is_some(),
                FrontendAddress::NodeAddresses(_) | FrontendAddress::Mark { .. } => false,
            };
            prop_assert_eq!(frontend.bind, !owned, "{:?}", frontend);
        }
        Ok(())
    }

    /// The endpoints of one node in one family.
    fn check_node(
        &self,
        table: &NodeTable,
        record: &Record,
        family: Family,
        node: NodeView<'_>,
    ) -> Result<(), TestCaseError> {
        let endpoints = self.endpoints(family);
        let external = self
            .service
            .externally_accessible(&self.service.ports[self.index]);
        let rule = categorize(
            &endpoints,
            self.service.internal_policy,
            self.service.external_policy,
            external,
            node,
        );
        prop_assert_eq!(record.available.contains(family), rule.has_any);
        let got = |lists| {
            let list = table.list(record, family, lists);
            for destination in &list {
                let weight = self
                    .catalog
                    .weight(&self.service.key, &endpoints[&destination.address]);
                prop_assert_eq!(destination.weight, weight);
            }
            Ok(list.iter().map(|d| d.address).collect::<BTreeSet<_>>())
        };
        let of_family = || record.frontends.iter().filter(|f| f.family() == family);
        let wants = |wanted| of_family().any(|f| f.lists == wanted);
        let local = got(Lists::Local)?;
        if wants(Lists::Cluster) || of_family().any(Frontend::has_short_circuit) {
            prop_assert_eq!(
                got(Lists::Cluster)?,
                rule.cluster.unwrap_or_default(),
                "{:?}",
                node
            );
        }
        if wants(Lists::Local) {
            prop_assert_eq!(&local, &rule.local.unwrap_or_default(), "{:?}", node);
        }
        let own = endpoints
            .iter()
            .filter(|(_, e)| e.node.is_some_and(|name| **name == *node.name));
        let ready: BTreeSet<_> = own.filter(|(_, e)| e.ready).map(|(a, _)| *a).collect();
        let lists = table.lists.get(&record.key).cloned().unwrap_or_default();
        let terminating = lists.terminating.contains(family);
        prop_assert_eq!(terminating, !local.is_empty() && ready.is_empty());
        if self.service.health_check_port.is_some() && self.service.has_family(family) {
            let counted = if terminating { BTreeSet::new() } else { local };
            prop_assert_eq!(counted, ready, "what a load balancer is told of {:?}", node);
        }
        Ok(())
    }
}

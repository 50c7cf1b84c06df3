// SPDX-License-Identifier: Apache-2.0

//! Tables that follow each other.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::order::tests::advance_in_order;
use crate::renew_sources;

#[derive(Debug, Clone)]
struct Service {
    endpoints: u8,
    local: u8,
    is_held: bool,
    is_sticky: bool,
    ranges: u8,
}

fn service() -> impl Strategy<Value = Service> {
    let more = (any::<bool>(), any::<bool>(), 0u8..8);
    (0u8..40, 0u8..4, more).prop_map(|(endpoints, local, (is_held, is_sticky, ranges))| Service {
        endpoints,
        local,
        is_held,
        is_sticky,
        ranges,
    })
}

fn table_of(family: Family, services: &BTreeMap<u8, Service>) -> NodeTable {
    let vip = |bytes, kind, lists| vip(&address_in(family, bytes).to_string(), kind, lists);
    let mut all = NodeTable::default();
    for (number, service) in services {
        let name = number.to_string();
        let lists = if service.is_held {
            Lists::Local
        } else {
            Lists::Cluster
        };
        let mut balancer = vip([192, 0, 2, *number], FrontendKind::LoadBalancer, lists);
        balancer.masquerade = !service.is_held;
        let ranges = [([10, 0, 0, 0], 8, 1), ([172, 16, 0, 0], 12, 2)];
        let of_service = ranges.into_iter();
        let of_service = of_service.filter(|(_, _, bit)| service.ranges & bit != 0);
        balancer.source_ranges = of_service
            .map(|(bytes, prefix, _)| network_in(family, bytes, prefix))
            .collect();
        if service.ranges & 4 != 0 {
            balancer.source_ranges.extend(many_ranges(family));
        }
        let cluster_ip = vip(
            [10, 96, 0, *number],
            FrontendKind::ClusterIp,
            Lists::Cluster,
        );
        let mut record = record(&name, vec![cluster_ip, balancer], 0);
        record.destinations = destinations_in(family, service.endpoints.into());
        if service.endpoints > 0 {
            record.available = [family].into_iter().collect();
        }
        let timeout_seconds = 10 + u32::from(number % 2);
        record.affinity = service.is_sticky.then_some(Affinity { timeout_seconds });
        let own = NodeOverlay {
            local: destinations_in(family, service.local.min(service.endpoints).into()),
            own: destinations_in(family, service.local.into())
                .iter()
                .map(|d| d.address)
                .collect(),
            ..NodeOverlay::default()
        };
        all.lists.insert(record.key.clone(), Arc::new(own));
        all.records.insert(record.key.clone(), Arc::new(record));
    }
    all
}

proptest! {
    #[test]
    fn tables_follow_each_other(
        states in prop::collection::vec(prop::collection::btree_map(1u8..9, service(), 0..8), 1..5),
        family in prop::sample::select(Family::ALL.to_vec()),
    ) {
        let mut kernel: Option<TableContent> = None;
        for services in &states {
            let table = table_of(family, services);
            let mut wanted = desired_in(family, &table, kernel.as_ref());
            if let Some(kernel) = &kernel {
                renew_sources(&mut wanted, kernel);
            }
            check_references(&wanted);
            let requests = plan(&wanted, kernel.as_ref(), Surplus::Delete);
            advance_in_order(&mut kernel, requests);
            prop_assert_eq!(kernel.as_ref(), Some(&wanted));
            let again = desired_in(family, &table, kernel.as_ref());
            prop_assert_eq!(&again, &wanted, "slots are stable");
            prop_assert_eq!(plan(&again, kernel.as_ref(), Surplus::Delete), []);
            // Each list has exactly its destinations.
            let ways = Ways::new(&table, &NodeFacts::default());
            for (key, way) in &ways.ways {
                let List::To(list) = &way.inside else { continue };
                let prefix = way_key(key);
                let slots = wanted.sets[layout::ENDPOINTS].1.iter();
                let of_way = slots.filter(|(slot, _)| slot.starts_with(&prefix));
                let found: BTreeSet<_> = of_way.map(|(_, value)| value.clone().into_data()).collect();
                let expected: BTreeSet<_> = list.iter().map(|d| layout::destination(d.address)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

trait IntoData {
    fn into_data(self) -> Box<[u8]>;
}

impl IntoData for Value {
    fn into_data(self) -> Box<[u8]> {
        match self {
            Self::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }
}

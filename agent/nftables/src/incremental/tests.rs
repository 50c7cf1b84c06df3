// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{
    Affinity, Destination, Frontend, FrontendAddress, Lists, NodeOverlay, Protocol, Record,
};
use portolan_plan::Config;
use proptest::prelude::*;

use super::*;
use crate::tests::{address_in, many_ranges, network_in};
use crate::{Surplus, advance, desire, plan};

/// A Service of few addresses and ports, so that some have the same.
#[derive(Debug, Clone)]
struct Service {
    address: u8,
    port: u16,
    endpoints: Vec<(u8, u32)>,
    is_here: bool,
    is_held: bool,
    is_balancer: bool,
    is_sticky: bool,
    is_ranged: bool,
    is_left_out: bool,
}

fn service() -> impl Strategy<Value = Service> {
    let endpoints = prop::collection::vec((1u8..12, 0u32..3), 0..10);
    let flags = prop::array::uniform5(any::<bool>());
    let is_left_out = prop::bool::weighted(0.05);
    let place = (0u8..12, 80u16..83);
    (place, endpoints, flags, is_left_out).prop_map(
        |((address, port), endpoints, flags, is_left_out)| {
            let [is_here, is_held, is_balancer, is_sticky, is_ranged] = flags;
            Service {
                address,
                port,
                endpoints,
                is_here,
                is_held,
                is_balancer,
                is_sticky,
                is_ranged,
                is_left_out,
            }
        },
    )
}

fn key(number: u8) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: match number {
            0..7 => number.to_string().into(),
            _ => format!("{number}@clusterset").into(),
        },
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

/// Destinations of both families.
fn destinations(endpoints: &[(u8, u32)]) -> Vec<Destination> {
    let unique: BTreeMap<u8, u32> = endpoints.iter().copied().collect();
    let of_family = |family: Family| {
        unique.iter().map(move |(number, weight)| {
            let address = address_in(family, [10, 244, 0, *number]);
            Destination {
                address: SocketAddr::new(address, 8080),
                weight: *weight,
            }
        })
    };
    Family::ALL.into_iter().flat_map(of_family).collect()
}

fn frontend(family: Family, service: &Service) -> Frontend {
    let kind = match service.is_balancer {
        true => FrontendKind::LoadBalancer,
        false => FrontendKind::ClusterIp,
    };
    let address = FrontendAddress::Vip(address_in(family, [10, 96, 0, service.address]));
    let mut frontend = Frontend::new(kind, address, service.port);
    if service.is_held {
        frontend.lists = Lists::Local;
    }
    if service.is_ranged {
        frontend.source_ranges = match service.port {
            80 => many_ranges(family),
            _ => vec![network_in(family, [192, 0, 2, 0], 24)],
        };
    }
    frontend
}

fn change(table: &mut NodeTable, number: u8, service: Option<&Service>) {
    let key = key(number);
    let Some(service) = service else {
        table.records.remove(&key);
        table.lists.remove(&key);
        return;
    };
    let destinations = destinations(&service.endpoints);
    let overlay = NodeOverlay {
        own: match service.is_here {
            true => destinations.iter().map(|d| d.address).collect(),
            false => Vec::new(),
        },
        local: match service.is_here {
            true => destinations.clone(),
            false => Vec::new(),
        },
        ..NodeOverlay::default()
    };
    let record = Record {
        frontends: Family::ALL.map(|family| frontend(family, service)).into(),
        destinations,
        affinity: service.is_sticky.then_some(Affinity {
            timeout_seconds: 10 + u32::from(number % 2),
        }),
        balancing: service.is_left_out.then(Arc::default),
        ..Record::new(key.clone())
    };
    table.lists.insert(key.clone(), Arc::new(overlay));
    table.records.insert(key, Arc::new(record));
}

/// The node's ways and the table of one family, as an agent keeps them. Services have both families.
struct Node {
    family: Family,
    table: NodeTable,
    ways: Ways,
    kernel: Option<TableContent>,
    followed: usize,
}

impl Node {
    fn new(family: Family) -> Self {
        let table = NodeTable::default();
        let mut node = Self {
            family,
            ways: Ways::new(&table, &NodeFacts::default()),
            table,
            kernel: None,
            followed: 0,
        };
        node.anew();
        node
    }

    /// Compares the whole table.
    fn anew(&mut self) {
        let requests = self.whole();
        advance(&mut self.kernel, &requests);
    }

    fn whole(&self) -> Vec<Request> {
        let (node, there) = (&self.table.node, self.kernel.as_ref());
        let desired = desire(self.family, &self.ways, &Config::default(), node, there);
        plan(&desired.content, there, Surplus::Delete)
    }

    /// Follows a table, as far as that is possible.
    fn follow(&mut self, table: NodeTable) {
        let facts = NodeFacts::default();
        let touched = self.ways.update(&self.table, &table, &facts);
        self.table = table;
        let anew = Ways::new(&self.table, &facts);
        let Some(touched) = touched else {
            self.ways = anew;
            return self.anew();
        };
        // Refused records stand in the order of their keys.
        assert_eq!(self.ways, anew);
        let there = self.kernel.as_ref().unwrap();
        match plan_touched(self.family, &Config::default(), &self.ways, &touched, there) {
            Some(requests) => {
                self.followed += 1;
                assert_eq!(requests, self.whole());
                advance(&mut self.kernel, &requests);
            }
            None => self.anew(),
        }
        assert_eq!(self.whole(), []);
    }
}

proptest! {
    #[test]
    fn a_followed_table_is_one_from_scratch(
        changes in prop::collection::vec(
            prop::collection::vec((0u8..10, prop::option::weighted(0.8, service())), 1..4),
            1..20,
        ),
        family in prop::sample::select(Family::ALL.to_vec()),
    ) {
        let mut node = Node::new(family);
        for batch in changes {
            let mut table = node.table.clone();
            for (number, service) in &batch {
                change(&mut table, *number, service.as_ref());
            }
            node.follow(table);
        }
    }
}

#[test]
fn one_endpoint_more_is_followed() {
    let service = |endpoints: &[u8]| Service {
        address: 1,
        port: 80,
        endpoints: endpoints.iter().map(|number| (*number, 1)).collect(),
        is_here: true,
        is_held: false,
        is_balancer: false,
        is_sticky: false,
        is_ranged: false,
        is_left_out: false,
    };
    for family in Family::ALL {
        let mut node = Node::new(family);
        let mut followed = Vec::new();
        for endpoints in [&[1, 2, 3][..], &[1, 2, 3, 4], &[1, 2, 3, 4, 5], &[1, 2]] {
            let mut table = node.table.clone();
            change(&mut table, 0, Some(&service(endpoints)));
            node.follow(table);
            followed.push(node.followed);
        }
        // The first and the third need a chain that is not there.
        assert_eq!(followed, [0, 1, 1, 2]);
        // So does the first import.
        for (number, expected) in [(8, 2), (9, 3)] {
            let mut table = node.table.clone();
            let import = Service {
                address: number,
                ..service(&[1, number])
            };
            change(&mut table, number, Some(&import));
            node.follow(table);
            assert_eq!(node.followed, expected);
        }
    }
}

#[test]
fn a_conflict_of_others_is_no_reason_to_compute_everything() {
    let service = |address| Service {
        address,
        port: 80,
        endpoints: vec![(1, 1)],
        is_here: false,
        is_held: false,
        is_balancer: false,
        is_sticky: false,
        is_ranged: false,
        is_left_out: false,
    };
    for family in Family::ALL {
        let mut node = Node::new(family);
        let mut table = node.table.clone();
        for (number, address) in [(0, 1), (1, 1), (2, 2)] {
            change(&mut table, number, Some(&service(address)));
        }
        node.follow(table);
        // At the addresses of both families.
        assert_eq!((node.ways.refused.len(), node.followed), (2, 0));
        let mut table = node.table.clone();
        change(&mut table, 2, Some(&service(3)));
        node.follow(table);
        assert_eq!((node.ways.refused.len(), node.followed), (2, 1));
        // The holder of the way goes: the other has it.
        let mut table = node.table.clone();
        change(&mut table, 0, None);
        node.follow(table);
        assert_eq!((node.ways.refused.len(), node.ways.ways.len()), (0, 4));
    }
}

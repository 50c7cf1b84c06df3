// SPDX-License-Identifier: Apache-2.0

//! Endpoints that move between the slices of a Service, as the EndpointSlice controller moves them.

use std::net::IpAddr;
use std::ops::Range;

use portolan_catalog::{
    Endpoint, EndpointSlice, Object, ObjectChange, ObjectKey, Service, ServicePort, SlicePort,
};
use portolan_model::{Family, Protocol};

use super::*;

const ENDPOINTS: u16 = 300;
const SLICES: usize = 3;
/// Number of endpoints that move at a time.
const STEP: usize = 7;

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

fn put(object: Object) -> ObjectChange {
    let problems = vec![];
    ObjectChange::Put { object, problems }
}

fn service() -> ObjectChange {
    put(Object::Service(Service {
        cluster_ips: vec![[10, 96, 0, 1].into()],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::new(key("web"))
    }))
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [10, 0, high, low].into()
}

/// A Service whose endpoints move between slices, and its table.
struct World {
    catalog: Catalog,
    projector: Projector,
    slices: [Vec<u16>; SLICES],
    record: Option<Arc<Record>>,
}

impl World {
    fn new() -> Self {
        let all: Vec<u16> = (0..ENDPOINTS).collect();
        let mut parts = all
            .chunks(usize::from(ENDPOINTS) / SLICES)
            .map(<[u16]>::to_vec);
        let mut world = Self {
            catalog: Catalog::default(),
            projector: Projector::default(),
            slices: [(); SLICES].map(|()| parts.next().unwrap()),
            record: None,
        };
        let slices: Vec<_> = (0..SLICES).map(|slice| world.write(slice)).collect();
        world.flush([service()].into_iter().chain(slices));
        world
    }

    /// The controller's write of one slice as it is now.
    fn write(&self, slice: usize) -> ObjectChange {
        let endpoints = self.slices[slice]
            .iter()
            .map(|n| Endpoint::new(address(*n)));
        put(Object::EndpointSlice(EndpointSlice {
            key: key(&format!("web-{slice}")),
            service: "web".into(),
            family: Family::V4,
            ports: vec![SlicePort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: endpoints.collect(),
            triggered_ms: None,
        }))
    }

    /// One transition of the tables; an agent sees only its end.
    fn flush(&mut self, changes: impl IntoIterator<Item = ObjectChange>) {
        let mut dirty = DirtySet::default();
        for change in changes {
            self.catalog.apply(change, &mut dirty);
        }
        let delta = self.projector.update(&self.catalog, &dirty);
        for record in delta.records.into_values() {
            self.record = record;
        }
    }

    /// Moves the first endpoints of a slice to another: the writes that add and that remove them.
    fn move_some(&mut self, from: usize, to: usize) -> [ObjectChange; 2] {
        let count = STEP.min(self.slices[from].len());
        let moved: Vec<_> = self.slices[from].drain(..count).collect();
        self.slices[to].extend(moved);
        [self.write(to), self.write(from)]
    }

    fn has(&self, expected: Range<usize>) -> bool {
        let record = self.record.as_ref().expect("a record");
        expected.contains(&record.destinations.len())
    }
}

/// Each slice's endpoints move to the next one, once around.
fn routes() -> impl Iterator<Item = (usize, usize)> {
    let steps = usize::from(ENDPOINTS) / STEP;
    (0..SLICES).flat_map(move |from| (0..steps).map(move |_| (from, (from + 1) % SLICES)))
}

const ALL: Range<usize> = ENDPOINTS as usize..ENDPOINTS as usize + 1;

/// The EndpointSlice controller creates and updates before it deletes; within its updates it fills
/// slices before it empties others only by luck, so both orders are below.
#[test]
fn an_endpoint_that_is_added_first_is_never_lost() {
    let mut world = World::new();
    assert!(world.has(ALL));
    for (from, to) in routes() {
        let [add, remove] = world.move_some(from, to);
        world.flush([add]);
        assert!(world.has(ALL), "after adding to {to}");
        world.flush([remove]);
        assert!(world.has(ALL), "after removing from {from}");
    }
}

#[test]
fn a_slice_that_is_deleted_after_its_endpoints_moved_takes_none_with_it() {
    let mut world = World::new();
    for _ in 0..SLICES {
        let moved = std::mem::take(&mut world.slices[0]);
        world.slices[1].extend(moved);
        let add = world.write(1);
        world.flush([add]);
        assert!(world.has(ALL));
        let kind = Kind::EndpointSlice;
        let key = key("web-0");
        world.flush([ObjectChange::Delete(ObjectRef { kind, key })]);
        assert!(world.has(ALL));
        let back = std::mem::take(&mut world.slices[1]);
        world.slices[0].extend(back);
        let writes = [world.write(0), world.write(1)];
        writes.into_iter().for_each(|write| world.flush([write]));
        assert!(world.has(ALL));
    }
}

/// Between the two writes the moved endpoints are in no slice; all others stay, and if both writes
/// come at once, the table does not change.
#[test]
fn an_endpoint_that_is_removed_first_is_away_for_that_moment_only() {
    let mut world = World::new();
    let least = usize::from(ENDPOINTS) - STEP;
    for (step, (from, to)) in routes().enumerate() {
        let [add, remove] = world.move_some(from, to);
        if step % 2 == 0 {
            world.flush([remove]);
            assert!(world.has(least..usize::from(ENDPOINTS) + 1));
            world.flush([add]);
        } else {
            world.flush([remove, add]);
        }
        assert!(world.has(ALL));
    }
}

/// The writer of the second copy may know less than that of the first: neither order of the slices
/// lets the worse one win.
#[test]
fn of_two_copies_the_better_one_counts() {
    for (better, worse) in [(0, 1), (1, 0)] {
        let mut world = World::new();
        let copy = |slice: usize, edit: fn(&mut Endpoint)| {
            let ObjectChange::Put { object, problems } = world.write(slice) else {
                panic!("a write puts a slice")
            };
            let Object::EndpointSlice(mut of_slice) = object else {
                panic!("a write puts a slice")
            };
            let mut endpoint = Endpoint::new(address(ENDPOINTS));
            edit(&mut endpoint);
            of_slice.endpoints.push(endpoint);
            let object = Object::EndpointSlice(of_slice);
            ObjectChange::Put { object, problems }
        };
        let writes = [
            copy(better, |_| ()),
            copy(worse, |endpoint| endpoint.ready = false),
        ];
        world.flush(writes);
        let one_more = usize::from(ENDPOINTS) + 1;
        assert!(world.has(one_more..one_more + 1));
    }
}

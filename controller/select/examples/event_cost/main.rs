// SPDX-License-Identifier: Apache-2.0

//! The catalog's memory and the cost of one event, at several cluster sizes.
//!
//! Run by `cargo run --release -p portolan-select --example event_cost`. Each figure is one line.
//! Times are processor time, the minimum of several rounds, and are meaningful only relative to one
//! another.

#![allow(clippy::print_stdout, reason = "its purpose")]

mod figures;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use cap::Cap;
use figures::{goal, prepare, processor_time};
use portolan_catalog::{Catalog, DirtySet, Endpoint};
use portolan_select::{Pipeline, Projector, SelectConfig};
use tikv_jemallocator::Jemalloc;
use world::World;

/// The controller's allocator, with a count of what is allocated.
#[global_allocator]
static MEMORY: Cap<Jemalloc> = Cap::new(Jemalloc, usize::MAX);

const ROUNDS: usize = 9;
const EVENTS: u16 = 4_000;

/// A cluster of usual size: services, endpoints of each, nodes.
const USUAL: World = World::new(10_000, 10, 5_000);

fn main() {
    weigh(USUAL);
    let sizes = [5_000, 10_000, 20_000].map(|services| World { services, ..USUAL });
    let [by_services, usual] = doubling(sizes.to_vec());
    let sizes = [2_500, 5_000, 10_000].map(|nodes| World { nodes, ..USUAL });
    let [by_nodes, _] = doubling(sizes.to_vec());
    println!("figure event_cost {usual:.2} us");
    goal("event_cost_doubling_services", by_services, "x", "<=", 1.3);
    goal("event_cost_doubling_nodes", by_nodes, "x", "<=", 1.3);
    let full = recompute(USUAL);
    println!("figure full_recompute {:.1} ms", full * 1e3);
    let ratio = full * 1e6 / usual;
    goal("full_recompute_over_event", ratio, "x", ">=", 1_000.0);
}

/// Bytes of heap for each endpoint, beyond the names.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn weigh(world: World) {
    let per_endpoint = |bytes: usize| bytes as f64 / (world.services * world.endpoints) as f64;
    let names = world.names();
    let before = MEMORY.allocated();
    let mut catalog = Catalog::default();
    for change in world.objects() {
        // A new dirty set for each change: its memory is not the catalog's.
        catalog.apply(change, &mut DirtySet::default());
    }
    let weight = MEMORY.allocated() - before;
    println!("figure catalog_bytes {weight} bytes");
    println!("figure catalog_names_bytes {names} bytes");
    let beyond = per_endpoint(weight - names);
    goal("catalog_bytes_per_endpoint", beyond, "bytes", "<=", 60.0);
    // The same objects as sources convert them, without indexes.
    let before = MEMORY.allocated();
    let unpacked: Vec<_> = world.objects().collect();
    let weight = MEMORY.allocated() - before;
    drop(unpacked);
    let beyond = per_endpoint(weight.saturating_sub(names));
    println!("figure unpacked_bytes_per_endpoint {beyond:.1} bytes");
    let structure = size_of::<Endpoint>();
    println!("figure unpacked_endpoint_structure {structure} bytes");

    let before = MEMORY.allocated();
    let (projector, delta) = Projector::rebuild(&catalog, SelectConfig::default());
    drop(delta);
    let tables = MEMORY.allocated() - before;
    println!(
        "figure tables_bytes_per_endpoint {:.1} bytes",
        per_endpoint(tables)
    );
    drop(projector);
}

/// The greatest growth of an event's cost when the world doubles, and the median cost.
fn doubling(worlds: Vec<World>) -> [f64; 2] {
    let mut pipelines: Vec<_> = worlds.into_iter().map(|w| (w, filled(w))).collect();
    let mut least = BTreeMap::new();
    for round in 0..ROUNDS {
        // The sizes alternate, so that other load on the machine affects all alike.
        for (index, (world, pipeline)) in pipelines.iter_mut().enumerate() {
            let took = events(*world, pipeline, round);
            let least = least.entry(index).or_insert(took);
            *least = took.min(*least);
        }
    }
    let each = |took: &Duration| took.as_secs_f64() * 1e6 / f64::from(EVENTS);
    let costs: Vec<_> = least.values().map(each).collect();
    let ratios = costs.windows(2).map(|pair| pair[1] / pair[0]);
    [ratios.fold(0.0, f64::max), costs[1]]
}

fn filled(world: World) -> Pipeline {
    let mut pipeline = Pipeline::default();
    world.objects().for_each(|change| pipeline.apply(change));
    pipeline.flush();
    pipeline
}

/// Measures events, each of which is published on its own.
fn events(world: World, pipeline: &mut Pipeline, round: usize) -> Duration {
    let events = usize::from(EVENTS);
    let numbers = round * events..(round + 1) * events;
    let changes: Vec<_> = numbers.map(|number| world.event(number)).collect();
    let start = processor_time();
    let mut published = 0;
    for change in changes {
        pipeline.apply(change);
        let delta = pipeline.flush();
        assert!(!delta.is_empty(), "an event that changes nothing");
        published += prepare(&delta);
    }
    let took = processor_time() - start;
    assert!(published > 0, "nothing was published");
    took
}

/// The time to compute all tables from scratch, in seconds.
fn recompute(world: World) -> f64 {
    let mut catalog = Catalog::default();
    for change in world.objects() {
        catalog.apply(change, &mut DirtySet::default());
    }
    let took = (0..3).map(|_| {
        let start = processor_time();
        let rebuilt = Projector::rebuild(&catalog, SelectConfig::default());
        let took = processor_time() - start;
        assert!(!rebuilt.1.is_empty());
        took
    });
    took.min().unwrap_or_default().as_secs_f64()
}

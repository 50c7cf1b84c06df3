// SPDX-License-Identifier: Apache-2.0

//! The centre's memory, for clusters that share their Services.
//!
//! Run by `make bench-federation`. Each figure is one line.

#![allow(clippy::print_stdout, reason = "its purpose")]

#[path = "../federation_cost/bytes.rs"]
#[expect(dead_code, reason = "no API server is compared with")]
mod bytes;
#[path = "../federation_cost/edges.rs"]
mod edges;
#[path = "../event_cost/figures.rs"]
#[expect(dead_code, reason = "no time is measured here")]
mod figures;
#[path = "../federation_cost/world.rs"]
#[expect(dead_code, reason = "no event happens here")]
mod world;

use cap::Cap;
use edges::Edges;
use figures::goal;
use tikv_jemallocator::Jemalloc;
use world::{LARGE, SPREAD, World};

/// The controller's allocator, with a count of what is allocated.
#[global_allocator]
static MEMORY: Cap<Jemalloc> = Cap::new(Jemalloc, usize::MAX);

fn main() {
    tables(LARGE);
    objects(LARGE);
    plans(SPREAD);
}

fn endpoints(world: World) -> usize {
    world.clusters * world.services * world.endpoints
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn ratio(bytes: usize, count: usize) -> f64 {
    bytes as f64 / count as f64
}

/// Measures the heap for each endpoint of all clusters.
fn tables(world: World) {
    let before = MEMORY.allocated();
    let pipeline = world.filled();
    let weight = MEMORY.allocated() - before;
    drop(pipeline);
    let each = ratio(weight, endpoints(world));
    goal("heap_per_endpoint", each, "bytes", "<=", 500.0);
}

/// Measures the heap for each endpoint of one cluster behind an edge: of the objects that the edge sends, and of what the
/// centre keeps of them beside its tables.
fn objects(world: World) {
    let count = world.services * world.endpoints;
    let before = MEMORY.allocated();
    let mut outbox = bytes::outbox(world);
    let at_edge = MEMORY.allocated() - before;
    let mut centre = bytes::partition();
    bytes::stream(&mut outbox, &mut centre);
    let at_centre = MEMORY.allocated() - before - at_edge;
    let each = ratio(at_edge, count);
    goal("heap_of_edge_objects", each, "bytes", "<=", 150.0);
    let each = ratio(at_centre, count);
    println!("figure heap_of_edge_objects_at_centre {each:.1} bytes for each endpoint");
    drop((outbox, centre));
}

/// Measures the heap for each endpoint of a plan, where edges of all clusters get plans.
fn plans(world: World) {
    let mut pipeline = world.filled();
    let before = MEMORY.allocated();
    let edges = Edges::new(world, &mut pipeline);
    let weight = MEMORY.allocated() - before;
    drop(edges);
    let each = ratio(weight, world.clusters * endpoints(world));
    println!("figure heap_of_plans {each:.1} bytes for each endpoint and edge");
}

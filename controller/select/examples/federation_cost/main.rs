// SPDX-License-Identifier: Apache-2.0

//! The cost of a centre's events, for clusters that share their Services.
//!
//! Run by `make bench-federation`. Each figure is one line. Times are processor time of one thread,
//! and are meaningful only relative to one another. Nothing is sent: objects go in, and encoded
//! changes of tables come out. `federation_heap` has the memory: counting it would take time here.

#![allow(clippy::print_stdout, reason = "its purpose")]

mod bytes;
mod edges;
#[path = "../event_cost/figures.rs"]
mod figures;
mod table;
mod world;

use std::time::Duration;

use edges::Edges;
use figures::{goal, prepare, processor_time};
use portolan_model::NodeKey;
use portolan_select::Pipeline;
use table::Tables;
use tikv_jemallocator::Jemalloc;
use world::{LARGE, SPREAD, Shape, World, allocate, name_of};

/// The controller's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const ROUNDS: usize = 3;
const EVENTS: usize = 1_000;
/// Events whose other costs are large.
const FEW_EVENTS: usize = 200;

/// The variable with the shapes that are measured, separated by commas; all without it.
const SHAPES: &str = "PORTOLAN_FEDERATION_SHAPES";

fn main() {
    let wanted =
        std::env::var(SHAPES).unwrap_or_else(|_| String::from("local-first,spread,distinct"));
    for shape in wanted.split(',') {
        match shape {
            "local-first" => local_first(),
            "spread" => spread(),
            "distinct" => distinct(),
            other => panic!("{SHAPES}: {other:?} is none of local-first, spread, distinct"),
        }
    }
}

fn local_first() {
    let (large, full) = cold_start(LARGE);
    let half = World {
        clusters: LARGE.clusters / 2,
        ..LARGE
    };
    let mut pipelines = [(half, half.filled()), (LARGE, large)];
    let [before, cost] = least(&mut pipelines);
    let microseconds = cost.as_secs_f64() * 1e6;
    goal("event_cost_local_first", microseconds, "us", "<=", 20.0);
    let growth = ratio(cost, before);
    goal("event_cost_doubling_clusters", growth, "x", "<=", 1.3);
    let [_, (world, mut pipeline)] = pipelines;
    let export = exports(world, &mut pipeline);
    println!("figure export_cost {:.1} ms", export.as_secs_f64() * 1e3);
    goal(
        "full_recompute_over_export",
        ratio(full, export),
        "x",
        ">=",
        100.0,
    );
    drop(pipeline);
    loss("local_first", world);
    resume(LARGE);
}

/// Measures the stream of an edge that begins again, and nothing has changed.
fn resume(world: World) {
    let (mut outbox, mut centre) = (bytes::outbox(world), bytes::partition());
    let [full, again] = [(); 2].map(|()| bytes::stream(&mut outbox, &mut centre));
    println!("figure edge_stream_full {full} bytes");
    println!("figure edge_stream_resumed {again} bytes");
    goal(
        "edge_stream_full_over_resumed",
        num(full) / num(again),
        "x",
        ">=",
        100.0,
    );
}

fn spread() {
    let mut pipelines = [(SPREAD, SPREAD.filled())];
    let [cost] = least(&mut pipelines);
    let each = cost.as_secs_f64() * 1e6 / num(SPREAD.clusters);
    println!("figure event_cost_spread {each:.2} us for each import");
    let [(world, mut pipeline)] = pipelines;
    edges(world, &mut pipeline);
    drop(pipeline);
    loss("spread", world);
}

fn distinct() {
    let distinct = World {
        shape: Shape::Distinct,
        services: 20,
        ..LARGE
    };
    let mut pipelines = [(distinct, distinct.filled())];
    let [cost] = least(&mut pipelines);
    let each = cost.as_secs_f64() * 1e6 / num(distinct.clusters);
    println!("figure event_cost_distinct {each:.2} us for each import");
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn num(count: usize) -> f64 {
    count as f64
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

/// The time to compute all tables, which is what an event costs without incremental computation.
fn cold_start(world: World) -> (Pipeline, Duration) {
    let mut pipeline = world.load();
    let start = processor_time();
    pipeline.flush();
    allocate(&mut pipeline);
    let delta = pipeline.flush();
    let took = processor_time() - start;
    let records = delta.records.len();
    assert_eq!(records, world.clusters * world.services, "not all imports");
    goal("cold_start", took.as_secs_f64(), "s", "<=", 60.0);
    (pipeline, took)
}

/// The least mean cost of an event of each federation.
fn least<const N: usize>(pipelines: &mut [(World, Pipeline); N]) -> [Duration; N] {
    let mut least = [Duration::MAX; N];
    for round in 0..ROUNDS {
        // The sizes alternate, so that other load on the machine affects all alike.
        for ((world, pipeline), least) in pipelines.iter_mut().zip(&mut least) {
            *least = events(*world, pipeline, round).min(*least);
        }
    }
    least
}

/// The mean cost of events, each of which is computed and encoded on its own.
fn events(world: World, pipeline: &mut Pipeline, round: usize) -> Duration {
    let numbers = round * EVENTS..(round + 1) * EVENTS;
    let changes: Vec<_> = numbers.map(|number| world.event(number)).collect();
    let start = processor_time();
    for change in changes {
        pipeline.apply(change);
        let delta = pipeline.flush();
        assert!(prepare(&delta) > 0, "an event that changes nothing");
    }
    (processor_time() - start) / u32::try_from(EVENTS).unwrap_or(u32::MAX)
}

/// The mean cost of an export that goes or comes.
fn exports(world: World, pipeline: &mut Pipeline) -> Duration {
    const CHANGES: u32 = 20;
    let start = processor_time();
    for service in 0..CHANGES / 2 {
        for change in world.export_goes_and_comes(service as usize) {
            pipeline.apply(change);
            pipeline.wanted();
            prepare(&pipeline.flush());
        }
    }
    (processor_time() - start) / CHANGES
}

/// Measures the processor time of an event for each edge, where edges of all clusters get plans.
fn edges(world: World, pipeline: &mut Pipeline) {
    let mut edges = Edges::new(world, pipeline);
    let (mut took, mut sent) = (Duration::ZERO, 0);
    for number in 0..FEW_EVENTS {
        pipeline.apply(world.event(ROUNDS * EVENTS + number));
        drop(pipeline.flush());
        let start = processor_time();
        let (plans, bytes) = edges.tell(pipeline);
        took += processor_time() - start;
        sent += bytes;
        assert_eq!(plans, world.clusters - 1, "not one for each other cluster");
    }
    let each = took.as_secs_f64() * 1e6 / num(FEW_EVENTS * (world.clusters - 1));
    println!("figure event_cost_of_plans {each:.2} us for each edge");
    let each = num(sent) / num(FEW_EVENTS * (world.clusters - 1));
    println!("figure event_bytes_of_plans {each:.0} bytes for each edge");
    // The same change written into the API server of every other cluster.
    let slice = num(bytes::slice(world));
    println!("figure event_bytes_of_slices {slice:.0} bytes for each cluster");
    println!("figure event_slices_over_plans {:.2} x", slice / each);
}

/// Loses a cluster, and has it again. A node of each cluster is sent its table.
fn loss(shape: &str, world: World) {
    let mut pipeline = world.load();
    let mut tables = Tables::new((0..world.clusters).map(|cluster| NodeKey {
        cluster: name_of(cluster),
        name: "node-0".into(),
    }));
    tables.publish(&pipeline.flush());
    allocate(&mut pipeline);
    tables.publish(&pipeline.flush());
    let whole = tables.snapshots();
    println!("figure table_of_a_node_{shape} {} bytes", whole[1]);
    for (what, lost) in [("loss", Some(0)), ("return", None)] {
        let start = processor_time();
        pipeline.set_states(world.states(lost));
        let delta = pipeline.flush();
        assert!(prepare(&delta) > 0, "a {what} that changes nothing");
        let took = (processor_time() - start).as_secs_f64();
        let name = format!("{what}_of_a_cluster_{shape}");
        goal(&name, took, "s", "<=", 1.0);
        let sent = tables.publish(&delta);
        let shares = sent.iter().zip(&whole);
        let shares: Vec<f64> = shares
            .map(|(sent, whole)| 100.0 * num(*sent) / num(*whole))
            .collect();
        let most = shares[1..].iter().copied().fold(0.0, f64::max);
        goal(&format!("{name}_bytes"), most, "%", "<=", 10.0);
        // The nodes of the lost cluster, if they can be told.
        println!("figure {name}_bytes_there {:.1} %", shares[0]);
    }
}

// SPDX-License-Identifier: Apache-2.0

//! A cluster's changes while another one floods the centre and a third one hangs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::wait::wait_for;
use rustix::process::Signal;
use serde_json::json;

use super::losses::generation;
use super::world::{CLUSTERS, World, skip};

/// The cluster whose changes are timed, the one that floods, and the one that hangs.
const TIMED: usize = 0;
const FLOODS: usize = 1;
const HANGS: usize = 2;
/// Pods of each cluster.
const PODS: [usize; 3] = [4, 4, 2];
/// Changes whose times have a 99th percentile.
const CHANGES: usize = 100;
/// The pause between two changes of the flood: up to 1,000 a second.
const PAUSE: Duration = Duration::from_millis(1);
/// Changes of the flood that show that it runs.
const MANY: u64 = 200;
/// Largest ratio of the time of a change beside the others to its time without.
const MOST: f64 = 1.5;
/// A longer time by less than this is noise of the rig. The thread that floods, the edge controller that reads its
/// changes and the agent of its cluster share the processors of one machine, two as a rule, with all that is timed.
const NOISE: Duration = Duration::from_millis(100);

/// Changes of the file of a cluster, one after the other until it is dropped.
struct Flood {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    changes: AtomicU64,
}

impl Flood {
    fn start(world: &World) -> Self {
        let count = PODS[FLOODS];
        let texts = [count - 1, count].map(|ready| world.text_of_web(FLOODS, ready, &[]));
        let directory = world.directory(FLOODS);
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let work = move || flood(&of_thread, &directory, &texts);
        Self {
            shared,
            thread: Some(thread::spawn(work)),
        }
    }

    fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Returns when it has gone on.
    fn wait_for_more(&self) {
        let enough = self.changes() + MANY;
        wait_for("the flood", PATIENT, || {
            (self.changes() >= enough).then_some(())
        })
        .unwrap();
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        // A test that fails already says why.
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

fn flood(shared: &Shared, directory: &Path, texts: &[String; 2]) {
    let (hidden, path) = (directory.join(".hidden"), directory.join("web.json"));
    for text in texts.iter().cycle() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(&hidden, &path).unwrap();
        shared.changes.fetch_add(1, Ordering::Relaxed);
        thread::park_timeout(PAUSE);
    }
}

/// Returns when the node of the timed cluster has programmed its newest revision.
fn wait_until_settled(world: &World) {
    wait_for("the agent", PATIENT, || {
        let dump = world.cluster.controller_debug("clusters").ok()?;
        let mut all = dump["clusters"].as_array()?.iter();
        let timed = all.find(|one| one["name"] == CLUSTERS[TIMED])?;
        (timed["connected"] == 1 && timed["programmed"] == 1).then_some(())
    })
    .unwrap();
}

/// The time from a change of the number of ready endpoints until the kernel of the cluster's node has it.
fn change(world: &World, ready: usize) -> Duration {
    wait_until_settled(world);
    let before = generation(world, TIMED);
    let started = Instant::now();
    world.web(TIMED, ready, &[]);
    wait_for("the kernel", PATIENT, || {
        (generation(world, TIMED) != before).then_some(())
    })
    .unwrap();
    started.elapsed()
}

/// The median and the 99th percentile of the times of changes to one endpoint less and back.
fn changes(world: &World) -> [Duration; 2] {
    let count = PODS[TIMED];
    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|number| change(world, count - (number + 1) % 2))
        .collect();
    times.sort();
    [times[CHANGES / 2], times[CHANGES * 99 / 100 - 1]]
}

fn print(when: &str, times: [Duration; 2]) {
    for (name, time) in ["p50", "p99"].into_iter().zip(times) {
        let name = format!("multicluster_change_{when}_{name}");
        figure(&name, time.as_secs_f64() * 1_000.0, "ms", None);
    }
}

#[test]
fn a_cluster_that_floods_and_one_that_hangs_delay_no_other() {
    if skip("a_cluster_that_floods_and_one_that_hangs_delay_no_other") {
        return;
    }
    // The local tier is healthy throughout, so that the timed cluster's tables have no endpoints of others: a write on
    // its node is one of its own changes.
    let tiers = json!([{"clusters": [{"local": true}]}, {"rest": true}]);
    let traffic = json!({"services": {"names": ["web"]}, "tiers": tiers});
    let mut world = World::with_edges(PODS, traffic, json!({"staleTTL": "1h"}));
    world.wait_for_shares([1000, 0, 0]);
    let without = changes(&world);
    print("alone", without);

    world.edge(HANGS).signal(Signal::STOP).unwrap();
    let flood = Flood::start(&world);
    flood.wait_for_more();
    wait_until_settled(&world);
    let (kernel, revision) = (generation(&world, TIMED), world.revision(CLUSTERS[FLOODS]));
    flood.wait_for_more();
    wait_for("the flood to reach its tables", PATIENT, || {
        (world.revision(CLUSTERS[FLOODS]) > revision).then_some(())
    })
    .unwrap();
    assert_eq!(generation(&world, TIMED), kernel, "not its change");
    let (begun, first) = (Instant::now(), flood.changes());
    let beside = changes(&world);
    let rate = (flood.changes() - first) as f64 / begun.elapsed().as_secs_f64();
    drop(flood);
    world.edge(HANGS).signal(Signal::CONT).unwrap();

    print("beside_a_flood", beside);
    figure("multicluster_flood", rate, "changes/s", None);
    let ratio = beside[1].as_secs_f64() / without[1].as_secs_f64();
    let goal = Some(Goal::AtMost(MOST));
    figure("multicluster_change_p99_ratio", ratio, "times", goal);
    assert!(
        ratio <= MOST || beside[1] < without[1] + NOISE,
        "p99 of {:?} instead of {:?}",
        beside[1],
        without[1]
    );
}

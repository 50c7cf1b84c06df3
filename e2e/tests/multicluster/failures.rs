// SPDX-License-Identifier: Apache-2.0

//! Pods of the local tier that die one after the other under load, below the number that is healthy.

use std::time::{Duration, Instant};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::rig::{Failure, Load, RequestError};
use portolan_e2e::wait::wait_for;
use serde_json::json;

use super::world::{WORKERS, World, skip_on};

/// Pods of each cluster.
const PODS: [usize; 3] = [10, 4, 2];
/// The pods of the local tier that are left after each death, and the shares of the clusters in permille. Seven of ten
/// are healthy; below that, twentieths of the load go to the 4 and 2 pods of the other clusters.
const VECTORS: [(usize, [u64; 3]); 10] = [
    (9, [1000, 0, 0]),
    (8, [1000, 0, 0]),
    (7, [1000, 0, 0]),
    (6, [850, 100, 50]),
    (5, [700, 200, 100]),
    (4, [550, 300, 150]),
    (3, [400, 400, 200]),
    (2, [250, 500, 250]),
    (1, [100, 600, 300]),
    (0, [0, 667, 333]),
];
/// Answers after a death is programmed, of which none may fail.
const MORE: u64 = 200;
/// A request that began so long before a death may still have been under way to the pod.
const UNDER_WAY: Duration = Duration::from_millis(200);

/// The death of a pod, in times since the start of the load.
#[derive(Debug)]
struct Death {
    /// Ready pods of the cluster before it.
    ready: usize,
    died: Duration,
    programmed: Duration,
    /// Requests that ended in between.
    requests: u64,
}

impl Death {
    /// True if a request could have gone to the pod after its death.
    fn explains(&self, failure: &Failure) -> bool {
        let begin = self.died.saturating_sub(UNDER_WAY);
        (begin..=self.programmed).contains(&failure.at)
    }
}

/// All requests of a load that have ended.
fn ended(load: &Load) -> u64 {
    load.answered() + load.failed() as u64
}

fn wait_for_more(load: &Load) {
    let enough = ended(load) + MORE;
    wait_for("more requests", PATIENT, || {
        (ended(load) >= enough).then_some(())
    })
    .unwrap();
}

/// The last ready pod dies, a request finds that out, and then the objects say so too.
fn die(world: &mut World, load: &Load, begun: Instant, (left, shares): (usize, [u64; 3])) -> Death {
    let (revision, requests, failed) = (world.revision("eu-1"), ended(load), load.failed());
    let died = begun.elapsed();
    world.pods[0][left].die();
    wait_for("a request to the dead pod", PATIENT, || {
        (load.failed() > failed).then_some(())
    })
    .unwrap();
    world.web(0, left, &[]);
    wait_for("the change", PATIENT, || {
        (world.revision("eu-1") > revision).then_some(())
    })
    .unwrap();
    world.wait_for_shares(shares);
    Death {
        ready: left + 1,
        died,
        programmed: begun.elapsed(),
        requests: ended(load) - requests,
    }
}

/// A port that nobody listens on refuses; so do connections that its program leaves behind.
fn is_of_a_dead_pod(error: &RequestError) -> bool {
    match error {
        RequestError::Refused => true,
        RequestError::Other(reason) => reason == "closed by the server",
        RequestError::TimedOut | RequestError::Unreachable => false,
    }
}

/// A dead pod has no more requests than its turns among the ready ones, to within four standard deviations, and those
/// that are under way.
fn check(deaths: &[Death], failures: &[Failure]) {
    for death in deaths {
        let of_pod = failures.iter().filter(|failure| death.explains(failure));
        let (count, part) = (of_pod.count() as f64, 1.0 / death.ready as f64);
        let requests = death.requests as f64;
        let deviation = (requests * part * (1.0 - part)).sqrt();
        let most = requests * part + 4.0 * deviation + 2.0 * WORKERS as f64;
        assert!(count <= most, "{count} failed, at most {most}: {death:?}");
    }
}

fn play(dataplane: &'static str, test: &str) {
    if skip_on(dataplane, test) {
        return;
    }
    let tiers = json!([{"clusters": [{"local": true}]}, {"rest": true}]);
    let traffic = json!({"services": {"names": ["web"]}, "tiers": tiers, "minHealthy": "70%"});
    let mut world = World::on(dataplane, PODS, traffic, json!({}));
    world.wait_for_shares([1000, 0, 0]);
    let load = world.load(1_000_000, Duration::from_millis(10));
    // The times of failures are since the load's own start: before it the controller is asked for the address.
    let begun = Instant::now();
    wait_for_more(&load);
    assert_eq!(load.failed(), 0, "{:?}", load.failures());
    let mut deaths = Vec::new();
    for vector in VECTORS {
        deaths.push(die(&mut world, &load, begun, vector));
        wait_for_more(&load);
    }
    let report = load.stop();
    let is_explained = |failure: &&Failure| {
        let has_death = deaths.iter().any(|death| death.explains(failure));
        has_death && is_of_a_dead_pod(&failure.error)
    };
    let all = report.failures.iter();
    let (of_dead, others): (Vec<&Failure>, Vec<&Failure>) = all.partition(is_explained);
    let name = |what: &str| format!("multicluster_failover_{dataplane}_{what}");
    figure(&name("requests"), report.requests as f64, "requests", None);
    figure(&name("to_dead"), of_dead.len() as f64, "requests", None);
    let goal = Some(Goal::AtMost(0.0));
    figure(&name("failed"), others.len() as f64, "requests", goal);
    assert!(others.is_empty(), "{others:?} beside {deaths:?}");
    assert!(of_dead.len() >= deaths.len(), "{of_dead:?}");
    check(&deaths, &report.failures);
    let answers_of = |cluster: &str| {
        let answers = report.by_name.iter();
        let of_cluster = answers.filter(|(pod, _)| pod.starts_with(cluster));
        of_cluster.map(|(_, count)| count).sum::<u64>()
    };
    assert!(answers_of("eu-2") > 0 && answers_of("us-1") > 0);
}

#[test]
fn pods_that_die_one_by_one_take_their_own_requests_alone() {
    let name = "pods_that_die_one_by_one_take_their_own_requests_alone";
    play("nftables", name);
}

#[test]
fn pods_that_die_one_by_one_take_their_own_requests_alone_on_ipvs() {
    let name = "pods_that_die_one_by_one_take_their_own_requests_alone_on_ipvs";
    play("ipvs", name);
}

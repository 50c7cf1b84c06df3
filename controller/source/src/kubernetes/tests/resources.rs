// SPDX-License-Identifier: Apache-2.0

//! Objects of a few kinds, followed as they are.

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const KINDS: [ResourceKind; 2] = [
    ResourceKind {
        group: "portolan.dev",
        version: "v1alpha1",
        kind: "Cluster",
        plural: "clusters",
    },
    ResourceKind {
        group: "portolan.dev",
        version: "v1alpha1",
        kind: "TrafficPolicy",
        plural: "trafficpolicies",
    },
];
const CLUSTERS: &str = "/apis/portolan.dev/v1alpha1/clusters";
const POLICIES: &str = "/apis/portolan.dev/v1alpha1/trafficpolicies";

struct Rig {
    server: Server,
    holds: Arc<HeldDeletions>,
    told: watch::Receiver<Resources>,
}

impl Rig {
    fn new(kinds: &[ResourceKind]) -> Self {
        let (client, server) = server::start();
        let holds = Arc::<HeldDeletions>::default();
        let (sender, told) = watch::channel(Resources::default());
        let shared = Arc::clone(&holds);
        let guard = GuardConfig::default();
        tokio::spawn(follow_resources(
            client,
            kinds.into(),
            guard,
            shared,
            sender,
        ));
        Self {
            server,
            holds,
            told,
        }
    }

    /// Waits until something is so.
    async fn until(&mut self, is_so: impl Fn(&Resources) -> bool) -> Resources {
        let limit = Duration::from_secs(7_200);
        let found = timeout(limit, self.told.wait_for(|told| is_so(told))).await;
        found.expect("it in time").expect("a follower").clone()
    }

    /// The names of the Clusters that are in force.
    fn clusters(&self) -> Vec<String> {
        let told = self.told.borrow();
        let all = told.objects.keys().filter(|(kind, _)| *kind == "Cluster");
        all.map(|(_, name)| name.clone()).collect()
    }
}

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster",
        "metadata": {
            "name": name, "generation": 2, "creationTimestamp": "2026-01-02T03:04:05Z", "uid": "u-1",
        },
        "spec": {"region": "eu"},
    })
}

#[tokio::test(start_paused = true)]
async fn objects_are_listed_and_watched_and_deletions_of_a_watch_are_believed() {
    let mut rig = Rig::new(&KINDS);
    rig.server.list(CLUSTERS, &[object("eu-1")], "5").await;
    let told = rig.until(|told| told.listed.contains("Cluster")).await;
    assert!(!told.listed.contains("TrafficPolicy"));
    rig.server.list(POLICIES, &[], "5").await;
    rig.until(|told| told.listed.contains("TrafficPolicy"))
        .await;
    let found = &told.objects[&("Cluster", String::from("eu-1"))];
    assert_eq!(
        (found.created, found.generation),
        (Some(1_767_323_045), Some(2))
    );
    assert_eq!(found.spec, json!({"region": "eu"}));
    assert_eq!(found.uid.as_deref(), Some("u-1"));

    let mut stream = rig.server.watch(CLUSTERS).await;
    stream.send("ADDED", object("us-1")).await;
    rig.until(|told| told.objects.len() == 2).await;
    // The last ones of a kind, too.
    stream.send("DELETED", object("eu-1")).await;
    stream.send("DELETED", object("us-1")).await;
    rig.until(|told| told.objects.is_empty()).await;
    assert!(rig.holds.held().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_listing_without_the_objects_of_a_kind_deletes_none_before_it_is_confirmed() {
    let mut rig = Rig::new(&KINDS[..1]);
    rig.server
        .list(CLUSTERS, &[object("eu-1"), object("us-1")], "5")
        .await;
    rig.until(|told| told.listed.len() == 1).await;
    drop(rig.server.watch(CLUSTERS).await);
    // A watch that ends at once, and a listing of a server that has lost everything.
    rig.server.list(CLUSTERS, &[], "6").await;
    let mut held = rig.holds.subscribe();
    let held = held.wait_for(|held| !held.is_empty()).await.unwrap();
    assert_eq!(held[&(Arc::default(), Kind::Policy)].lost.objects, 2);
    drop(held);
    assert_eq!(rig.clusters(), ["eu-1", "us-1"]);
    rig.holds.confirm();
    rig.until(|told| told.objects.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_object_that_a_watch_deletes_just_before_a_listing_is_gone() {
    let mut rig = Rig::new(&KINDS[..1]);
    rig.server.list(CLUSTERS, &[object("eu-1")], "5").await;
    rig.until(|told| told.objects.len() == 1).await;
    let mut stream = rig.server.watch(CLUSTERS).await;
    stream.send("DELETED", object("eu-1")).await;
    drop(stream);
    let begin = Instant::now();
    rig.server.list(CLUSTERS, &[], "6").await;
    rig.until(|told| told.objects.is_empty()).await;
    // A held deletion is believed later, without an operator.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(rig.holds.held().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_each_time_is_not_listed_without_a_pause() {
    let mut rig = Rig::new(&KINDS[..1]);
    let begin = Instant::now();
    for _ in 0..5 {
        rig.server.list(CLUSTERS, &[object("eu-1")], "5").await;
        let mut stream = rig.server.watch(CLUSTERS).await;
        stream.gone().await;
    }
    rig.server.list(CLUSTERS, &[object("eu-1")], "5").await;
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(5), "{took:?}");
    // After a watch of some length it is not unusual.
    let mut stream = rig.server.watch(CLUSTERS).await;
    sleep(Duration::from_secs(30)).await;
    let begin = Instant::now();
    stream.gone().await;
    rig.server.list(CLUSTERS, &[object("eu-1")], "6").await;
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_changes_nothing_and_is_named_until_the_next_one() {
    let mut rig = Rig::new(&KINDS[..1]);
    rig.server.next(CLUSTERS).await.fail(404);
    let told = rig.until(|told| !told.problems.is_empty()).await;
    let problem = &told.problems["Cluster"];
    assert!(problem.starts_with("clusters.portolan.dev: "), "{problem}");
    assert!(told.listed.is_empty());
    rig.server.list(CLUSTERS, &[object("eu-1")], "5").await;
    rig.until(|told| told.problems.is_empty() && told.objects.len() == 1)
        .await;
    drop(rig.server.watch(CLUSTERS).await);
    rig.server.next(CLUSTERS).await.fail(503);
    let told = rig.until(|told| !told.problems.is_empty()).await;
    assert_eq!(told.objects.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_object_of_several_that_a_listing_lacks_is_gone() {
    let mut rig = Rig::new(&KINDS[..1]);
    rig.server
        .list(CLUSTERS, &[object("eu-1"), object("us-1")], "5")
        .await;
    rig.until(|told| told.objects.len() == 2).await;
    drop(rig.server.watch(CLUSTERS).await);
    rig.server.list(CLUSTERS, &[object("us-1")], "6").await;
    rig.until(|told| told.objects.len() == 1).await;
    assert_eq!(rig.clusters(), ["us-1"]);
}

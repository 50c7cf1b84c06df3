// SPDX-License-Identifier: Apache-2.0

//! Tests of plans on their way to an edge.

use std::collections::BTreeMap;

use portolan_federate::imports::ImportName;
use portolan_federate::plans::{ClusterPlan, ImportPlan, PlanChanges, StatePlan};
use portolan_source::deletions::HeldLoss;
use prost::Message as _;
use tokio_stream::StreamExt as _;
use v1::centre_message::Message as Answer;

use super::*;
use crate::edges::plan_hold::tests::plans;

/// Plans of clusters with these steps; without one a plan that is gone.
fn steps(steps: &[(&str, Option<u8>)]) -> PlanChanges {
    let plan = |step: u8| ClusterPlan {
        id: "id".into(),
        state: Some(StatePlan {
            step,
            drained: false,
            lost: false,
        }),
        network: None,
        set: None,
    };
    let clusters = steps.iter();
    let clusters = clusters.map(|(name, step)| (Arc::from(*name), step.map(plan)));
    PlanChanges {
        clusters: clusters.collect(),
        ..PlanChanges::default()
    }
}

/// The steps that the edge serves by.
#[derive(Debug)]
struct Served {
    desk: Arc<PlanDesk>,
    news: watch::Receiver<u64>,
    steps: BTreeMap<Arc<str>, u8>,
    /// Plans that were passed on so far.
    passed: usize,
}

impl Served {
    fn by(edge: &Edge) -> Self {
        Self {
            desk: Arc::clone(&edge.plans),
            news: edge.plans.news(),
            steps: BTreeMap::new(),
            passed: 0,
        }
    }

    fn look(&mut self) {
        for (name, plan) in self.desk.take().clusters {
            self.passed += 1;
            let step = plan.and_then(|plan| Some(plan.state?.step));
            match step {
                Some(step) => _ = self.steps.insert(name, step),
                None => _ = self.steps.remove(&name),
            }
        }
    }

    async fn until(&mut self, steps: &[(&str, u8)]) {
        let wanted: BTreeMap<Arc<str>, u8> = steps
            .iter()
            .map(|(name, step)| ((*name).into(), *step))
            .collect();
        let waited = timeout(PATIENCE, async {
            loop {
                self.news.mark_unchanged();
                self.look();
                if self.steps == wanted {
                    return;
                }
                self.news.changed().await.unwrap();
            }
        });
        let waited = waited.await;
        waited.unwrap_or_else(|_| panic!("{:?}, expected {wanted:?}", self.steps));
    }
}

/// An edge that has synced, with streams to these replicas.
async fn begun(replicas: &mut [Replica], saved: Option<Plans>) -> Edge {
    let all: Vec<&Replica> = replicas.iter().collect();
    let edge = Edge::start_with(&all, saved);
    edge.send(put(0..1)).await;
    edge.send(Event::Synced).await;
    for replica in replicas {
        replica.until(1).await;
        // As the writer sees that an edge has asked.
        while replica.plans.clusters().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    edge
}

#[tokio::test]
async fn an_edge_serves_by_the_plans_of_the_replica_that_leads() {
    let mut replicas = [
        Replica::start("127.0.0.1:0").await,
        Replica::start_with("127.0.0.1:0", false).await,
    ];
    let edge = begun(&mut replicas, None).await;
    let mut served = Served::by(&edge);
    let [first, second] = replicas;
    assert!(!edge.plans.is_known());
    first
        .plans
        .apply("eu", &steps(&[("a", Some(20)), ("b", Some(20))]));
    served.until(&[("a", 20), ("b", 20)]).await;
    assert!(edge.plans.is_known());
    second.plans.apply("eu", &steps(&[("a", Some(3))]));
    first.plans.apply("eu", &steps(&[("b", Some(19))]));
    served.until(&[("a", 20), ("b", 19)]).await;
    // The lead passes over.
    second.leading.send_replace(true);
    served.until(&[("a", 3)]).await;
    first.leading.send_replace(false);
    second.plans.apply("eu", &steps(&[("a", Some(4))]));
    served.until(&[("a", 4)]).await;
    // Without the leader its plans stay, and another one may begin to lead.
    second.stop().await;
    first.plans.apply("eu", &steps(&[("b", Some(18))]));
    tokio::task::yield_now().await;
    served.look();
    assert_eq!(served.steps, [(Arc::from("a"), 4)].into());
    first.leading.send_replace(true);
    served.until(&[("a", 20), ("b", 18)]).await;
    // Nor does the end of all streams change anything.
    first.stop().await;
    served.look();
    assert_eq!(served.steps.len(), 2);
}

#[tokio::test]
async fn a_second_edge_waits_with_plans_and_takes_over() {
    let mut replicas = [Replica::start("127.0.0.1:0").await];
    let first = begun(&mut replicas, None).await;
    let [mut replica] = replicas;
    let second = Edge::start_as(&[&replica], None, 8);
    second.send(put(0..3)).await;
    second.send(Event::Synced).await;
    replica.plans.apply("eu", &steps(&[("a", Some(20))]));
    let (mut of_first, mut of_second) = (Served::by(&first), Served::by(&second));
    of_first.until(&[("a", 20)]).await;
    of_second.until(&[("a", 20)]).await;
    assert_eq!(replica.objects.len(), 1, "objects of an edge that waits");
    first.uplink.abort();
    replica.until(3).await;
    // Its plans go on as before.
    replica.plans.apply("eu", &steps(&[("a", Some(5))]));
    of_second.until(&[("a", 5)]).await;
    assert_eq!(second.stats.failures(), 0);
}

#[tokio::test]
async fn an_edge_that_starts_again_is_sent_what_differs() {
    let mut replicas = [Replica::start("127.0.0.1:0").await];
    let edge = begun(&mut replicas, None).await;
    let [replica] = replicas;
    let mut served = Served::by(&edge);
    let many: Vec<String> = (0..200).map(|number| format!("c{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), Some(20))).collect();
    replica.plans.apply("eu", &steps(&many));
    let all: Vec<_> = many.iter().map(|(name, _)| (*name, 20)).collect();
    served.until(&all).await;
    let directory = tempfile::tempdir().unwrap();
    let path = plan_file::path(&directory.path().join("state"), "eu");
    let ending = CancellationToken::new();
    let follow = plan_file::follow(path.clone(), Arc::clone(&edge.plans), ending.clone());
    let follow = tokio::spawn(follow);
    replica.plans.apply("eu", &steps(&[("c0", Some(1))]));
    let mut now = all.clone();
    now[0].1 = 1;
    served.until(&now).await;
    ending.cancel();
    follow.await.unwrap();
    replica.stop().await;
    drop(edge);

    // Without a replica the plans are those of the file.
    let saved = plan_file::read(&path).expect("a file");
    let mut replicas = [Replica::start("127.0.0.1:0").await];
    let other: Vec<&Replica> = vec![];
    let alone = Edge::start_with(&other, Some(saved.clone()));
    assert!(alone.plans.is_known());
    Served::by(&alone).until(&now).await;
    // A replica with other plans brings the difference.
    let edge = begun(&mut replicas, Some(saved)).await;
    let mut served = Served::by(&edge);
    served.until(&now).await;
    let [replica] = replicas;
    let mut later = many.clone();
    later[0].1 = Some(1);
    later[1].1 = Some(2);
    later.pop();
    replica.plans.apply("eu", &steps(&later));
    now[1].1 = 2;
    now.pop();
    let before = served.passed;
    served.until(&now).await;
    let passed = served.passed - before;
    assert!(passed < 20, "{passed} plans");
    // A broken file is none.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(plan_file::read(&path).is_none());
}

#[tokio::test]
async fn a_stream_with_a_bad_plan_names_it_and_one_that_lies_ends() {
    let (stats, desk) = {
        let stats = Arc::new(UplinkStats::default());
        (
            Arc::clone(&stats),
            PlanDesk::new(None, GuardConfig::default(), stats),
        )
    };
    let (place, hashes) = desk.open();
    assert_eq!(hashes.len(), 8);
    let item = v1::PlanItem {
        id: Some(v1::PlanId {
            kind: v1::PlanKind::Cluster.into(),
            cluster: "a".to_owned(),
            ..v1::PlanId::default()
        }),
        plan: None,
    };
    let part = v1::CentrePlans {
        put: vec![item.encode_to_vec().into()],
        ..v1::CentrePlans::default()
    };
    place.stage(part).unwrap();
    assert_eq!(stats.refusals(), 1);
    let commit = v1::CentrePlanCommit {
        number: 1,
        listing: true,
        leading: true,
        hash: vec![0; 16],
    };
    assert!(place.commit(&commit).is_err());
    assert!(!desk.is_known());
    drop(place);
    assert!(!desk.is_known());
    // A centre of before plans has none, which is to be known as well.
    let (place, _) = desk.open();
    place.without_plans();
    assert!(desk.is_known());
    assert!(desk.take().is_empty());
}

#[tokio::test]
async fn an_edge_that_serves_no_imports_is_sent_no_plans() {
    let replica = Replica::start("127.0.0.1:0").await;
    let address = format!("http://{}", replica.address);
    let mut client = FederationClient::connect(address).await.unwrap();
    let hello = Message::Hello(v1::EdgeHello {
        version: 1,
        cluster: "eu".to_owned(),
        name: "old".to_owned(),
        writes: true,
        ..v1::EdgeHello::default()
    });
    let hello = v1::EdgeMessage {
        message: Some(hello),
    };
    let messages = tokio_stream::iter([hello]).chain(tokio_stream::pending());
    let mut answers = client.sync(messages).await.unwrap().into_inner();
    let first = timeout(PATIENCE, answers.message()).await.unwrap();
    let Some(Answer::Welcome(welcome)) = first.unwrap().unwrap().message else {
        panic!("no welcome");
    };
    assert!(welcome.plans);
    let second = timeout(PATIENCE, answers.message()).await.unwrap();
    let second = second.unwrap().unwrap().message;
    assert!(matches!(second, Some(Answer::WorkCommit(_))), "{second:?}");
    assert!(replica.plans.clusters().is_empty());
}

#[tokio::test]
async fn hashes_that_are_none_of_buckets_end_the_stream() {
    let replica = Replica::start("127.0.0.1:0").await;
    let address = format!("http://{}", replica.address);
    let mut client = FederationClient::connect(address).await.unwrap();
    let hello = Message::Hello(v1::EdgeHello {
        version: 1,
        cluster: "eu".to_owned(),
        name: "bad".to_owned(),
        plans: true,
        plan_hashes: vec![0; 7],
        ..v1::EdgeHello::default()
    });
    let hello = v1::EdgeMessage {
        message: Some(hello),
    };
    let messages = tokio_stream::iter([hello]).chain(tokio_stream::pending());
    let mut answers = client.sync(messages).await.unwrap().into_inner();
    timeout(PATIENCE, answers.message()).await.unwrap().unwrap();
    replica.plans.apply("eu", &PlanChanges::default());
    let refused = timeout(PATIENCE, answers.message()).await.unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("plan_hashes"), "{refused}");
}

/// The number of imports that an edge serves by what has been passed on.
fn imports(desk: &PlanDesk, served: &mut BTreeMap<ImportName, ImportPlan>) -> usize {
    for (name, plan) in desk.take().imports {
        match plan {
            Some(plan) => _ = served.insert(name, plan),
            None => _ = served.remove(&name),
        }
    }
    served.len()
}

#[tokio::test]
async fn a_centre_that_lost_its_clusters_takes_no_imports_away() {
    // Of an IP address at which no other test takes the port meanwhile.
    let mut replicas = [Replica::start("127.0.0.4:0").await];
    let edge = begun(&mut replicas, None).await;
    let [replica] = replicas;
    let directory = tempfile::tempdir().unwrap();
    let path = plan_file::path(directory.path(), "eu");
    let ending = CancellationToken::new();
    let follow = plan_file::follow(path.clone(), Arc::clone(&edge.plans), ending.clone());
    let follow = tokio::spawn(follow);
    let holds = Arc::new(HeldDeletions::default());
    let report = HoldReport::new(("eu".into(), Kind::ServiceImport), Arc::clone(&holds));
    tokio::spawn(plan_desk::release_held(Arc::clone(&edge.plans), report));
    let mut served = BTreeMap::new();
    let mut news = edge.plans.news();
    replica.plans.apply("eu", &plans(100));
    while imports(&edge.plans, &mut served) < 100 {
        timeout(PATIENCE, news.changed()).await.unwrap().unwrap();
    }
    let is_written = || plan_file::read(&path).is_some_and(|plans| plans.size().records == 100);
    while !is_written() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let address = replica.stop().await;

    // It starts anew, before the other clusters have dialled.
    let replica = Replica::start(&address.to_string()).await;
    let mut held = holds.subscribe();
    while replica.plans.clusters().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    replica.plans.apply("eu", &PlanChanges::default());
    let is_held = timeout(PATIENCE, held.wait_for(|held| !held.is_empty())).await;
    is_held.unwrap().unwrap();
    assert_eq!(imports(&edge.plans, &mut served), 100);
    // The file has the plans from before too, whatever is told meanwhile.
    let mut step = steps(&[("a", Some(3))]);
    replica.plans.apply("eu", &step);
    timeout(PATIENCE, news.changed()).await.unwrap().unwrap();
    ending.cancel();
    follow.await.unwrap();
    let saved = plan_file::read(&path).expect("a file");
    assert_eq!(saved.size().records, 100);

    // Those that the centre has again are held no longer; an operator confirms the loss of the others.
    step.extend(plans(60));
    replica.plans.apply("eu", &step);
    let left = |held: &BTreeMap<_, HeldLoss>| held.values().any(|held| held.lost.objects == 40);
    timeout(PATIENCE, held.wait_for(left))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(imports(&edge.plans, &mut served), 100);
    assert_eq!(holds.confirm().len(), 1);
    let is_over = timeout(PATIENCE, held.wait_for(BTreeMap::is_empty)).await;
    is_over.unwrap().unwrap();
    while imports(&edge.plans, &mut served) > 60 {
        timeout(PATIENCE, news.changed()).await.unwrap().unwrap();
    }
    assert_eq!(served.len(), 60);
}

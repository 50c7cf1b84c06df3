// SPDX-License-Identifier: Apache-2.0

mod sharing;

use portolan_federate::gateway::PortName;
use portolan_model::Protocol;
use portolan_policy::{File, read};
use portolan_runtime::Vital;
use tokio_util::sync::CancellationToken;

use super::*;

/// A policy of these clusters.
fn policy(names: &[&str]) -> Objects {
    let clusters = names.iter().zip(1..).map(|(name, number)| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{access: {{files: [x]}}, network: {{podCIDRs: [10.{number}.0.0/16]}}}}\n---\n"
        )
    });
    let text: String = clusters.collect();
    let reading = read(&[File {
        name: "p.yaml",
        text: &text,
    }]);
    assert_eq!(reading.problems, []);
    reading.objects
}

#[tokio::test]
async fn a_drain_of_a_cluster_that_left_the_policy_is_not_kept_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (vital, _failures) = Vital::new(CancellationToken::new());
    let mut federated = Federated {
        saver: Saver::start(directory.path(), &vital),
        ..Federated::default()
    };
    let mut pipeline = Pipeline::default();
    federated.take_policies(&mut pipeline, policy(&["us-1", "eu-1"]), true);
    let drain = Drain {
        to: 50,
        over: Duration::ZERO,
    };
    federated.drain("eu-1", Some(drain)).unwrap();
    for names in [&["us-1"][..], &["us-1", "eu-1"]] {
        federated.take_policies(&mut pipeline, policy(names), true);
    }
    drop(federated);
    vital.ending.cancel();
    vital.tasks.close();
    vital.tasks.wait().await;
    let saved = Saved::read(directory.path()).unwrap();
    assert!(saved.drains.is_empty(), "{:?}", saved.drains);
}

/// State that begins with an import of `eu-1` that `us-1` exports. That was last in contact an hour ago.
fn saved(phase: Phase, reach_step: u8) -> Saved {
    let status = Status {
        phase,
        step: reach_step,
        reach_step,
        drain_step: 20,
        drained: false,
        last_contact: Some(Moment(now().0 - Duration::from_hours(1))),
        stale_for: Duration::ZERO,
        recent_losses: Vec::new(),
        losses: 0,
    };
    let name = ImportName {
        namespace: "shop".into(),
        name: "web".into(),
    };
    let kept = Kept {
        winner: Some("us-1".into()),
        clusters: Arc::new(["us-1".into()].into()),
        ..Kept::default()
    };
    Saved {
        statuses: [("us-1".into(), status)].into(),
        imports: [(import_key(&"eu-1".into(), &name), kept)].into(),
        ..Saved::default()
    }
}

fn resumed(saved: Saved, saver: Saver) -> Federated {
    let (sources, states) = Default::default();
    Federated::new(sources, states, saved, saver, McsPlanner::default(), None)
}

/// The clusters that the agents of `eu-1` wait for, and those that imports wait for, once this process has waited.
fn awaited(federated: &mut Federated, pipeline: &Pipeline, seconds: u64) -> [Option<String>; 2] {
    federated.waited = Duration::from_secs(seconds);
    let synced: BTreeSet<Arc<str>> = ["eu-1".into()].into();
    let of_agents = federated.waits_for(pipeline, "eu-1", &synced);
    let of_agents = of_agents.map(str::to_owned);
    let of_imports = federated.awaited(&synced).ids.into_iter().next();
    [of_agents, of_imports.map(|id| id.to_string())]
}

#[test]
fn a_cluster_in_contact_is_waited_for_after_a_time_when_nobody_ran() {
    let us = Some(String::from("us-1"));
    for (phase, reach_step, of_start) in [(Phase::Ready, 20, us), (Phase::Lost, 0, None)] {
        let mut federated = resumed(saved(phase, reach_step), Saver::default());
        let mut pipeline = Pipeline::default();
        federated.take_policies(&mut pipeline, policy(&["eu-1", "us-1"]), true);
        for (seconds, expected) in [(0, &of_start), (329, &of_start), (330, &None)] {
            let found = awaited(&mut federated, &pipeline, seconds);
            assert_eq!(
                found,
                [expected.clone(), expected.clone()],
                "{phase} {seconds}"
            );
        }
    }
}

#[test]
fn a_cluster_that_never_is_lost_holds_up_what_it_is_not_known_to_export_for_a_while() {
    let mut federated = resumed(saved(Phase::Ready, 20), Saver::default());
    let mut pipeline = Pipeline::default();
    let mut objects = policy(&["eu-1", "us-1"]);
    for cluster in objects.clusters.values_mut() {
        cluster.loss.stale_ttl = Some(Duration::ZERO);
    }
    federated.take_policies(&mut pipeline, objects, true);
    let synced: BTreeSet<Arc<str>> = ["eu-1".into()].into();
    for (seconds, expected) in [(0, None), (329, None), (330, Some("us-1"))] {
        let [_, of_imports] = awaited(&mut federated, &pipeline, seconds);
        assert_eq!(of_imports.as_deref(), Some("us-1"), "it may come {seconds}");
        let overdue = federated.overdue(&synced).into_iter().next();
        assert_eq!(overdue.as_deref(), expected, "{seconds} s");
    }
}

#[tokio::test]
async fn a_cluster_missing_in_an_incomplete_policy_stays_drained_and_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (vital, _failures) = Vital::new(CancellationToken::new());
    let drain = Drain {
        to: 0,
        over: Duration::ZERO,
    };
    let saved = Saved {
        drains: [("us-1".into(), drain)].into(),
        ..saved(Phase::Ready, 20)
    };
    let mut federated = resumed(saved, Saver::start(directory.path(), &vital));
    let mut pipeline = Pipeline::default();
    let synced: BTreeSet<Arc<str>> = ["eu-1".into()].into();
    federated.take_policies(&mut pipeline, policy(&["eu-1"]), false);
    federated.tell(&mut pipeline, &synced);
    pipeline.flush();
    let us = Some(String::from("us-1"));
    for seconds in [0, 329] {
        let found = awaited(&mut federated, &pipeline, seconds);
        assert_eq!(found, [us.clone(), us.clone()], "{seconds} s");
    }
    assert_eq!(awaited(&mut federated, &pipeline, 330), [None, None]);
    // Nobody can say when its Cluster is good again.
    federated.tell(&mut pipeline, &synced);
    assert!(pipeline.kept().is_empty());

    federated.drain("eu-1", Some(drain)).unwrap();
    federated.take_policies(&mut pipeline, policy(&["eu-1", "us-1"]), true);
    assert!(federated.fleet.status("us-1").unwrap().drained);
    drop(federated);
    vital.ending.cancel();
    vital.tasks.close();
    vital.tasks.wait().await;
    let saved = Saved::read(directory.path()).unwrap();
    let drained: Vec<&str> = saved.drains.keys().map(|name| &**name).collect();
    assert_eq!(drained, ["eu-1", "us-1"]);
    assert!(saved.statuses.contains_key("us-1"));
}

#[test]
fn a_cluster_is_drained_as_long_as_its_drain_leaves_it_nothing() {
    let half = Drain {
        to: 50,
        over: Duration::ZERO,
    };
    let synced: BTreeSet<Arc<str>> = ["eu-1".into(), "us-1".into()].into();
    for (reach_step, drain_step, drain, expected) in [
        // The drain has ended, and the first step is still to come.
        (20, 0, None, (0, true, false)),
        // Lost while half of its share was drained.
        (0, 10, Some(half), (0, false, true)),
        (20, 10, Some(half), (10, false, false)),
        (20, 20, None, (20, false, false)),
    ] {
        let mut saved = saved(Phase::Ready, reach_step);
        for status in saved.statuses.values_mut() {
            status.drain_step = drain_step;
        }
        let drain = drain.map(|drain| (Arc::from("us-1"), drain));
        saved.drains.extend(drain);
        let mut federated = resumed(saved, Saver::default());
        let mut pipeline = Pipeline::default();
        federated.take_policies(&mut pipeline, policy(&["eu-1", "us-1"]), true);
        federated.tell(&mut pipeline, &synced);
        let found = state(&federated.fleet.status("us-1").unwrap());
        let found = (found.step, found.drained, found.lost);
        assert_eq!(found, expected, "{reach_step} {drain_step}");
    }
}

/// Returns `true` if anything is kept of imports, and of exports at gateways, after policies of these clusters.
fn kept_after(policies: [(&[&str], bool); 2]) -> [bool; 2] {
    let mut saved = saved(Phase::Ready, 20);
    for kept in saved.imports.values_mut() {
        kept.ips = vec!["10.112.0.1".parse().unwrap()];
    }
    let port = PortName {
        service: ImportName {
            namespace: "shop".into(),
            name: "web".into(),
        },
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let ports = GatewayPorts::from([(port, 20_001)]);
    saved.ports = [("eu-1".into(), ports)].into();
    let mut federated = resumed(saved, Saver::default());
    let mut pipeline = Pipeline::default();
    for (names, is_complete) in policies {
        federated.take_policies(&mut pipeline, policy(names), is_complete);
    }
    let kept = [
        pipeline.kept().is_empty(),
        pipeline.gateway_ports().is_empty(),
    ];
    kept.map(|is_empty| !is_empty)
}

#[test]
fn what_was_kept_for_a_cluster_that_is_gone_is_forgotten_by_a_complete_policy() {
    let both: &[&str] = &["eu-1", "us-1"];
    let without: &[&str] = &["us-1"];
    // Its Cluster may be in a file that is late.
    let found = kept_after([(without, false), (without, false)]);
    assert_eq!(found, [true; 2]);
    let found = kept_after([(without, false), (without, true)]);
    assert_eq!(found, [false; 2]);
    // It may return while the process runs.
    let found = kept_after([(both, true), (without, true)]);
    assert_eq!(found, [true; 2]);
}

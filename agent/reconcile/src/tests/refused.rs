// SPDX-License-Identifier: Apache-2.0

//! Permanently refused steps cost other Services nothing.

use std::time::Duration;

use portolan_model::Lists;

use super::*;

const NO_ACCESS: Errno = Errno::EPERM;

fn refusing(refuses: fn(&Step) -> Option<Errno>) -> Reconciler<FakeKernel> {
    let kernel = FakeKernel {
        refuses: Some(refuses),
        ..FakeKernel::default()
    };
    Reconciler::new(kernel, Config::default())
}

/// Steps about the first Service that a kernel may refuse permanently, one at a time.
fn refusals() -> [fn(&Step) -> Option<Errno>; 6] {
    [
        // No such scheduler.
        |step| {
            let is_bad = matches!(step, Step::AddVirtualServer { key, .. } if *key == vip());
            is_bad.then_some(Errno::ENOENT)
        },
        // The kernel claims that it exists, and it does not.
        |step| {
            let is_bad = matches!(step, Step::AddVirtualServer { key, .. } if *key == vip());
            is_bad.then_some(Errno::EEXIST)
        },
        |step| {
            let is_bad = matches!(step, Step::AddRealServer { key, .. } if *key == vip());
            is_bad.then_some(Errno::EINVAL)
        },
        |step| {
            let is_bad = matches!(step, Step::AddRealServer { key, .. } if *key == vip());
            is_bad.then_some(Errno::ESRCH)
        },
        // IPv6 is switched off.
        |step| {
            let vip = vip().socket().map(|socket| socket.ip());
            let is_bad = matches!(step, Step::AddRoute { vip: of, .. } if Some(*of) == vip);
            is_bad.then_some(NO_ACCESS)
        },
        |step| {
            let is_bad =
                matches!(step, Step::AddRoute { vip: of, .. } if of.to_string() == "10.96.0.1");
            is_bad.then_some(Errno::EEXIST)
        },
    ]
}

fn services(outcome: &Outcome) -> BTreeSet<String> {
    let services = outcome.errors.iter().map(|(record, _)| record.clone());
    let services = services.map(|record| record.unwrap().service.to_string());
    services.collect()
}

#[tokio::test]
async fn permanently_failing_step_costs_other_services_nothing() {
    for (number, refuses) in refusals().into_iter().enumerate() {
        let mut reconciler = refusing(refuses);
        let mut both = two(&["10.0.0.1:80"], &["10.0.0.2:80", "10.0.0.3:80"]);
        let svc = BTreeSet::from(["svc".to_owned()]);
        for _ in 0..2 {
            // The first refusal that contradicts the observed state causes a reading of the kernel.
            let outcome = reconciler.reconcile(&both).await.unwrap();
            assert_eq!(services(&outcome), svc, "refusal {number}");
            reconciler.try_again(Instant::now());
        }
        reconciler.dataplane.unreadable = 1;

        // An incremental change, a drain that ends, a glance; and the failing step by itself.
        let taken = reconciler.dataplane.applied.len();
        both = changed(&both, &["10.0.0.2:80"]);
        reconciler.reconcile(&both).await.unwrap();
        assert_eq!(reconciler.draining(&both).unwrap().len(), 1);
        assert_eq!(reconciler.finish_drains(|_| true).await.unwrap(), 0);
        assert_eq!(reconciler.glance().await.unwrap(), None, "refusal {number}");
        let about_others = |step: &&Step| refuses(step).is_none();
        let steps = &reconciler.dataplane.applied[taken..];
        assert_eq!(steps.iter().filter(about_others).count(), 2, "{steps:?}");
        for _ in 0..3 {
            let taken = reconciler.dataplane.applied.len();
            reconciler.try_again(Instant::now());
            let outcome = reconciler.reconcile(&both).await.unwrap();
            assert_eq!(services(&outcome), svc, "refusal {number}");
            let steps = &reconciler.dataplane.applied[taken..];
            assert!(!steps.is_empty());
            assert_eq!(steps.iter().filter(about_others).count(), 0, "{steps:?}");
        }
        // Changes by another program are noticed and repaired.
        let second = VirtualServerKey::new(Protocol::Tcp, "10.96.0.2".parse().unwrap(), 80);
        let servers = &mut reconciler.dataplane.state.virtual_servers;
        servers.remove(&second).unwrap();
        assert!(reconciler.glance().await.unwrap().is_some());
        assert_eq!(reconciler.dataplane.unreadable, 1, "it was never read");

        reconciler.dataplane.unreadable = 0;
        reconciler.dataplane.refuses = None;
        let outcome = reconciler.reconcile(&both).await.unwrap();
        assert_eq!((outcome.errors, outcome.again), (vec![], false));
        let wanted = reconciler.desired.read(|desired| desired.state.clone());
        assert_eq!(reconciler.dataplane.state, wanted);
    }
}

#[tokio::test]
async fn pauses_between_attempts_of_a_record_grow() {
    let mut reconciler = refusing(refusals()[0]);
    let both = two(&["10.0.0.1:80"], &["10.0.0.2:80"]);
    reconciler.reconcile(&both).await.unwrap();
    let (first, longest) = (Duration::from_secs(1), Duration::from_secs(30));
    let (mut now, mut pauses) = (Instant::now(), vec![]);
    for _ in 0..7 {
        let at = reconciler.next_attempt(now, first, longest).unwrap();
        // Changes of other records neither postpone nor advance it.
        for real_servers in [&["10.0.0.3:80"], &["10.0.0.2:80"]] {
            let taken = reconciler.dataplane.applied.len();
            let both = changed(&both, real_servers);
            reconciler.reconcile(&both).await.unwrap();
            let tried = &reconciler.dataplane.applied[taken..];
            assert!(tried.iter().all(|step| refusals()[0](step).is_none()));
            let still = reconciler.next_attempt(now + first / 2, first, longest);
            assert_eq!(still, Some(at));
        }
        pauses.push((at - now).as_secs());
        now = at;
        reconciler.try_again(at - first / 2);
        let taken = reconciler.dataplane.applied.len();
        reconciler.reconcile(&both).await.unwrap();
        let tried = reconciler.dataplane.applied[taken..].iter();
        assert_eq!(tried.filter_map(refusals()[0]).count(), 0, "not due");
        reconciler.try_again(at);
        reconciler.reconcile(&both).await.unwrap();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    reconciler.dataplane.refuses = None;
    reconciler.try_again(now + longest);
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    assert_eq!(reconciler.next_attempt(now, first, longest), None);
}

#[tokio::test]
async fn nothing_new_comes_up_while_the_rules_cannot_be_written() {
    let rules = |step: &Step| matches!(step, Step::WriteRules { .. }).then_some(Errno::EINVAL);
    let mut reconciler = refusing(rules);
    let one = table(&["10.0.0.1:80"]);
    reconciler.reconcile(&one).await.unwrap();
    // Other changes are held back too, without reading the kernel.
    reconciler.dataplane.unreadable = 1;
    let both = two(&["10.0.0.1:80"], &["10.0.0.2:80"]);
    reconciler.reconcile(&both).await.unwrap();
    assert!(reconciler.dataplane.state.virtual_servers.is_empty());
    assert!(reconciler.dataplane.state.routes.is_empty());
    reconciler.dataplane.refuses = None;
    reconciler.try_again(Instant::now());
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    assert_eq!(reconciler.dataplane.state.virtual_servers.len(), 2);
}

#[tokio::test]
async fn hairpin_entry_of_a_record_without_its_virtual_server_is_retried() {
    let endpoint = "10.0.0.1:80";
    let mut both = NodeTable::clone(&two(&[endpoint], &[endpoint]));
    let frontends = both.records.values().next().unwrap().frontends.clone();
    let keys: Vec<RecordKey> = both.records.keys().cloned().collect();
    let (first, second) = (&keys[1], &keys[0]);
    assert_eq!((&*first.service, &*second.service), ("svc", "second"));
    let of_first = both.records[first].frontends.clone();
    assert_ne!(of_first, frontends);
    // Both have one frontend, which the record that comes first gets.
    Arc::make_mut(&mut both.records[first]).frontends = frontends;
    let overlay = portolan_model::NodeOverlay {
        own: vec![endpoint.parse().unwrap()],
        ..portolan_model::NodeOverlay::default()
    };
    both.lists.insert(first.clone(), Arc::new(overlay));
    let both = Arc::new(both);
    let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
    probe.reconcile(&both).await.unwrap();
    let is_hairpin =
        |step: &Step| matches!(step, Step::AddEntries { name, .. } if name == "KUBE-LOOP-BACK");
    let bad = probe.dataplane.applied.iter().position(is_hairpin).unwrap();
    let kernel = FakeKernel {
        faults: [(bad, Fault::Entry(0, Errno::EPERM))].into(),
        ..FakeKernel::default()
    };
    let mut reconciler = Reconciler::new(kernel, Config::default());
    assert!(reconciler.reconcile(&both).await.unwrap().again);
    reconciler.try_again(Instant::now());
    reconciler.reconcile(&both).await.unwrap();
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
}

/// A table with one record, which has no local destinations under the policy `lists`.
fn taker(service: &str, lists: Lists) -> Arc<NodeTable> {
    let mut record = Record::clone(table(&["10.0.0.1:80"]).records.values().next().unwrap());
    record.key.service = service.into();
    record.available = [Family::V4].into_iter().collect();
    record.frontends[0].kind = FrontendKind::ExternalIp;
    record.frontends[0].lists = lists;
    Arc::new(NodeTable {
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
        ..NodeTable::default()
    })
}

/// Runs of a reconciler whose address passes from one record to another.
async fn handed_over(faults: BTreeMap<usize, Fault>) -> Reconciler<FakeKernel> {
    let kernel = FakeKernel {
        faults,
        ..FakeKernel::default()
    };
    let mut reconciler = Reconciler::new(kernel, Config::default());
    for table in [
        taker("before", Lists::Local),
        taker("after", Lists::Cluster),
    ] {
        reconciler.reconcile(&table).await.unwrap();
    }
    reconciler
}

#[tokio::test]
async fn surplus_entry_is_deleted_after_a_refusal_though_its_address_has_a_new_owner() {
    let is_deletion =
        |step: &Step| matches!(step, Step::DelEntries { name, .. } if name == "KUBE-NO-LOCAL");
    let kernel = handed_over(BTreeMap::new()).await.into_dataplane();
    let number = kernel.applied.iter().position(is_deletion).unwrap();

    let refused = Fault::Entry(0, NO_ACCESS);
    let mut reconciler = handed_over([(number, refused)].into()).await;
    let entries = |kernel: &FakeKernel| kernel.state.sets["KUBE-NO-LOCAL"].entries.len();
    assert_eq!(entries(&reconciler.dataplane), 1);
    reconciler.try_again(Instant::now());
    let after = taker("after", Lists::Cluster);
    let outcome = reconciler.reconcile(&after).await.unwrap();
    assert_eq!(
        (entries(&reconciler.dataplane), outcome.errors.len()),
        (0, 0)
    );
}

#[tokio::test]
async fn a_preview_names_the_scheduler_that_the_kernel_lacks() {
    let mut kernel = FakeKernel::default();
    kernel.facts.missing_schedulers = ["rr".to_owned(), "mh".to_owned()].into();
    let mut reconciler = Reconciler::new(kernel, Config::default());
    let one = table(&["10.0.0.1:80"]);
    let lacking = reconciler.preview(&one).await.unwrap().lacking;
    let told: Vec<_> = lacking.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    let text = "scheduler: the kernel has no rr, and no module ip_vs_rr: it would refuse";
    assert!(told[0].contains(text), "{told:?}");

    // What is there needs no probe.
    reconciler.dataplane.facts.missing_schedulers.clear();
    reconciler.reconcile(&one).await.unwrap();
    reconciler.dataplane.facts.missing_schedulers = ["rr".to_owned()].into();
    let lacking = reconciler.preview(&one).await.unwrap().lacking;
    assert!(lacking.is_empty(), "{lacking:?}");
}

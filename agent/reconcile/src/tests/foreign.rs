// SPDX-License-Identifier: Apache-2.0

use super::*;

#[tokio::test]
async fn changes_of_others_are_told_from_changes_of_the_table() {
    let one = table(&["10.0.0.1:80"]);
    let three = table(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let repaired = async |reconciler: &mut Reconciler<FakeKernel>, table| {
        reconciler.forget();
        reconciler.reconcile(table).await.unwrap().repaired
    };
    assert_eq!(reconciler.reconcile(&one).await.unwrap().repaired, 0);
    assert_eq!(repaired(&mut reconciler, &one).await, 0);
    assert_eq!(repaired(&mut reconciler, &three).await, 0);
    // The virtual server and the real servers that the table had before.
    reconciler.dataplane.state.virtual_servers.clear();
    assert_eq!(repaired(&mut reconciler, &three).await, 4);
    reconciler.dataplane.state.virtual_servers.clear();
    assert_eq!(repaired(&mut reconciler, &one).await, 4);
    assert_eq!(repaired(&mut reconciler, &one).await, 0);
}

#[tokio::test]
async fn refused_steps_are_no_changes_of_others() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    reconciler.dataplane.refuses = Some(|step| {
        let adds = matches!(step, Step::AddVirtualServer { .. });
        adds.then_some(Errno::ENOENT)
    });
    let table = table(&["10.0.0.1:80"]);
    for _ in 0..3 {
        reconciler.try_again(Instant::now());
        let outcome = reconciler.reconcile(&table).await.unwrap();
        assert_eq!((outcome.errors.len(), outcome.repaired), (1, 0));
        reconciler.forget();
    }
}

#[tokio::test]
async fn new_facts_are_no_changes_of_others() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let table = table(&["10.0.0.1:80"]);
    reconciler.reconcile(&table).await.unwrap();
    let source = "192.0.2.1".parse().unwrap();
    let facts = &mut reconciler.dataplane.facts;
    facts.source = [(Family::V4, source)].into();
    assert!(reconciler.refresh_facts().await.unwrap());
    reconciler.forget();
    let outcome = reconciler.reconcile(&table).await.unwrap();
    assert!(outcome.objects > 0);
    assert_eq!(outcome.repaired, 0);
}

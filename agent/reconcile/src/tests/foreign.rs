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

#[tokio::test]
async fn a_service_that_returns_is_served_again_in_a_network_that_is_or_was_excluded() {
    let excluding = Config {
        exclude_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..Config::default()
    };
    let mut reconciler = Reconciler::new(FakeKernel::default(), excluding.clone());
    reconciler
        .reconcile(&table(&["10.0.0.1:80"]))
        .await
        .unwrap();
    for (config, endpoint) in [
        (excluding, "10.0.0.2:80"),
        (Config::default(), "10.0.0.3:80"),
    ] {
        reconciler.reconcile(&Arc::default()).await.unwrap();
        let kernel = reconciler.into_dataplane();
        assert!(kernel.state.virtual_servers.contains_key(&vip()));
        reconciler = Reconciler::new(kernel, config);
        let outcome = reconciler.reconcile(&table(&[endpoint])).await.unwrap();
        assert_eq!(outcome.errors, []);
        let server = &reconciler.dataplane.state.virtual_servers[&vip()];
        let address: SocketAddr = endpoint.parse().unwrap();
        assert!(server.real_servers.contains_key(&address));
    }
    // The exclusion is over: it goes with its Service.
    reconciler.reconcile(&Arc::default()).await.unwrap();
    assert!(reconciler.dataplane.state.virtual_servers.is_empty());
}

#[tokio::test]
async fn a_virtual_server_of_others_in_an_excluded_network_is_left_untouched() {
    let mut others = Reconciler::new(FakeKernel::default(), Config::default());
    others.reconcile(&table(&["10.0.0.9:80"])).await.unwrap();
    let mut kernel = FakeKernel::default();
    kernel.state.virtual_servers = others.into_dataplane().state.virtual_servers;
    let before = kernel.state.virtual_servers.clone();
    let excluding = Config {
        exclude_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..Config::default()
    };
    let mut reconciler = Reconciler::new(kernel, excluding);
    for wanted in [table(&["10.0.0.1:80"]), Arc::default()] {
        reconciler.reconcile(&wanted).await.unwrap();
        assert_eq!(reconciler.dataplane.state.virtual_servers, before);
    }
}

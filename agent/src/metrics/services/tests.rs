// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_dataplane::FakeKernel;
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record,
};
use portolan_plan::Config;
use portolan_reconcile::Reconciler;
use proptest::prelude::*;

use super::*;
use crate::subscribe::Subscribed;

fn port(name: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "shop".into(),
        service: name.into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

fn server(last: u8) -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, last].into(), 80)
}

fn counted(count: u64) -> Totals {
    Totals {
        connections: count,
        bytes_in: 10 * count,
        bytes_out: 100 * count,
    }
}

fn records(of: &[(u8, &str)]) -> BTreeMap<VirtualServerKey, RecordKey> {
    of.iter()
        .map(|(last, name)| (server(*last), port(name)))
        .collect()
}

fn read(of: &[(u8, u64)]) -> ReadTotals {
    of.iter()
        .map(|(last, count)| (server(*last), counted(*count)))
        .collect()
}

#[test]
fn sums_grow_while_virtual_servers_come_and_go() {
    let mut sums = Sums::new(10);
    // Two addresses of one port, and a virtual server of nobody.
    let both = records(&[(1, "web"), (2, "web")]);
    sums.update(&both, &read(&[(1, 3), (2, 4), (9, 99)]));
    assert_eq!(sums.of, [(port("web"), counted(7))].into());
    sums.update(&both, &read(&[(1, 5), (2, 4)]));
    assert_eq!(sums.of[&port("web")], counted(9));
    // One address goes, and the other one is made anew.
    sums.update(&records(&[(1, "web")]), &read(&[(1, 1)]));
    assert_eq!(sums.of[&port("web")], counted(10));
    // A reading lacks it.
    sums.update(&records(&[(1, "web")]), &read(&[]));
    sums.update(&records(&[(1, "web")]), &read(&[(1, 2)]));
    assert_eq!(sums.of[&port("web")], counted(11));
    sums.update(&records(&[]), &read(&[(1, 9)]));
    assert!(sums.of.is_empty() && sums.last.is_empty());
}

#[test]
fn ports_beyond_the_limit_are_counted_and_take_no_place() {
    let mut sums = Sums::new(2);
    sums.update(&records(&[(2, "b"), (3, "c"), (4, "d")]), &read(&[(4, 4)]));
    let names = |sums: &Sums| {
        sums.of
            .keys()
            .map(|key| key.service.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&sums), sums.omitted),
        (vec!["b".into(), "c".into()], 1)
    );
    assert!(sums.last.len() <= 2);
    // One that is first by name does not take the place of another.
    sums.update(&records(&[(1, "a"), (3, "c"), (4, "d")]), &read(&[]));
    assert_eq!(
        (names(&sums), sums.omitted),
        (vec!["a".into(), "c".into()], 1)
    );
    sums.update(&records(&[(1, "a"), (3, "c"), (2, "b")]), &read(&[]));
    assert_eq!(names(&sums), ["a", "c"]);
}

/// A status with the programmed Service `shop/web`, port `http`.
async fn status() -> Status {
    let frontend = FrontendAddress::Vip([10, 96, 0, 1].into());
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, frontend, 80)],
        destinations: vec![Destination::new(([10, 244, 0, 1], 8080).into())],
        ..Record::new(port("web"))
    };
    let table = Arc::new(NodeTable {
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
        ..NodeTable::default()
    });
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let outcome = reconciler.reconcile(&table).await.unwrap();
    let status = Status::default();
    let target = Subscribed::new((0, 7), table);
    status.update(&target, Some(reconciler.desired().clone()), &outcome);
    status
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[tokio::test]
async fn a_scrape_reads_the_kernel_and_the_next_one_does_not() {
    let readings = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&readings);
    let kernel = move || match counting.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(read(&[(1, 3)])),
        _ => Err(std::io::Error::other("gone").into()),
    };
    let mut registry = Registry::with_prefix("portolan_agent");
    registry.register_collector(Box::new(ServiceCollector::with(status().await, 10, kernel)));
    let expected = [
        "portolan_agent_service_connections_total{cluster=\"\",namespace=\"shop\",service=\"web\",port=\"http\",protocol=\"TCP\"} 3",
        "portolan_agent_service_bytes_total{cluster=\"\",namespace=\"shop\",service=\"web\",port=\"http\",protocol=\"TCP\",direction=\"out\"} 300",
        "portolan_agent_service_metrics_omitted 0",
    ];
    for _ in 0..2 {
        let text = scrape(&registry);
        for line in expected {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
    assert_eq!(readings.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn counters_that_cannot_be_read_stay_as_they_were() {
    let mut registry = Registry::with_prefix("portolan_agent");
    let kernel = || Err(std::io::Error::other("no IPVS").into());
    registry.register_collector(Box::new(ServiceCollector::with(status().await, 10, kernel)));
    let text = scrape(&registry);
    assert!(!text.contains("service_connections_total{"), "{text}");
}

#[test]
fn a_dataplane_that_takes_the_place_of_ipvs_leaves_no_counters() {
    // Its status has no desired virtual servers.
    let collector = ServiceCollector::sample();
    let mut state = collector.state.lock().unwrap();
    state.read_at = Instant::now().checked_sub(PAUSE);
    collector.update(&mut state);
    assert!(state.sums.of.is_empty(), "{:?}", state.sums);
    assert_eq!(state.sums.limit, 1);
}

proptest! {
    /// A counter of Prometheus never falls.
    #[test]
    fn no_sum_ever_falls(readings in prop::collection::vec(prop::collection::vec((0_u8..4, 0_u64..9), 0..4), 1..12)) {
        let records = records(&[(0, "a"), (1, "a"), (2, "b"), (3, "c")]);
        let mut sums = Sums::new(2);
        let mut before = BTreeMap::new();
        for reading in readings {
            sums.update(&records, &read(&reading));
            for (port, sum) in &sums.of {
                let old: Totals = before.insert(port.clone(), *sum).unwrap_or_default();
                prop_assert!(sum.connections >= old.connections && sum.bytes_out >= old.bytes_out);
            }
        }
    }
}

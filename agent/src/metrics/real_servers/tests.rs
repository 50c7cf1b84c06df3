// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_dataplane::FakeKernel;
use portolan_model::ipvs::{Connections, ForwardingMethod, Thresholds};
use portolan_model::{
    AdministrativeState, Balancing, Destination, Frontend, FrontendAddress, FrontendKind,
    NodeTable, Profile, Protocol, RecordKey,
};
use portolan_plan::Config;
use portolan_reconcile::Reconciler;

use super::*;
use crate::subscribe::Subscribed;

fn address(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 8080).into()
}

fn key() -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, 10].into(), 80)
}

/// The load balancer `shop/web` with a backend of weight 3.
fn balancer() -> Record {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::Enabled,
    };
    let vip = FrontendAddress::Vip([192, 0, 2, 10].into());
    Record {
        frontends: vec![Frontend::new(FrontendKind::Balanced, vip, 80)],
        destinations: vec![Destination {
            weight: 3,
            ..Destination::new(address(11))
        }],
        balancing: Some(Arc::new(Balancing {
            profiles: vec![profile],
            profile_of: vec![0],
            ..Balancing::default()
        })),
        ..Record::new(record_key("web"))
    }
}

/// A Service of Kubernetes, which is no load balancer.
fn service() -> Record {
    let address = FrontendAddress::Vip([10, 96, 0, 1].into());
    Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, address, 80)],
        destinations: vec![Destination::new(([10, 244, 0, 1], 8080).into())],
        ..Record::new(record_key("api"))
    }
}

fn record_key(name: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "shop".into(),
        service: name.into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

/// A status after both were programmed.
async fn status() -> Status {
    let records = [balancer(), service()];
    let records = records.map(|record| (record.key.clone(), Arc::new(record)));
    let table = Arc::new(NodeTable {
        records: records.into_iter().collect(),
        ..NodeTable::default()
    });
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let outcome = reconciler.reconcile(&table).await.unwrap();
    let status = Status::default();
    let target = Subscribed::new((0, 7), table);
    status.update(&target, Some(reconciler.desired().clone()), &outcome);
    status
}

/// The kernel's answer: the backend, and a sorry server.
fn answer() -> SomeUsage {
    let used = Usage {
        weight: 2,
        connections: Connections {
            active: 4,
            inactive: 5,
            persistent: 6,
        },
        total_connections: 7,
        packets_in: 8,
        packets_out: 9,
        bytes_in: 10,
        bytes_out: 11,
    };
    let servers = [(address(11), used), (address(99), Usage::default())];
    SomeUsage {
        usage: [(key(), servers.into())].into(),
        is_truncated: false,
        buckets: 4096,
    }
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[tokio::test]
async fn a_scrape_tells_the_use_and_the_weights_of_real_servers() {
    let readings = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&readings);
    let kernel = move |keys: &[VirtualServerKey], limit: usize| {
        // The Service is not read.
        assert_eq!((keys, limit), (&[key()][..], 10));
        counting.fetch_add(1, Ordering::Relaxed);
        Ok(answer())
    };
    let mut registry = Registry::default();
    let collector = RealServerCollector::with(status().await, 10, kernel);
    registry.register_collector(Box::new(collector));
    let of = concat!(
        r#"{namespace="shop",name="web",frontend="http","#,
        r#"virtual_server="TCP/192.0.2.10:80",backend="10.0.0.11:8080""#,
    );
    for _ in 0..2 {
        let text = scrape(&registry);
        for line in [
            format!("real_server_connections_total{of}}} 7"),
            format!(r#"real_server_packets_total{of},direction="in"}} 8"#),
            format!(r#"real_server_packets_total{of},direction="out"}} 9"#),
            format!(r#"real_server_bytes_total{of},direction="in"}} 10"#),
            format!(r#"real_server_bytes_total{of},direction="out"}} 11"#),
            format!(r#"real_server_connections_current{of},state="active"}} 4"#),
            format!(r#"real_server_connections_current{of},state="inactive"}} 5"#),
            format!(r#"real_server_connections_current{of},state="persistent"}} 6"#),
            format!("real_server_weight{of}}} 2"),
            format!("real_server_weight_configured{of}}} 3"),
            "backend_metrics_truncated 0".to_owned(),
            "ipvs_connection_table_buckets 4096".to_owned(),
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        // The sorry server has a weight, but none of the table.
        let series = |name: &str| text.matches(&format!("\n{name}{{")).count();
        assert_eq!(series("real_server_weight"), 2, "{text}");
        assert_eq!(series("real_server_weight_configured"), 1, "{text}");
    }
    assert_eq!(readings.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_kernel_that_cannot_be_read_leaves_no_numbers() {
    let mut registry = Registry::default();
    let kernel = |_: &[VirtualServerKey], _: usize| Err(std::io::Error::other("no IPVS").into());
    let collector = RealServerCollector::with(status().await, 10, kernel);
    let sample = RealServerCollector::sample();
    let of_before = std::mem::take(&mut sample.state.lock().unwrap().servers);
    collector.state.lock().unwrap().servers = of_before;
    registry.register_collector(Box::new(collector));
    let text = scrape(&registry);
    assert!(!text.contains("real_server_weight{"), "{text}");
    assert!(!text.contains("ipvs_connection_table_buckets"), "{text}");
}

#[test]
fn a_dataplane_that_takes_the_place_of_ipvs_leaves_no_numbers() {
    // Its status has no desired virtual servers.
    let collector = RealServerCollector::sample();
    let mut state = collector.state.lock().unwrap();
    state.read_at = Instant::now().checked_sub(PAUSE);
    collector.update(&mut state);
    assert!(state.servers.is_empty(), "{:?}", state.servers);
    assert_eq!((state.buckets, state.is_truncated), (None, false));
}

#[test]
fn without_the_flag_there_is_no_collector() {
    let mut registry = Registry::default();
    RealServerCollector::register(&Status::default(), 0, &mut registry);
    assert!(!scrape(&registry).contains("backend_metrics_truncated"));
    RealServerCollector::register(&Status::default(), 1, &mut registry);
    assert!(scrape(&registry).contains("backend_metrics_truncated 0"));
}

#[test]
fn more_than_two_connections_for_each_bucket_are_a_crowd() {
    let balanced = [(key(), Arc::new(balancer()))];
    let mut state = State::default();
    // Fifteen entries of the table.
    for (buckets, is_crowded) in [(8, false), (7, true), (0, false)] {
        let read = SomeUsage {
            buckets,
            ..answer()
        };
        state.take(&balanced, read);
        assert_eq!(state.is_crowded, is_crowded, "{buckets}");
    }
}

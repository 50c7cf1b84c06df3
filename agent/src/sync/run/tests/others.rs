// SPDX-License-Identifier: Apache-2.0

//! Objects of other programs, and changes by them.

use portolan_model::ipvs::{ForwardingMethod, Thresholds};
use portolan_model::{AdministrativeState, Balancing, Profile};
use portolan_plan::host::Host;
use portolan_plan::kube_proxy::VIP_DEVICE;

use super::*;

pub(super) fn metric(rig: &Rig, name: &str) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &rig.registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name}\n{text}"))
        .trim()
        .to_owned()
}

/// The clock is not paused: answers arrive in real time.
#[tokio::test]
async fn nothing_is_programmed_while_a_kube_proxy_runs() {
    let (address, kube_proxy) = crate::kube_proxy::fake_kube_proxy().await;
    let search = Search {
        metrics: Some(address),
        ..Search::default()
    };
    let (kernel, state) = (Shared::default(), tempfile::tempdir().unwrap());
    let clock = boot_clock(Instant::now());
    let mut rig = Rig::searching(kernel, state, clock, search);
    let waits = tokio::time::timeout(Duration::from_millis(500), rig.put(1, tcp(&[STAYS])));
    assert!(waits.await.is_err());
    assert!(rig.kernel.0.lock().await.applied.is_empty());
    assert_eq!(metric(&rig, "portolan_agent_takeover_pending"), "1");
    kube_proxy.abort();
    rig.programmed(1).await;
    assert_eq!(rig.weight(STAYS).await, Some(1));
    assert_eq!(metric(&rig, "portolan_agent_takeover_pending"), "0");
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_a_kube_proxy_go_after_the_first_table() {
    let kernel = Shared::default();
    let addresses: BTreeSet<IpAddr> = (0..300_u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            [10, 97, high, low].into()
        })
        .collect();
    let device = VIP_DEVICE.to_owned();
    kernel.0.lock().await.devices.insert(device, addresses);
    let clock = boot_clock(Instant::now());
    let mut rig = Rig::with(kernel, tempfile::tempdir().unwrap(), clock);
    pass(60).await;
    assert_eq!(rig.kernel.0.lock().await.devices.len(), 1);
    rig.put(1, tcp(&[STAYS])).await;
    pass(1).await;
    assert!(rig.kernel.0.lock().await.devices.is_empty());
    assert_eq!(metric(&rig, "portolan_agent_takeover_pending"), "0");
    assert_eq!(rig.weight(STAYS).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn drift_is_counted_while_a_service_has_an_error() {
    let mut rig = Rig::start();
    let counted = "portolan_agent_drift_repaired_total";
    let bad = VirtualServerKey::new(Protocol::Tcp, "10.96.0.9".parse().unwrap(), 80);
    rig.kernel.0.lock().await.refuses = Some(|step| {
        let bad = step.virtual_server()?.socket()?.ip().to_string() == "10.96.0.9";
        bad.then_some(portolan_dataplane::Errno::ENOENT)
    });
    let mut both = tcp(&[STAYS]);
    let mut second = record(Protocol::Tcp, &[STAYS]);
    second.key.service = "bad".into();
    let vip = FrontendAddress::Vip("10.96.0.9".parse().unwrap());
    second.frontends = vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)];
    both.records.insert(second.key.clone(), Arc::new(second));
    rig.put(1, both).await;
    pass(100).await;
    assert_eq!(metric(&rig, "portolan_agent_errors_current"), "1");
    assert_eq!(metric(&rig, counted), "0");
    rig.kernel.0.lock().await.state.virtual_servers.clear();
    pass(30).await;
    assert_eq!(rig.weight(STAYS).await, Some(1));
    // The virtual server and its real server, and nothing of the Service that fails.
    assert_eq!(metric(&rig, counted), "2");
    pass(100).await;
    assert_eq!(metric(&rig, counted), "2");
    // A refused object that works at last is no repair either.
    rig.kernel.0.lock().await.refuses = None;
    pass(100).await;
    let kernel = rig.kernel.0.lock().await;
    assert!(kernel.state.virtual_servers.contains_key(&bad));
    drop(kernel);
    assert_eq!(metric(&rig, counted), "2");
}

#[tokio::test(start_paused = true)]
async fn repaired_objects_are_counted() {
    let mut rig = Rig::start();
    let counted = "portolan_agent_drift_repaired_total";
    rig.put(1, tcp(&[STAYS])).await;
    pass(60).await;
    assert_eq!(metric(&rig, counted), "0");
    // Changes of a table are no repairs.
    rig.put(2, tcp(&[STAYS, LEAVES])).await;
    pass(30).await;
    assert_eq!(metric(&rig, counted), "0");
    rig.kernel.0.lock().await.state.virtual_servers.clear();
    pass(30).await;
    assert_eq!(rig.weight(STAYS).await, Some(1));
    // The virtual server and two real servers.
    assert_eq!(metric(&rig, counted), "3");
}

/// A table with a load balancer, which has a scheduler.
fn balanced(scheduler: &str) -> NodeTable {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::default(),
    };
    let balancing = Balancing {
        profiles: vec![profile],
        profile_of: vec![0],
        ..Balancing::default()
    };
    let mut balanced = record(Protocol::Tcp, &[STAYS]);
    balanced.frontends[0].kind = FrontendKind::Balanced;
    balanced.scheduling.scheduler = Some(scheduler.into());
    balanced.balancing = Some(Arc::new(balancing));
    table(balanced)
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_a_stateless_director_excludes_is_an_error_of_its_record() {
    let mut rig = Rig::start();
    let host = Host {
        is_stateless: true,
        ..Host::default()
    };
    rig.asked.send_replace(Some(Asked {
        number: 1,
        host: Arc::new(host),
    }));
    let errors = |rig: &Rig| rig.reports.borrow().as_ref().unwrap().errors.clone();
    rig.put(1, balanced("wlc")).await;
    let key = record(Protocol::Tcp, &[]).key;
    let error = "scheduler \"wlc\": expected \"mh\", by spec.statelessFailover of the host's \
                 Director";
    assert_eq!(errors(&rig), [(Some(key), error.to_owned())]);
    // It is programmed all the same.
    assert_eq!(rig.weight(STAYS).await, Some(1));
    rig.put(2, balanced("mh")).await;
    assert_eq!(errors(&rig), []);
    // A Service has no scheduler of a Director.
    rig.put(3, tcp(&[STAYS])).await;
    assert_eq!(errors(&rig), []);
}

// SPDX-License-Identifier: Apache-2.0

//! The engine with real probes of real servers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_health::{Administrative, Assigned, Backend, LoadBalancer};
use portolan_model::check::{Check, HealthPolicy, Probe, TcpProbe};
use portolan_probe::{
    Clock, Context, Engine, Health, Inputs, Limits, Overrides, StateFile, Wanted,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

fn balancer(addresses: &[SocketAddr]) -> LoadBalancer {
    let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
    check.timers.interval = Duration::from_millis(200);
    check.timers.fast_interval = Duration::from_millis(50);
    let checks: Arc<[Assigned]> = [Assigned::direct(check)].into();
    let backend = Backend {
        weight: 3,
        checks,
        administrative: Administrative::Enabled,
        serves_already: false,
    };
    LoadBalancer {
        name: "default/web".into(),
        frontend: "TCP/192.0.2.10:80".into(),
        policy: HealthPolicy::default(),
        has_sorry_server: true,
        backends: addresses
            .iter()
            .map(|each| (*each, backend.clone()))
            .collect(),
    }
}

async fn until(
    health: &mut watch::Receiver<Health<u8>>,
    weights: &[(SocketAddr, u16)],
    sorry: bool,
) {
    let fits = |health: &Health<u8>| {
        health.get(&1).is_some_and(|verdicts| {
            let fits = |(address, weight): &(SocketAddr, u16)| {
                verdicts.backends[address].weight == *weight
            };
            weights.iter().all(fits) && verdicts.sorry == sorry
        })
    };
    tokio::time::timeout(PATIENCE, health.wait_for(fits))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn servers_go_and_come_back_and_the_file_has_their_states() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (a, b) = (first.local_addr().unwrap(), second.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::new(directory.path());
    let wanted: Wanted<u8> = [(1, Arc::new(balancer(&[a, b])))].into_iter().collect();
    let (_wanted, wanted) = watch::channel(wanted);
    let (_overrides, overrides) = watch::channel(Overrides::new());
    let (_, suspended) = watch::channel(false);
    let (_, limits) = watch::channel(Limits::default());
    let inputs = Inputs {
        wanted,
        overrides,
        suspended,
        limits,
    };
    let clock = Clock::new("boot", Duration::from_secs(1));
    let (engine, mut handle) = Engine::new(Context::default(), None, clock, inputs, None);
    let token = CancellationToken::new();
    let engine = tokio::spawn(engine.run(token.clone()));
    let keeper = tokio::spawn(file.clone().keep(handle.saved.clone()));

    until(&mut handle.health, &[(a, 3), (b, 3)], false).await;
    drop(second);
    until(&mut handle.health, &[(a, 3), (b, 0)], false).await;
    drop(first);
    until(&mut handle.health, &[(a, 0), (b, 0)], true).await;
    let _second = TcpListener::bind(b).await.unwrap();
    until(&mut handle.health, &[(a, 0), (b, 3)], false).await;

    token.cancel();
    engine.await.unwrap();
    keeper.await.unwrap();
    let saved = file.load::<u8>().unwrap().unwrap();
    let states: Vec<_> = saved.balancers[0]
        .backends
        .iter()
        .map(|each| (each.address, each.state))
        .collect();
    let state = |of: SocketAddr| states.iter().find(|(address, _)| *address == of).unwrap().1;
    assert!(state(b).is_up() && !state(a).is_up(), "{states:?}");
}

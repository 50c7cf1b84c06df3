// SPDX-License-Identifier: Apache-2.0

//! Probes of the agent's ports for the kubelet and for balancers, while strangers hold as many
//! connections to them as they can.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use portolan_agent::health::Health;
use portolan_agent::health_check::{HealthCheck, HealthChecks, ServiceKey};
use portolan_agent::healthz::Healthz;
use portolan_model::Family;
use portolan_runtime::{Connections, serve_http};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::probes::{attack, many_addresses, one_address};

/// The agent's two kinds of ports, on a runtime of their own.
struct Ports {
    healthz: SocketAddr,
    health_check: SocketAddr,
    _end: DropGuard,
}

impl Ports {
    fn start() -> Self {
        let (say, said) = mpsc::channel();
        let end = CancellationToken::new();
        let ending = end.clone();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let health = Health::new(Family::ALL, Duration::from_secs(30));
                health.set_eligible(true);
                let healthz = healthz(health.clone(), &ending).await;
                let (checks, health_check) = health_check(health).await;
                say.send((healthz, health_check)).unwrap();
                ending.cancelled().await;
                drop(checks);
            });
        });
        let (healthz, health_check) = said.recv().unwrap();
        Self {
            healthz,
            health_check,
            _end: end.drop_guard(),
        }
    }
}

async fn healthz(health: Health, ending: &CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Healthz::register(health, &mut Registry::default()).router();
    let serving = serve_http(listener, router, Connections::default(), ending.clone());
    tokio::spawn(serving);
    address
}

/// The listeners of a Service with a health check node port and an endpoint here.
async fn health_check(health: Health) -> (HealthChecks, SocketAddr) {
    let [port] = portolan_e2e::ports::reserve().unwrap();
    let mut registry = Registry::default();
    let families = vec![Family::V4];
    let mut checks = HealthChecks::register(families, Default::default(), health, &mut registry);
    let service = ServiceKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: "web".into(),
    };
    let endpoints = BTreeMap::from([(Family::V4, 1)]);
    let wanted = BTreeMap::from([(service, HealthCheck { port, endpoints })]);
    let loopback = BTreeSet::from([IpAddr::from(Ipv4Addr::LOCALHOST)]);
    checks.apply(&wanted, &loopback).await;
    (checks, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthz_answers_while_one_address_holds_all_it_can() {
    let ports = Ports::start();
    attack(
        "healthz_one_address",
        ports.healthz,
        "/healthz",
        one_address,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthz_answers_while_many_addresses_hold_all_they_can() {
    let ports = Ports::start();
    attack(
        "healthz_many_addresses",
        ports.healthz,
        "/livez",
        many_addresses,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_check_answers_while_one_address_holds_all_it_can() {
    let ports = Ports::start();
    attack(
        "health_check_one_address",
        ports.health_check,
        "/",
        one_address,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_check_answers_while_many_addresses_hold_all_they_can() {
    let ports = Ports::start();
    attack(
        "health_check_many_addresses",
        ports.health_check,
        "/",
        many_addresses,
    )
    .await;
}

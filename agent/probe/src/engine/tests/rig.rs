// SPDX-License-Identifier: Apache-2.0

//! An engine with made-up probes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use portolan_health::{Administrative, Assigned, Backend, LoadBalancer, Outcome, Saved, Verdicts};
use portolan_model::check::{Check, ExecProbe, HealthPolicy, Probe, TcpProbe, WeightFrom};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Target;
use crate::engine::{Clock, Engine, Handle, Inputs, Limits, Overrides, Prober, Wanted};

/// The time since boot at which every engine starts.
pub(super) const BOOT: Duration = Duration::from_secs(5_000);

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Answers of servers, and the probes that there were.
#[derive(Debug, Clone, Default)]
pub(super) struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The time until the answer, and the answer; a pass at once for others.
    answers: BTreeMap<SocketAddr, (Duration, Outcome)>,
    started: Vec<(Instant, SocketAddr)>,
    running: usize,
    most_running: usize,
}

impl World {
    pub(super) fn answers(&self, port: u16, after: Duration, outcome: Outcome) {
        self.0
            .lock()
            .unwrap()
            .answers
            .insert(address(port), (after, outcome));
    }

    pub(super) fn refuses(&self, port: u16) {
        self.answers(port, Duration::ZERO, Outcome::fail("connection refused"));
    }

    pub(super) fn passes(&self, port: u16) {
        self.answers(port, Duration::ZERO, Outcome::pass());
    }

    /// The times of the probes of one server.
    pub(super) fn probes(&self, port: u16) -> Vec<Instant> {
        let state = self.0.lock().unwrap();
        let those = state.started.iter().filter(|(_, to)| *to == address(port));
        those.map(|(at, _)| *at).collect()
    }

    /// The times of all probes.
    pub(super) fn all(&self) -> Vec<Instant> {
        self.0
            .lock()
            .unwrap()
            .started
            .iter()
            .map(|(at, _)| *at)
            .collect()
    }

    pub(super) fn most_running(&self) -> usize {
        self.0.lock().unwrap().most_running
    }
}

impl Prober for World {
    fn probe(&self, check: Arc<Check>, target: Target, _: Instant) -> BoxFuture<'static, Outcome> {
        let world = self.clone();
        let mut state = self.0.lock().unwrap();
        state.started.push((Instant::now(), target.address));
        state.running += 1;
        state.most_running = state.most_running.max(state.running);
        let known = state.answers.get(&target.address).cloned();
        let (after, outcome) = known.unwrap_or((Duration::ZERO, Outcome::pass()));
        let timeout = check.timers.timeout;
        Box::pin(async move {
            sleep(after.min(timeout)).await;
            world.0.lock().unwrap().running -= 1;
            if after < timeout {
                outcome
            } else {
                Outcome::fail("not done")
            }
        })
    }
}

pub(super) fn check() -> Check {
    Check::new(Probe::Tcp(TcpProbe::default()))
}

pub(super) fn program() -> Check {
    Check::new(Probe::Exec(ExecProbe {
        command: vec!["/bin/true".to_owned()],
        weight_from: WeightFrom::None,
    }))
}

/// A load balancer with backends of weight 1 at some ports.
pub(super) fn balancer(check: &Check, ports: impl IntoIterator<Item = u16>) -> LoadBalancer {
    let checks: Arc<[Assigned]> = [Assigned::direct(check.clone())].into();
    let backend = || Backend {
        weight: 1,
        checks: Arc::clone(&checks),
        administrative: Administrative::Enabled,
        serves_already: false,
    };
    LoadBalancer {
        name: "default/web".into(),
        frontend: "TCP/192.0.2.10:80".into(),
        policy: HealthPolicy::default(),
        has_sorry_server: false,
        backends: ports
            .into_iter()
            .map(|port| (address(port), backend()))
            .collect(),
    }
}

/// A running engine.
pub(super) struct Rig {
    pub(super) world: World,
    pub(super) wanted: watch::Sender<Wanted<u32>>,
    pub(super) overrides: watch::Sender<Overrides<u32>>,
    pub(super) suspended: watch::Sender<bool>,
    pub(super) limits: watch::Sender<Limits>,
    pub(super) handle: Handle<u32>,
    pub(super) start: Instant,
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Rig {
    pub(super) fn new(balancers: impl IntoIterator<Item = LoadBalancer>) -> Self {
        Self::with(World::default(), balancers, Limits::default(), None)
    }

    pub(super) fn with(
        world: World,
        balancers: impl IntoIterator<Item = LoadBalancer>,
        limits: Limits,
        saved: Option<Saved<u32>>,
    ) -> Self {
        let balancers = balancers.into_iter().map(Arc::new);
        let (wanted, wanted_receiver) = watch::channel((1u32..).zip(balancers).collect());
        let (overrides, overrides_receiver) = watch::channel(Overrides::new());
        let (suspended, suspended_receiver) = watch::channel(false);
        let (limits, limits_receiver) = watch::channel(limits);
        let inputs = Inputs {
            wanted: wanted_receiver,
            overrides: overrides_receiver,
            suspended: suspended_receiver,
            limits: limits_receiver,
        };
        let clock = Clock::new("boot", BOOT);
        let (engine, handle) = Engine::new(world.clone(), Some(7), clock, inputs, saved);
        let token = CancellationToken::new();
        Self {
            world,
            wanted,
            overrides,
            suspended,
            limits,
            handle,
            start: Instant::now(),
            task: tokio::spawn(engine.run(token.clone())),
            token,
        }
    }

    /// Replaces a load balancer.
    pub(super) fn put(&self, key: u32, balancer: LoadBalancer) {
        self.wanted.send_modify(|wanted| {
            wanted.insert(key, Arc::new(balancer));
        });
    }

    /// The verdicts of now.
    pub(super) fn verdicts(&self, key: u32) -> Arc<Verdicts> {
        Arc::clone(&self.handle.health.borrow()[&key])
    }

    pub(super) fn weights(&self, key: u32) -> Vec<u16> {
        self.verdicts(key)
            .backends
            .values()
            .map(|each| each.weight)
            .collect()
    }

    /// The time since the start at which a load balancer first has these weights.
    pub(super) async fn until(&mut self, key: u32, weights: &[u16]) -> Duration {
        let has = |health: &crate::Health<u32>| {
            let verdicts = health.get(&key);
            verdicts.is_some_and(|verdicts| {
                verdicts
                    .backends
                    .values()
                    .map(|each| each.weight)
                    .eq(weights.iter().copied())
            })
        };
        let changed = self.handle.health.wait_for(has);
        tokio::time::timeout(seconds(600), changed)
            .await
            .unwrap()
            .unwrap();
        self.start.elapsed()
    }

    pub(super) async fn end(self) -> Saved<u32> {
        self.token.cancel();
        self.task.await.unwrap();
        Saved::clone(&self.handle.saved.borrow())
    }
}

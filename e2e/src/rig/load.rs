// SPDX-License-Identifier: Apache-2.0

//! A load generator: new connections one after the other, every failure recorded.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::{Answer, Connection, RequestError};
use super::evidence;
use super::host::{Host, Protocol};
use crate::wait::pause;

/// The failures of a load with evidence.
const EXAMPLES: usize = 3;

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// TCP: a new connection for each request. UDP: a new source port.
    pub protocol: Protocol,
    /// The number of threads that send requests.
    pub workers: u64,
    /// The most requests that each of them sends.
    pub limit: u64,
    /// The pause between two requests of one worker.
    pub pause: Duration,
    /// The time after which a request counts as failed.
    pub timeout: Duration,
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self {
            protocol: Protocol::Tcp,
            workers: 2,
            // Together with the pause, this keeps below the number of source ports for one target.
            limit: 10_000,
            pause: Duration::from_millis(2),
            timeout: Duration::from_secs(2),
        }
    }
}

/// A request that got no answer.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The start of the request, relative to the start of the load.
    pub at: Duration,
    /// The address that it was sent to.
    pub target: SocketAddr,
    /// The error.
    pub error: RequestError,
    /// The kernels' state of one of the first failures: see [`evidence::of_port`].
    pub evidence: Vec<String>,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// All requests that ended, answered or not.
    pub requests: u64,
    /// Requests without an answer.
    pub failures: Vec<Failure>,
    /// The number of requests that each host answered, by name.
    pub by_name: BTreeMap<String, u64>,
    /// The answered request that took longest.
    pub slowest: Slowest,
}

/// A request, and where its time went: a lost connection request is repeated after 1, 3, 7 and 15 s, a lost
/// segment after 0.2, 0.6, 1.4 s and so on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowest {
    /// The start of the request, relative to the start of the load.
    pub at: Duration,
    /// The time until it was connected.
    pub connected: Duration,
    /// The time until it was answered.
    pub answered: Duration,
}

impl fmt::Display for Slowest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            connected,
            answered,
        } = self;
        write!(
            f,
            "{answered:?} (connected in {connected:?}, begun at {at:?})"
        )
    }
}

/// A running load. Dropping it stops it too.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    config: LoadConfig,
    targets: Vec<SocketAddr>,
    start: Instant,
    stopped: AtomicBool,
    report: Mutex<LoadReport>,
}

impl Load {
    /// Starts to send requests from a host to the targets in turn.
    pub fn start(host: &Host, targets: &[SocketAddr], config: LoadConfig) -> Result<Self> {
        let shared = Arc::new(Shared {
            targets: targets.to_vec(),
            start: Instant::now(),
            stopped: AtomicBool::new(false),
            report: Mutex::default(),
            config,
        });
        let workers = (0..shared.config.workers)
            .map(|worker| {
                let (shared, namespace) = (Arc::clone(&shared), host.namespace().clone());
                thread::Builder::new()
                    .name(format!("load-{worker}"))
                    .spawn(move || match namespace.enter() {
                        Ok(()) => shared.work(worker),
                        Err(error) => shared.give_up(&error),
                    })
                    .context("start a worker")
            })
            .collect::<Result<_>>()?;
        Ok(Self { shared, workers })
    }

    /// The number of requests answered so far, to wait until the load flows.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.lock().by_name.values().sum()
    }

    /// The number of requests failed so far.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.shared.lock().failures.len()
    }

    /// The failures so far.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.shared.lock().failures.clone()
    }

    /// Stops once the requests in flight have ended, and returns the report.
    #[must_use]
    pub fn stop(mut self) -> LoadReport {
        self.join();
        std::mem::take(&mut self.shared.lock())
    }

    fn join(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.join();
    }
}

impl Shared {
    fn work(&self, worker: u64) {
        let turns = self.targets.iter().cycle();
        // Each worker starts at another target.
        for target in turns
            .skip(usize::try_from(worker).unwrap_or(0))
            .take(self.limit())
        {
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let begun = Instant::now();
            let result = self.request(*target, begun);
            self.record(*target, begun, result);
            pause(self.config.pause);
        }
    }

    /// One request over a new connection.
    fn request(
        &self,
        target: SocketAddr,
        begun: Instant,
    ) -> Result<(Answer, Slowest), (RequestError, Vec<String>)> {
        let LoadConfig {
            protocol, timeout, ..
        } = self.config;
        let connection = Connection::open(protocol, target, timeout);
        let mut connection = connection.map_err(|error| (error, Vec::new()))?;
        let connected = begun.elapsed();
        let answer = connection.ask().map_err(|error| {
            let is_example = self.lock().failures.len() < EXAMPLES;
            let address = connection.local_address().ok().filter(|_| is_example);
            let evidence = address.map(|address| evidence::of_port(address.port()));
            (error, evidence.unwrap_or_default())
        })?;
        let times = Slowest {
            at: begun - self.start,
            connected,
            answered: begun.elapsed(),
        };
        Ok((answer, times))
    }

    fn limit(&self) -> usize {
        usize::try_from(self.config.limit).unwrap_or(usize::MAX)
    }

    fn record(
        &self,
        target: SocketAddr,
        begun: Instant,
        result: Result<(Answer, Slowest), (RequestError, Vec<String>)>,
    ) {
        let mut report = self.lock();
        report.requests += 1;
        match result {
            Ok((answer, times)) => {
                if times.answered > report.slowest.answered {
                    report.slowest = times;
                }
                *report.by_name.entry(answer.name).or_default() += 1;
            }
            Err((error, evidence)) => report.failures.push(Failure {
                at: begun - self.start,
                target,
                error,
                evidence,
            }),
        }
    }

    /// Records a failure for each target, so that a worker that cannot work does not look
    /// successful.
    fn give_up(&self, error: &anyhow::Error) {
        let error = RequestError::Other(format!("{error:#}"));
        for target in &self.targets {
            self.record(*target, Instant::now(), Err((error.clone(), Vec::new())));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LoadReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

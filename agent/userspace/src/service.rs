// SPDX-License-Identifier: Apache-2.0

//! State that all ways of one Service port share: remembered clients, and connections of endpoints that serve no more.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_model::RecordKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::affinity::Affinity;

/// One Service port.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) key: RecordKey,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    affinity: Affinity,
    /// The endpoints of all its ways.
    serving: BTreeSet<SocketAddr>,
    /// Time that connections to an endpoint that no longer serves are kept.
    drain: Duration,
    /// The endpoints that have connections, each with the end of its connections, if it no longer serves.
    ends: HashMap<SocketAddr, watch::Sender<Option<Instant>>>,
}

impl Service {
    pub(crate) fn new(key: RecordKey) -> Self {
        Self {
            key,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the endpoints of all its ways. Connections to others end after `drain` at the latest.
    pub(crate) fn serve(&self, serving: BTreeSet<SocketAddr>, drain: Duration, now: Instant) {
        let state = &mut *self.state();
        state
            .affinity
            .retain(|endpoint| serving.contains(&endpoint));
        state.ends.retain(|_, end| end.receiver_count() > 0);
        for (endpoint, end) in &state.ends {
            let stays = serving.contains(endpoint);
            end.send_if_modified(|end| match (stays, *end) {
                (true, Some(_)) => {
                    *end = None;
                    true
                }
                (false, None) => {
                    *end = Some(now + drain);
                    true
                }
                _ => false,
            });
        }
        (state.serving, state.drain) = (serving, drain);
    }

    /// The endpoints of all its ways.
    pub(crate) fn serving(&self) -> BTreeSet<SocketAddr> {
        self.state().serving.clone()
    }

    /// A connection to an endpoint begins; it should end with the [`Lease`].
    pub(crate) fn lease(&self, endpoint: SocketAddr) -> Lease {
        let state = &mut *self.state();
        // The endpoint may have been chosen before it stopped to serve.
        let is_gone = !state.serving.contains(&endpoint);
        let end = is_gone.then(|| Instant::now() + state.drain);
        let end = state
            .ends
            .entry(endpoint)
            .or_insert_with(|| watch::Sender::new(end));
        Lease(end.subscribe())
    }

    pub(crate) fn remembered(&self, client: IpAddr, now: Instant) -> Option<SocketAddr> {
        self.state().affinity.of(client, now.into_std())
    }

    pub(crate) fn remember(
        &self,
        client: IpAddr,
        endpoint: SocketAddr,
        timeout: Duration,
        now: Instant,
    ) {
        let mut state = self.state();
        if state.serving.contains(&endpoint) {
            state
                .affinity
                .remember(client, endpoint, timeout, now.into_std());
        }
    }

    pub(crate) fn forget(&self, client: IpAddr) {
        self.state().affinity.forget(client);
    }
}

/// The permission of a connection to go on.
#[derive(Debug)]
pub(crate) struct Lease(watch::Receiver<Option<Instant>>);

impl Lease {
    /// Completes when the endpoint has stopped to serve and the time of its connections has passed.
    pub(crate) async fn ended(&mut self) {
        loop {
            let end = *self.0.borrow_and_update();
            let passed = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => return,
                changed = self.0.changed() => if changed.is_err() {
                    // Nobody changes it any more.
                    match end {
                        Some(end) => return sleep_until(end).await,
                        None => std::future::pending().await,
                    }
                },
            }
        }
    }

    /// Returns `true` if the endpoint has stopped to serve.
    #[cfg(test)]
    fn is_ending(&self) -> bool {
        self.0.borrow().is_some()
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn service() -> Service {
        Service::new(RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: "web".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_an_endpoint_that_left_end_at_the_deadline() {
        let service = service();
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 80)));
        let start = Instant::now();
        service.serve([a, b].into(), MINUTE, start);
        let (mut of_a, mut of_b) = (service.lease(a), service.lease(b));
        service.serve([b].into(), MINUTE, start);
        assert!(of_a.is_ending() && !of_b.is_ending());
        // One that was chosen before has the same end.
        let mut late = service.lease(a);
        of_a.ended().await;
        late.ended().await;
        assert_eq!(Instant::now() - start, MINUTE);
        // An endpoint that returns in time keeps its connections.
        service.serve([a].into(), MINUTE, Instant::now());
        assert!(of_b.is_ending());
        service.serve([a, b].into(), MINUTE, Instant::now());
        let waited = tokio::time::timeout(10 * MINUTE, of_b.ended()).await;
        assert!(waited.is_err());
        // Connections of a deleted Service have the deadline too.
        service.serve(BTreeSet::new(), MINUTE, Instant::now());
        drop(service);
        let start = Instant::now();
        of_b.ended().await;
        assert_eq!(Instant::now() - start, MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_forgotten_with_its_endpoint() {
        let service = service();
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 80)));
        let client = "10.0.0.9".parse().unwrap();
        let now = Instant::now();
        service.serve([a, b].into(), MINUTE, now);
        service.remember(client, a, MINUTE, now);
        assert_eq!(service.remembered(client, now), Some(a));
        service.serve([b].into(), MINUTE, now);
        assert_eq!(service.remembered(client, now), None);
        // An endpoint that has left meanwhile is not remembered.
        service.remember(client, a, MINUTE, now);
        assert_eq!(service.remembered(client, now), None);
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Clients that stay with their endpoint. Pure.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Clients of one Service port that are remembered at most; the ones that were away longest are forgotten first.
const CLIENTS: usize = 65_536;

/// The clients of one Service port, each with its endpoint.
#[derive(Debug, Default)]
pub struct Affinity {
    clients: HashMap<IpAddr, (SocketAddr, Instant)>,
    /// The same clients by the time at which they are forgotten.
    ends: BTreeSet<(Instant, IpAddr)>,
}

impl Affinity {
    /// The endpoint of a client, if it is remembered at `now`.
    #[must_use]
    pub fn of(&self, client: IpAddr, now: Instant) -> Option<SocketAddr> {
        let (endpoint, until) = self.clients.get(&client)?;
        (*until > now).then_some(*endpoint)
    }

    /// Remembers a client with its endpoint for a time from now on.
    pub fn remember(
        &mut self,
        client: IpAddr,
        endpoint: SocketAddr,
        timeout: Duration,
        now: Instant,
    ) {
        self.forget(client);
        while let Some(&(until, other)) = self.ends.first() {
            if until > now && self.clients.len() < CLIENTS {
                break;
            }
            self.forget(other);
        }
        let until = now + timeout;
        self.clients.insert(client, (endpoint, until));
        self.ends.insert((until, client));
    }

    /// Forgets a client.
    pub fn forget(&mut self, client: IpAddr) {
        if let Some((_, until)) = self.clients.remove(&client) {
            self.ends.remove(&(until, client));
        }
    }

    /// Forgets the clients of endpoints that no longer serve.
    pub fn retain(&mut self, serves: impl Fn(SocketAddr) -> bool) {
        self.clients.retain(|client, (endpoint, until)| {
            let stays = serves(*endpoint);
            if !stays {
                self.ends.remove(&(*until, *client));
            }
            stays
        });
    }

    /// The number of remembered clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns `true` if nobody is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    #[test]
    fn a_client_is_remembered_for_its_time_and_with_its_endpoint() {
        let (now, endpoint) = (Instant::now(), SocketAddr::from(([10, 0, 0, 1], 80)));
        let mut affinity = Affinity::default();
        affinity.remember(client(1), endpoint, MINUTE, now);
        affinity.remember(client(2), endpoint, 2 * MINUTE, now);
        assert_eq!(affinity.of(client(1), now), Some(endpoint));
        assert_eq!(affinity.of(client(1), now + MINUTE), None);
        assert_eq!(affinity.of(client(3), now), None);
        // Another client makes room.
        affinity.remember(client(3), endpoint, MINUTE, now + MINUTE);
        assert_eq!(affinity.len(), 2);
        affinity.retain(|other| other != endpoint);
        assert!(affinity.is_empty() && affinity.ends.is_empty());
    }

    #[test]
    fn clients_are_bounded() {
        let (now, endpoint) = (Instant::now(), SocketAddr::from(([10, 0, 0, 1], 80)));
        let mut affinity = Affinity::default();
        for number in 0..70_000 {
            let later = now + Duration::from_nanos(number.into());
            affinity.remember(client(number), endpoint, MINUTE, later);
        }
        assert_eq!((affinity.len(), affinity.ends.len()), (CLIENTS, CLIENTS));
        assert_eq!(affinity.of(client(0), now), None);
        assert_eq!(affinity.of(client(69_999), now), Some(endpoint));
    }
}

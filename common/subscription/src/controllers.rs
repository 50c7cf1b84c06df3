// SPDX-License-Identifier: Apache-2.0

//! The controllers that a program may connect to, one after the other.

use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::transport::Uri;

use crate::{Departure, End, Reconnect, Resolver, Target};

/// Addresses of controllers, as `http://host:port`, with TLS too.
#[derive(Debug, Clone)]
pub enum Endpoints {
    /// Addresses that do not change.
    Fixed(Vec<Uri>),
    /// The newest list of a file.
    Followed(watch::Receiver<Arc<Vec<Uri>>>),
}

impl From<Vec<Uri>> for Endpoints {
    fn from(fixed: Vec<Uri>) -> Self {
        Self::Fixed(fixed)
    }
}

impl Endpoints {
    /// The present list.
    fn list(&mut self) -> Vec<Uri> {
        match self {
            Self::Fixed(list) => list.clone(),
            Self::Followed(list) => list.borrow_and_update().to_vec(),
        }
    }

    /// Waits for another list than the present one.
    async fn changed(&mut self) {
        if let Self::Followed(list) = self
            && list.changed().await.is_ok()
        {
            return;
        }
        pending().await
    }
}

/// Chooses a controller, and the pause before the next attempt.
#[derive(Debug)]
pub struct Controllers {
    endpoints: Endpoints,
    resolver: Resolver,
    reconnect: Reconnect<Target>,
    has_others: bool,
}

impl Controllers {
    /// Controllers by their addresses; a name stands for all addresses that it resolves to.
    #[must_use]
    pub fn new(endpoints: impl Into<Endpoints>) -> Self {
        Self {
            endpoints: endpoints.into(),
            resolver: Resolver::default(),
            reconnect: Reconnect::new(RandomState::new().hash_one(())),
            has_others: false,
        }
    }

    /// Returns `true` if there is no controller and never will be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.endpoints, Endpoints::Fixed(list) if list.is_empty())
    }

    /// Waits until the list of controllers changes. The next controller is one of the new list.
    pub async fn changed(&mut self) {
        self.endpoints.changed().await;
        self.has_others = false;
        self.reconnect.begin_round(Vec::new());
    }

    /// The controller to connect to; `None` if there is none or no name resolves. Resolves names when all controllers
    /// have been tried.
    pub async fn current(&mut self) -> Option<Target> {
        if self.reconnect.current().is_none() {
            let endpoints = self.endpoints.list();
            let targets = self.resolver.resolve(&endpoints).await;
            let first = targets.first().map(|target| target.address);
            self.has_others = targets.iter().any(|target| Some(target.address) != first);
            self.reconnect.begin_round(targets);
        }
        self.reconnect.current().cloned()
    }

    /// Returns `true` if there are other controllers than the current one. One address is one controller, whatever its
    /// names.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.has_others
    }

    /// Time at which this program leaves a controller that is about to stop.
    pub fn departure(&mut self) -> Departure {
        self.reconnect.departure()
    }

    /// Records the end of an attempt or of a stream. Returns the pause before the next attempt.
    pub fn after(&mut self, end: End) -> Duration {
        self.reconnect.after(end)
    }

    /// Returns `true` if all controllers have been tried since names were resolved.
    #[must_use]
    pub fn is_round_over(&self) -> bool {
        self.reconnect.current().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ports: &[u16]) -> Arc<Vec<Uri>> {
        let uri = |port: &u16| format!("http://127.0.0.1:{port}").parse().unwrap();
        Arc::new(ports.iter().map(uri).collect())
    }

    async fn port(controllers: &mut Controllers) -> Option<u16> {
        let current = controllers.current().await;
        current.map(|target| target.address.port())
    }

    #[tokio::test]
    async fn names_of_one_address_are_one_controller() {
        for (hosts, has_others) in [
            (["127.0.0.1", "127.1"], false),
            (["127.0.0.1", "127.0.0.2"], true),
        ] {
            let uris = hosts.map(|host| format!("http://{host}:3").parse().unwrap());
            let mut controllers = Controllers::new(uris.to_vec());
            assert!(controllers.current().await.is_some());
            assert_eq!(controllers.has_others(), has_others, "{hosts:?}");
        }
    }

    #[tokio::test]
    async fn list_may_be_empty_at_first_and_changes_at_once() {
        assert!(Controllers::new(Vec::new()).is_empty());
        let (sender, receiver) = watch::channel(list(&[]));
        let mut controllers = Controllers::new(Endpoints::Followed(receiver));
        assert!(!controllers.is_empty());
        assert_eq!(port(&mut controllers).await, None);
        sender.send_replace(list(&[1]));
        controllers.changed().await;
        assert_eq!(port(&mut controllers).await, Some(1));
        sender.send_replace(list(&[2]));
        assert_eq!(port(&mut controllers).await, Some(1), "the round goes on");
        controllers.changed().await;
        assert_eq!(port(&mut controllers).await, Some(2));
        drop(sender);
        let waits = tokio::time::timeout(Duration::from_millis(20), controllers.changed());
        assert!(waits.await.is_err());
    }
}

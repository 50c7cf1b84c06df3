// SPDX-License-Identifier: Apache-2.0

//! Addresses of controllers: a name stands for all addresses that it resolves to.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Uri;
use tracing::{debug, warn};

/// The time limit of a lookup.
const PATIENCE: Duration = Duration::from_secs(5);

/// One controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The endpoint as configured: the certificate must be that of its host.
    pub endpoint: Uri,
    /// One of the endpoint's addresses.
    pub address: SocketAddr,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.endpoint.authority() {
            Some(named) if named.as_str() != self.address.to_string() => {
                write!(f, "{} ({named})", self.address)
            }
            _ => write!(f, "{}", self.address),
        }
    }
}

/// Resolves names, and remembers their addresses: the name service may depend on this very node.
#[derive(Debug, Default)]
pub struct Resolver {
    known: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// The last failure by name, which is logged once.
    failures: BTreeMap<String, String>,
}

impl Resolver {
    /// All addresses of all endpoints, in no particular order, each once for a host: the certificate
    /// may fit only one of several names of an address.
    pub async fn resolve(&mut self, endpoints: &[Uri]) -> Vec<Target> {
        let mut lookups = JoinSet::new();
        for endpoint in endpoints.iter().cloned() {
            lookups.spawn(async move {
                let found = timeout(PATIENCE, addresses(&endpoint)).await;
                let found = found.map_err(|_| io::Error::other("no answer in time"));
                (endpoint, found.flatten())
            });
        }
        let mut targets: Vec<Target> = Vec::new();
        while let Some(lookup) = lookups.join_next().await {
            // No task panics or is aborted.
            let Ok((endpoint, found)) = lookup else {
                continue;
            };
            for address in self.remember(&endpoint, found) {
                let is_same = |target: &Target| {
                    target.address == address && target.endpoint.host() == endpoint.host()
                };
                if !targets.iter().any(is_same) {
                    let endpoint = endpoint.clone();
                    targets.push(Target { endpoint, address });
                }
            }
        }
        targets
    }

    /// The addresses that were found, or else the last ones.
    fn remember(
        &mut self,
        endpoint: &Uri,
        found: io::Result<BTreeSet<SocketAddr>>,
    ) -> BTreeSet<SocketAddr> {
        let name = endpoint.to_string();
        let reason = match found {
            Ok(addresses) if !addresses.is_empty() => {
                self.failures.remove(&name);
                self.known.insert(name, addresses.clone());
                return addresses;
            }
            Ok(_) => "no addresses".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.failures.get(&name) == Some(&reason) {
            debug!(%endpoint, reason, "the controller's name does not resolve");
        } else {
            warn!(%endpoint, reason, "the controller's name does not resolve (logged once)");
            self.failures.insert(name.clone(), reason);
        }
        self.known.get(&name).cloned().unwrap_or_default()
    }
}

async fn addresses(endpoint: &Uri) -> io::Result<BTreeSet<SocketAddr>> {
    let host = endpoint.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = endpoint.port_u16().unwrap_or_default();
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(BTreeSet::from([(ip, port).into()]));
    }
    Ok(lookup_host((host, port)).await?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        format!("http://{text}").parse().unwrap()
    }

    #[tokio::test]
    async fn addresses_and_names_become_targets_each_once() {
        let mut resolver = Resolver::default();
        let endpoints = ["10.0.0.1:1", "[fd00::1]:2", "localhost:3", "localhost:3"].map(uri);
        let targets = resolver.resolve(&endpoints).await;
        let addresses: BTreeSet<String> = targets.iter().map(|t| t.address.to_string()).collect();
        assert_eq!(addresses.len(), targets.len());
        for expected in ["10.0.0.1:1", "[fd00::1]:2", "127.0.0.1:3"] {
            assert!(addresses.contains(expected), "{expected}: {addresses:?}");
        }
    }

    /// The certificate of a controller may have only one of them.
    #[tokio::test]
    async fn two_names_of_one_address_are_two_targets() {
        let mut resolver = Resolver::default();
        let endpoints = ["127.0.0.1:3", "localhost:3"].map(uri);
        let targets = resolver.resolve(&endpoints).await;
        let is_local = |target: &&Target| target.address == SocketAddr::from(([127, 0, 0, 1], 3));
        let local = targets.iter().filter(is_local);
        let hosts: BTreeSet<_> = local.map(|target| target.endpoint.host()).collect();
        let expected = BTreeSet::from([Some("127.0.0.1"), Some("localhost")]);
        assert_eq!(hosts, expected);
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_harms_no_other_and_keeps_what_it_was() {
        let mut resolver = Resolver::default();
        let endpoints = ["portolan.invalid:1", "10.0.0.1:1"].map(uri);
        let targets = resolver.resolve(&endpoints).await;
        assert_eq!(targets.len(), 1);
        let before = BTreeSet::from([SocketAddr::from(([10, 0, 0, 2], 1))]);
        resolver.remember(&endpoints[0], Ok(before.clone()));
        for failed in [Ok(BTreeSet::new()), Err(io::Error::other("down"))] {
            assert_eq!(resolver.remember(&endpoints[0], failed), before);
        }
        let after = BTreeSet::from([SocketAddr::from(([10, 0, 0, 3], 1))]);
        assert_eq!(resolver.remember(&endpoints[0], Ok(after.clone())), after);
    }

    #[test]
    fn a_target_is_shown_with_its_name() {
        let target = |endpoint: &str| Target {
            endpoint: uri(endpoint),
            address: ([10, 0, 0, 1], 1).into(),
        };
        assert_eq!(target("10.0.0.1:1").to_string(), "10.0.0.1:1");
        assert_eq!(target("c:1").to_string(), "10.0.0.1:1 (c:1)");
    }
}

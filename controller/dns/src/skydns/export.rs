// SPDX-License-Identifier: Apache-2.0

//! The task that keeps the keys in etcd up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::Channel;

use super::client::{Etcd, EtcdError, Values};
use super::layout::Layout;
use crate::input::Subject;
use crate::shared::{Dirty, SharedZone};

/// Configuration of an export.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// The place of the keys.
    pub layout: Layout,
    /// The shortest time between two rounds of writing.
    pub interval: Duration,
    /// The pause after all endpoints failed.
    pub retry: Duration,
    /// The period of full reads, which repair foreign changes.
    pub resync: Duration,
    /// The timeout of one request.
    pub timeout: Duration,
    /// The credentials of an etcd with authentication. (A certificate is the channel's.)
    pub user: Option<User>,
}

/// A name and a password.
#[derive(Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Keeps the keys of the zones equal to the records until `shutdown`. Each Service takes one
/// transaction; keys outside of the zones are neither read nor written, and there is no lease.
///
/// `endpoints` are members of one etcd cluster, in order of preference. After an error the next one
/// is used, and everything is read again.
///
/// Several exporters of the same zones do no harm, but one is enough.
///
/// # Panics
/// Without an endpoint.
pub async fn export(
    zone: Arc<SharedZone>,
    endpoints: Vec<Channel>,
    config: ExportConfig,
    shutdown: impl Future<Output = ()>,
) {
    assert!(!endpoints.is_empty(), "an export has an endpoint");
    let exporter = Exporter {
        etcd: Etcd::new(endpoints, config.timeout, config.user.as_ref()),
        written: BTreeMap::new(),
        zone,
        config,
    };
    tokio::select! {
        () = shutdown => {}
        () = Box::pin(exporter.run()) => {}
    }
}

struct Exporter {
    zone: Arc<SharedZone>,
    etcd: Etcd,
    config: ExportConfig,
    /// The observed keys of each subject.
    written: BTreeMap<Subject, Values>,
}

impl Exporter {
    async fn run(mut self) {
        let mut subscription = self.zone.subscribe("etcd");
        let mut resync = Instant::now() + self.config.resync;
        // Whether a change was ignored before the zone was synced.
        let mut missed = false;
        loop {
            let dirty = tokio::select! {
                dirty = subscription.changed() => dirty,
                () = tokio::time::sleep_until(resync) => Dirty::All,
            };
            if !self.zone.read().is_synced() {
                missed = true;
                // A time that has passed is no pause.
                resync = Instant::now() + self.config.resync;
                continue;
            }
            let dirty = if std::mem::take(&mut missed) {
                Dirty::All
            } else {
                dirty
            };
            if dirty == Dirty::All {
                resync = Instant::now() + self.config.resync;
            }
            match self.round(dirty).await {
                Ok(operations) => {
                    subscription.done();
                    tracing::debug!(operations, "wrote records to etcd");
                    tokio::time::sleep(self.config.interval).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot write records to etcd");
                    subscription.put_back(&Dirty::All);
                    if self.etcd.fail_over() {
                        tokio::time::sleep(self.config.retry).await;
                    }
                }
            }
        }
    }

    async fn round(&mut self, dirty: Dirty) -> Result<usize, EtcdError> {
        let subjects = match dirty {
            Dirty::Some(subjects) => subjects,
            Dirty::All => self.observe().await?,
        };
        let mut operations = 0;
        for subject in subjects {
            let new = self.desired(&subject);
            let old = self.written.remove(&subject).unwrap_or_default();
            operations += self.etcd.replace(&old, &new).await?;
            if !new.is_empty() {
                self.written.insert(subject, new);
            }
        }
        Ok(operations)
    }

    /// Locks the zone for one subject at a time, so that answers and changes go on meanwhile.
    fn desired(&self, subject: &Subject) -> Values {
        let keys = self.config.layout.keys(&self.zone.read(), subject);
        keys.into_iter()
            .map(|(key, message)| (key, message.to_json()))
            .collect()
    }

    /// Reads all keys from etcd. Returns every subject that has keys or should have some.
    async fn observe(&mut self) -> Result<BTreeSet<Subject>, EtcdError> {
        let roots = self.config.layout.roots(&self.zone.read());
        let mut observed = Values::new();
        for root in roots {
            observed.extend(self.etcd.read(&root).await?);
        }
        self.written.clear();
        let mut subjects = Layout::subjects(&*self.zone);
        for subject in &subjects {
            let keys = self.desired(subject).into_keys();
            let own: Values = keys.filter_map(|key| observed.remove_entry(&key)).collect();
            self.written.insert(subject.clone(), own);
        }
        // Surplus keys are deleted with their Service, if they have the form of a Service's.
        for (key, value) in observed {
            let service = self.config.layout.service_of(&self.zone.read(), &key);
            let subject = service.map_or(Subject::Apex, Subject::Service);
            self.written
                .entry(subject.clone())
                .or_default()
                .insert(key, value);
            subjects.insert(subject);
        }
        Ok(subjects)
    }
}

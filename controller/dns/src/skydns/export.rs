//! Keeps the keys in etcd up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use super::client::{Client, Values};
use super::layout::Layout;
use crate::input::Subject;
use crate::shared::{Dirty, SharedZone};

/// How the keys are written.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// Where they are.
    pub layout: Layout,
    /// The shortest time between two rounds of writing.
    pub interval: Duration,
    /// The time to try again after an error.
    pub retry: Duration,
    /// The time after which everything is read again, to repair what others changed.
    pub resync: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// Who we are, if etcd wants to know a name and a password. (A certificate is the channel's.)
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

/// Makes the keys of the zones what they should be, and keeps them so until `shutdown`. One
/// transaction for each Service; keys outside of the zones are neither read nor written; no lease.
/// After an error everything is read again.
///
/// Several exporters of the same zones do no harm, but one is enough.
pub async fn export(
    zone: Arc<SharedZone>,
    channel: Channel,
    config: ExportConfig,
    shutdown: impl Future<Output = ()>,
) {
    let exporter = Exporter {
        client: Client::new(channel, config.timeout, config.user.clone()),
        written: BTreeMap::new(),
        zone,
        config,
    };
    tokio::select! {
        () = shutdown => {}
        () = exporter.run() => {}
    }
}

struct Exporter {
    zone: Arc<SharedZone>,
    client: Client,
    config: ExportConfig,
    /// What is in etcd of each subject, as far as we know.
    written: BTreeMap<Subject, Values>,
}

impl Exporter {
    async fn run(mut self) {
        let mut subscription = self.zone.subscribe("etcd");
        let mut resync = Instant::now() + self.config.resync;
        // Whether something changed before everything was known.
        let mut missed = false;
        loop {
            let dirty = tokio::select! {
                dirty = subscription.changed() => dirty,
                () = tokio::time::sleep_until(resync) => Dirty::All,
            };
            if !self.zone.read().is_synced() {
                missed = true;
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
                    tokio::time::sleep(self.config.retry).await;
                }
            }
        }
    }

    async fn round(&mut self, dirty: Dirty) -> Result<usize, Status> {
        let subjects = match dirty {
            Dirty::Some(subjects) => subjects,
            Dirty::All => self.observe().await?,
        };
        let mut operations = 0;
        for subject in subjects {
            let new = self.desired(&subject);
            let old = self.written.remove(&subject).unwrap_or_default();
            operations += self.client.replace(&old, &new).await?;
            if !new.is_empty() {
                self.written.insert(subject, new);
            }
        }
        Ok(operations)
    }

    /// Holds the zone for one subject at a time, so that answers and changes go on meanwhile.
    fn desired(&self, subject: &Subject) -> Values {
        let keys = self.config.layout.keys(&self.zone.read(), subject);
        keys.into_iter()
            .map(|(key, message)| (key, message.to_json()))
            .collect()
    }

    /// Finds out what is in etcd. Returns everything that has keys, or should have.
    async fn observe(&mut self) -> Result<BTreeSet<Subject>, Status> {
        // The last token may have expired, or have been the reason why all is read again.
        self.client.log_in().await?;
        let roots = self.config.layout.roots(&self.zone.read());
        let mut observed = Values::new();
        for root in roots {
            observed.extend(self.client.read(&root).await?);
        }
        self.written.clear();
        let mut subjects = Layout::subjects(&self.zone.read());
        for subject in &subjects {
            let keys = self.desired(subject).into_keys();
            let own: Values = keys.filter_map(|key| observed.remove_entry(&key)).collect();
            self.written.insert(subject.clone(), own);
        }
        // What nobody should have goes in its Service's transaction if it looks like one's.
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

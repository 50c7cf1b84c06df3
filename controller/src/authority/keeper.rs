// SPDX-License-Identifier: Apache-2.0

//! The task that keeps the Secret and the serving certificate up to date.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use portolan_runtime::BlockReady;
use portolan_tls::{File, Health, read, server, without_certificate};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::content::{Authorities, Data, Verdict, decide};
use super::leaf::Leaf;
use crate::object_name::ObjectName;

/// Period of looks at the Secret.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause after a failure while there is no certificate yet.
const RETRY: Duration = Duration::from_secs(2);
/// Time limit of one look.
const PATIENCE: Duration = Duration::from_secs(20);
/// Limit of writes and conflicts in one look.
const ATTEMPTS: usize = 8;

/// Certificates that agents must trust, in PEM; `None` before the first look.
pub(crate) type Bundle = Option<Arc<str>>;

/// The Secret, and what is signed.
#[derive(Debug, Clone)]
pub(crate) struct KeeperConfig {
    /// The Secret.
    pub(crate) secret: ObjectName,
    /// Names in the certificate.
    pub(crate) names: Vec<String>,
    /// Validity of a new authority, in days.
    pub(crate) ca_days: u32,
    /// Validity of the certificate, in days.
    pub(crate) cert_days: u32,
    /// Authorities of clients' certificates.
    pub(crate) client_ca: Option<PathBuf>,
    /// Whether clients without a certificate are accepted.
    pub(crate) anonymous: bool,
}

/// Keeps the authority and the certificate.
pub(crate) struct Keeper {
    api: Api<Secret>,
    config: KeeperConfig,
    tls: watch::Sender<Arc<ServerConfig>>,
    bundle: watch::Sender<Bundle>,
    health: Arc<Health>,
    /// The certificate in force, and the authorities of clients that it is used with.
    leaf: Option<(Arc<Leaf>, Option<File>)>,
    unready: Option<BlockReady>,
    /// Reason why the last look failed.
    last_reason: Option<String>,
}

impl Keeper {
    /// Creates it; handshakes fail until the first look at the Secret has succeeded.
    pub(crate) fn new(
        client: Client,
        config: KeeperConfig,
        unready: BlockReady,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            api: Api::namespaced(client, &config.secret.namespace),
            config,
            tls: watch::Sender::new(Arc::new(without_certificate()?)),
            bundle: watch::Sender::new(None),
            health: Arc::default(),
            leaf: None,
            unready: Some(unready),
            last_reason: None,
        })
    }

    /// The server's configuration, and its successors.
    pub(crate) fn tls(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.tls.subscribe()
    }

    /// The certificates that agents must trust.
    pub(crate) fn bundle(&self) -> watch::Receiver<Bundle> {
        self.bundle.subscribe()
    }

    /// Name and health of the certificate, for metrics.
    pub(crate) fn health(&self) -> (&'static str, Arc<Health>) {
        ("tls", Arc::clone(&self.health))
    }

    /// Looks at the Secret periodically, until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let look = timeout(PATIENCE, self.look(SystemTime::now())).await;
            self.note(look.unwrap_or_else(|_| bail!("no answer in {PATIENCE:?}")));
            sleep(if self.leaf.is_some() { PERIOD } else { RETRY }).await;
        }
    }

    /// Notes how a look ended. A reason is told once.
    fn note(&mut self, look: anyhow::Result<()>) {
        let Err(error) = look else {
            if self.last_reason.take().is_some() {
                self.health.note_usable();
                tracing::info!(secret = %self.config.secret, "Secret of the authority usable again");
            }
            return;
        };
        let reason = format!("{error:#}");
        if self.last_reason.as_ref() != Some(&reason) {
            self.health.note_broken();
            tracing::error!(secret = %self.config.secret, reason,
                "cannot use the Secret of the authority; retrying");
        }
        self.last_reason = Some(reason);
    }

    /// Reads the Secret, writes what is due, and renews the certificate.
    async fn look(&mut self, now: SystemTime) -> anyhow::Result<()> {
        let authorities = self.authorities(now).await?;
        let bundle: Arc<str> = authorities.bundle().into();
        self.bundle.send_if_modified(|old| {
            let is_new = old.as_ref() != Some(&bundle);
            *old = Some(bundle);
            is_new
        });
        self.renew(&authorities, now).await
    }

    async fn authorities(&self, now: SystemTime) -> anyhow::Result<Box<Authorities>> {
        let name = &self.config.secret.name;
        for _ in 0..ATTEMPTS {
            let mut secret = self.api.get(name).await.context("get")?;
            let found = secret.data.take().unwrap_or_default();
            let found: Data = (found.into_iter().map(|(key, value)| (key, value.0))).collect();
            let (change, data) = match decide(&found, now, self.config.ca_days)? {
                Verdict::Use(authorities) => return Ok(authorities),
                Verdict::Write(change, data) => (change, data),
            };
            let bytes = data
                .into_iter()
                .map(|(key, value)| (key, ByteString(value)));
            secret.data = Some(bytes.collect());
            // With the version that was read: refused if another replica wrote since.
            match self
                .api
                .replace(name, &PostParams::default(), &secret)
                .await
            {
                Ok(_) => {
                    tracing::info!(secret = %self.config.secret, ?change, "authority changed");
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error).context("update"),
            }
        }
        bail!("others changed it {ATTEMPTS} times in a row")
    }

    async fn renew(&mut self, authorities: &Authorities, now: SystemTime) -> anyhow::Result<()> {
        let client_ca = match self.config.client_ca.clone() {
            None => None,
            Some(path) => Some(tokio::task::spawn_blocking(move || read(&path)).await??),
        };
        // The certificate in force stays until its successor is loaded.
        let leaf = match &self.leaf {
            Some((leaf, old)) if leaf.is_fresh(authorities, now) => {
                if *old == client_ca {
                    return Ok(());
                }
                Arc::clone(leaf)
            }
            _ => {
                let (names, days) = (&self.config.names, self.config.cert_days);
                Arc::new(Leaf::sign(authorities, names, days, now)?)
            }
        };
        let file = |content: &str| File {
            path: format!("Secret {}", self.config.secret).into(),
            content: content.as_bytes().to_vec(),
        };
        let (cert, key) = (file(&leaf.issued.cert), file(&leaf.issued.key));
        let ca = client_ca.as_ref().map(|ca| (ca, self.config.anonymous));
        let loaded = server(&cert, &key, ca)?;
        self.health.note_loaded(loaded.expires);
        self.tls.send_replace(Arc::new(loaded.value));
        self.leaf = Some((leaf, client_ca));
        self.unready = None;
        tracing::info!(names = ?self.config.names, "serving certificate signed");
        Ok(())
    }
}

#[cfg(test)]
mod tests;

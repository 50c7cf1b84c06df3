// SPDX-License-Identifier: Apache-2.0

//! Kubeconfigs in Secrets of the API server that the controller runs at, in its own namespace.
//!
//! They are read in tasks of their own: a server that hangs delays no other cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use portolan_source::kubernetes::{self, MemberConfig, MemberError};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Supervisor;

/// The time between two readings of a Secret.
const PERIOD: Duration = Duration::from_secs(30);
/// Time limit of a reading.
const PATIENCE: Duration = Duration::from_secs(10);

/// The API server with the Secrets. It is not looked for before a Cluster names one.
#[derive(Clone, Default)]
pub(crate) struct Home {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    client: Arc<OnceCell<Client>>,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").finish_non_exhaustive()
    }
}

impl Home {
    /// The API server of the pod's ServiceAccount, else of a kubeconfig.
    pub(crate) fn new(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self {
            kubeconfig,
            context,
            ..Self::default()
        }
    }

    /// An API server with a client.
    #[cfg(test)]
    pub(super) fn of(client: Client) -> Self {
        Self {
            client: Arc::new(OnceCell::from(client)),
            ..Self::default()
        }
    }

    async fn client(&self) -> Result<&Client, MemberError> {
        let (kubeconfig, context) = (self.kubeconfig.as_deref(), self.context.as_deref());
        let made = self
            .client
            .get_or_try_init(|| kubernetes::own_client(kubeconfig, context));
        made.await
            .map_err(|error| MemberError::Secret(error.to_string()))
    }

    /// Reads the kubeconfig of a Secret.
    async fn read(&self, name: &str, key: &str) -> Result<MemberConfig, MemberError> {
        let client = self.client().await?;
        let api: Api<Secret> = Api::default_namespaced(client.clone());
        let found = match timeout(PATIENCE, api.get(name)).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => None,
            Ok(Err(error)) => return Err(MemberError::Secret(error.to_string())),
            Err(_) => return Err(MemberError::Secret(format!("no answer in {PATIENCE:?}"))),
        };
        let missing = |what: String| MemberError::Missing(format!("Secret {name}{what}"));
        let secret = found.ok_or_else(|| missing(String::new()))?;
        let data = secret.data.unwrap_or_default();
        let text = data
            .get(key)
            .ok_or_else(|| missing(format!(": data.{key}")))?;
        MemberConfig::of_secret(&String::from_utf8_lossy(&text.0))
    }
}

/// The name of a Secret, and the key in it.
type Place = (String, String);

/// A kubeconfig that was read.
#[derive(Debug)]
pub(super) struct SecretRead {
    pub(super) cluster: Arc<str>,
    of: Place,
    pub(super) result: Result<MemberConfig, MemberError>,
}

/// The readings of Secrets.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    home: Home,
    readings: JoinSet<SecretRead>,
    /// Of each cluster its Secret, and when it is read again; never while it is being read.
    known: BTreeMap<Arc<str>, (Place, Option<Instant>)>,
}

impl Secrets {
    pub(super) fn new(home: Home) -> Self {
        Self {
            home,
            ..Self::default()
        }
    }

    /// The next kubeconfig; `None` if none is being read.
    pub(super) async fn read(&mut self) -> Option<SecretRead> {
        match self.readings.join_next().await? {
            Ok(read) => Some(read),
            // Never cancelled, so it panicked: a bug, not to be hidden.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Forgets when the Secret of a cluster is read again: one that is created again is read at once.
    pub(super) fn forget(&mut self, cluster: &str) {
        self.known.remove(cluster);
    }

    /// Begins to read the Secrets that are due, and forgets those that no cluster has any more.
    fn begin(&mut self, wanted: &BTreeMap<Arc<str>, Place>) {
        self.known
            .retain(|cluster, (of, _)| wanted.get(cluster) == Some(of));
        let now = Instant::now();
        for (cluster, of) in wanted {
            let is_due = match self.known.get(cluster) {
                Some((_, again)) => again.is_some_and(|again| again <= now),
                None => true,
            };
            if !is_due {
                continue;
            }
            self.known.insert(Arc::clone(cluster), (of.clone(), None));
            let (home, cluster, of) = (self.home.clone(), Arc::clone(cluster), of.clone());
            self.readings.spawn(async move {
                let result = home.read(&of.0, &of.1).await;
                SecretRead {
                    cluster,
                    of,
                    result,
                }
            });
        }
    }

    /// Notes a reading. Returns whether it is of the Secret that the cluster has now.
    pub(super) fn note(&mut self, read: &SecretRead) -> bool {
        let known = self.known.get_mut(&read.cluster);
        let Some((_, again)) = known.filter(|(of, _)| *of == read.of) else {
            return false;
        };
        *again = Some(Instant::now() + PERIOD);
        true
    }
}

impl Supervisor {
    /// Begins to read the kubeconfigs that are in Secrets.
    pub(super) fn begin_secrets(&mut self) {
        let clusters = self.files.objects().clusters.values();
        let wanted = clusters.filter_map(|cluster| match &cluster.access {
            portolan_policy::Access::KubeconfigSecret { name, key } => {
                let of = (name.clone(), key.clone());
                Some((Arc::<str>::from(&*cluster.meta.name), of))
            }
            _ => None,
        });
        let wanted = wanted.collect();
        self.secrets.begin(&wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_secret_of_a_cluster_that_is_created_again_is_read_at_once() {
        let home = Home::new(Some("/nowhere/kubeconfig".into()), None);
        let mut secrets = Secrets::new(home);
        let of: Place = ("eu-1".into(), "kubeconfig".into());
        let wanted = BTreeMap::from([("eu-1".into(), of)]);
        secrets.begin(&wanted);
        let read = secrets.read().await.unwrap();
        assert!(read.result.is_err() && secrets.note(&read));
        secrets.begin(&wanted);
        assert!(secrets.read().await.is_none(), "it is not due");
        secrets.forget("eu-1");
        secrets.begin(&wanted);
        assert!(secrets.read().await.is_some());
    }
}

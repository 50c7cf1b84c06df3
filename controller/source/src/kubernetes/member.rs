// SPDX-License-Identifier: Apache-2.0

//! Clients for other clusters, from kubeconfigs that must not do more than name a server and a credential.

mod bounded;

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig, NamedAuthInfo};
use kube::core::Request;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::client::READ_TIMEOUT;
use super::probe::{VersionError, can_list};
use bounded::BoundedLayer;

/// The longest kubeconfig, and the longest file that it names, in bytes.
const LONGEST: u64 = 1 << 20;
/// Time for a server to show that it can be used.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for the server of a client that is to be replaced to state its cluster.
const OLD_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two questions for the cluster of a server.
const PAUSE: Duration = Duration::from_secs(60);

/// Reason why a kubeconfig of another cluster is not used.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Its Secret cannot be read.
    #[error("cannot read the Secret: {0}")]
    Secret(String),
    /// It is no kubeconfig.
    #[error("not a kubeconfig: {0}")]
    Syntax(String),
    /// A part is missing.
    #[error("{0}: missing")]
    Missing(String),
    /// It has what a kubeconfig of another cluster must not have.
    #[error("KubeconfigForbidden: {field}: {why}")]
    Forbidden {
        /// The field.
        field: String,
        /// Reason against it.
        why: &'static str,
    },
    /// The client cannot be set up.
    #[error("cannot set up a client: {0}")]
    Setup(String),
    /// The server cannot be used.
    #[error("{0}")]
    Unusable(#[from] VersionError),
    /// The server did not answer.
    #[error("no answer in {PATIENCE:?}")]
    Unanswered,
    /// The server is that of another cluster.
    #[error(
        "the server is that of another cluster (UID of the namespace kube-system); delete the Cluster and create \
         it again to serve that one"
    )]
    OtherCluster,
    /// The server does not state its cluster.
    #[error("the server does not state the UID of the namespace kube-system")]
    Unidentified,
}

/// The identity of a member's cluster, once it is known: the UID of the namespace `kube-system`. Clones share what is
/// learned.
#[derive(Debug, Clone, Default)]
pub struct MemberId(Arc<OnceLock<String>>);

impl MemberId {
    /// Asks the server of a client until it has stated its cluster.
    pub async fn learn(&self, client: &Client) {
        while self.0.get().is_none() {
            if let Ok(Some(uid)) = timeout(PATIENCE, identity(client)).await {
                self.note(uid);
                return;
            }
            sleep(PAUSE).await;
        }
    }

    fn note(&self, uid: String) {
        // Only the first one counts.
        let _ = self.0.set(uid);
    }
}

/// A kubeconfig of another cluster that may be used.
#[derive(Debug)]
pub struct MemberConfig {
    kubeconfig: Kubeconfig,
    /// Equal as long as the kubeconfig and the files that it names have the same content.
    pub fingerprint: u64,
}

/// Where a kubeconfig comes from.
#[derive(Debug, Clone, Copy)]
enum Origin<'a> {
    /// A file in this directory: it may name other files.
    Directory(&'a Path),
    /// An object of an API server: it must not.
    Object,
}

impl MemberConfig {
    /// Reads a file, and those that it names. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or must not be used.
    pub fn read(path: &Path) -> Result<Self, MemberError> {
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::new(&text, Origin::Directory(directory))
    }

    /// Reads the text of a Secret: all that it needs must be in it.
    ///
    /// # Errors
    /// It must not be used.
    pub fn of_secret(text: &str) -> Result<Self, MemberError> {
        Self::new(text, Origin::Object)
    }

    fn new(text: &str, origin: Origin<'_>) -> Result<Self, MemberError> {
        let parsed = Kubeconfig::from_yaml(text);
        let mut kubeconfig = parsed.map_err(|error| MemberError::Syntax(causes(&error)))?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let (cluster, user) = names(&kubeconfig)?;
        let clusters = kubeconfig.clusters.iter_mut();
        let of_cluster = clusters
            .filter(|one| one.name == cluster)
            .find_map(|one| one.cluster.as_mut());
        let Some(of_cluster) = of_cluster else {
            return Err(MemberError::Missing(format!("clusters[{cluster}].cluster")));
        };
        check_cluster(&cluster, of_cluster, origin, &mut hasher)?;
        let users = kubeconfig.auth_infos.iter_mut();
        let of_user = users
            .filter(|NamedAuthInfo { name, .. }| *name == user)
            .find_map(|one| one.auth_info.as_mut());
        let Some(of_user) = of_user else {
            return Err(MemberError::Missing(format!("users[{user}].user")));
        };
        check_user(&user, of_user, origin, &mut hasher)?;
        Ok(Self {
            kubeconfig,
            fingerprint: hasher.finish(),
        })
    }

    /// A client for the server. Nothing is sent to it yet.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub async fn client(self) -> Result<Client, MemberError> {
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(self.kubeconfig, &options).await;
        let mut config = config.map_err(|error| MemberError::Setup(causes(&error)))?;
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let text = "certificate-authority: no certificate in PEM";
            return Err(MemberError::Setup(text.to_owned()));
        }
        config.read_timeout = Some(READ_TIMEOUT);
        config.default_retry = false;
        let builder = ClientBuilder::try_from(config);
        let builder = builder.map_err(|error| MemberError::Setup(causes(&error)))?;
        Ok(builder.with_layer(&BoundedLayer).build())
    }
}

/// Whether a new client may take the place of one that is in use: it lists all kinds that a cluster must have, and
/// its server is that of the same cluster. The old client is asked for its cluster only if that is not `known`. Returns
/// the identity for the new one.
///
/// # Errors
/// It must not.
pub async fn may_replace(
    new: &Client,
    old: &Client,
    known: &MemberId,
) -> Result<MemberId, MemberError> {
    let asked = timeout(PATIENCE, async {
        can_list(new).await?;
        Ok(identity(new).await)
    });
    let theirs = match asked.await {
        Ok(Ok(theirs)) => theirs,
        Ok(Err(error)) => return Err(MemberError::Unusable(error)),
        Err(_) => return Err(MemberError::Unanswered),
    };
    // An old client whose server does not answer, or does not permit to ask any more, says nothing.
    if known.0.get().is_none()
        && let Ok(Some(ours)) = timeout(OLD_PATIENCE, identity(old)).await
    {
        known.note(ours);
    }
    match (known.0.get(), theirs) {
        (Some(ours), Some(theirs)) if *ours == theirs => Ok(known.clone()),
        (Some(_), Some(theirs)) => {
            // The cluster was made anew at its address, and the old client reads that one already.
            let now = timeout(OLD_PATIENCE, identity(old)).await;
            if now.is_ok_and(|now| now.as_ref() == Some(&theirs)) {
                let id = MemberId::default();
                id.note(theirs);
                return Ok(id);
            }
            Err(MemberError::OtherCluster)
        }
        (Some(_), None) => Err(MemberError::Unidentified),
        (None, theirs) => {
            // Not of the old client: the new one may not come into use.
            let id = MemberId::default();
            theirs.into_iter().for_each(|theirs| id.note(theirs));
            Ok(id)
        }
    }
}

/// The UID of the namespace `kube-system`, from a list: that is all that a member has to permit.
async fn identity(client: &Client) -> Option<String> {
    let params = ListParams::default().fields("metadata.name=kube-system");
    let request = Request::new("/api/v1/namespaces").list(&params).ok()?;
    let list: Value = client.request(request).await.ok()?;
    let uid = list.pointer("/items/0/metadata/uid")?.as_str()?;
    Some(uid.to_owned())
}

fn names(kubeconfig: &Kubeconfig) -> Result<(String, String), MemberError> {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    if current.is_empty() {
        return Err(MemberError::Missing("current-context".to_owned()));
    }
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts.find(|context| context.name == current);
    let context = context.and_then(|context| context.context.as_ref());
    let missing = |field: &str| MemberError::Missing(format!("contexts[{current}].{field}"));
    let context = context.ok_or_else(|| missing("context"))?;
    let user = context
        .user
        .clone()
        .ok_or_else(|| missing("context.user"))?;
    Ok((context.cluster.clone(), user))
}

fn check_cluster(
    name: &str,
    cluster: &mut Cluster,
    origin: Origin<'_>,
    hasher: &mut DefaultHasher,
) -> Result<(), MemberError> {
    let field = |field: &str| format!("clusters[{name}].cluster.{field}");
    let server = cluster.server.as_deref().unwrap_or_default();
    if server.is_empty() {
        return Err(MemberError::Missing(field("server")));
    }
    if !server.to_ascii_lowercase().starts_with("https://") {
        return Err(forbidden(field("server"), "expected https://"));
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        let why = "the server's certificate must be verified";
        return Err(forbidden(field("insecure-skip-tls-verify"), why));
    }
    let path = &mut cluster.certificate_authority;
    take_file(path, &field("certificate-authority"), origin, hasher)
}

fn check_user(
    name: &str,
    user: &mut AuthInfo,
    origin: Origin<'_>,
    hasher: &mut DefaultHasher,
) -> Result<(), MemberError> {
    let field = |field: &str| format!("users[{name}].user.{field}");
    if user.exec.is_some() {
        return Err(forbidden(
            field("exec"),
            "no program is run for a credential",
        ));
    }
    if user.auth_provider.is_some() {
        let why = "no provider is asked for a credential";
        return Err(forbidden(field("auth-provider"), why));
    }
    for (path, text) in [
        (&mut user.client_certificate, "client-certificate"),
        (&mut user.client_key, "client-key"),
        (&mut user.token_file, "tokenFile"),
    ] {
        // The client itself follows a token in a file.
        let mut unused = DefaultHasher::new();
        let hasher = if text == "tokenFile" {
            &mut unused
        } else {
            &mut *hasher
        };
        take_file(path, &field(text), origin, hasher)?;
    }
    Ok(())
}

fn forbidden(field: String, why: &'static str) -> MemberError {
    MemberError::Forbidden { field, why }
}

/// Notes the content of a named file, whose path is relative to that of the kubeconfig.
fn take_file(
    named: &mut Option<String>,
    field: &str,
    origin: Origin<'_>,
    hasher: &mut DefaultHasher,
) -> Result<(), MemberError> {
    let Some(text) = named.as_mut().filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let Origin::Directory(directory) = origin else {
        return Err(forbidden(field.to_owned(), "a Secret names no files"));
    };
    let path = directory.join(&*text);
    read(&path)?.hash(hasher);
    *text = path.to_string_lossy().into_owned();
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, MemberError> {
    let failed = |source| MemberError::File {
        path: path.to_owned(),
        source,
    };
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mut file = file.take(LONGEST + 1);
    let length = file.read_to_end(&mut content).map_err(failed)?;
    if u64::try_from(length).unwrap_or(u64::MAX) > LONGEST {
        return Err(failed(io::Error::other(format!(
            "longer than {LONGEST} bytes"
        ))));
    }
    Ok(content)
}

/// An error with its causes. It may quote no credential: kube's do not.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;

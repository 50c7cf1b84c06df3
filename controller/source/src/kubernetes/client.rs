// SPDX-License-Identifier: Apache-2.0

//! The client, from a kubeconfig or from the pod's service account.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kube::config::{Config, InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Longer than kube's watcher waits for a silent watch (295 s); without it, a listing whose server
/// vanished would wait forever.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The reason for a missing client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("cannot use kubeconfig {}", path.display())]
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: KubeconfigError,
    },
    /// The context is not in the default kubeconfig.
    #[error("cannot use context {context:?} of the default kubeconfig")]
    Context {
        /// Its name.
        context: String,
        /// Reason.
        source: KubeconfigError,
    },
    /// Neither a default kubeconfig nor a pod's service account can be used.
    #[error("found neither a kubeconfig nor a service account")]
    Infer(#[from] InferConfigError),
    /// The configuration cannot be used, most often for its certificates.
    #[error("cannot set up the client")]
    Setup(#[from] kube::Error),
}

/// A client for the API server that a kubeconfig names; without one, for that of the default
/// kubeconfig or of the controller's own pod.
///
/// # Errors
///
/// The configuration is missing or cannot be used. Nothing is sent to the server yet.
pub async fn client(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ClientError> {
    let mut config = config(kubeconfig, context).await?;
    config.read_timeout = Some(READ_TIMEOUT);
    // The watches retry with pauses and warnings of their own; kube's retries are silent and long.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A client for the API server of the cluster that this program runs in, for objects of its own: in a
/// pod that of the pod's service account, whatever cluster the kubeconfig names; else as [`client`].
///
/// # Errors
///
/// As of [`client`].
pub async fn own_client(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ClientError> {
    let Ok(mut config) = Config::incluster() else {
        return client(kubeconfig, context).await;
    };
    config.read_timeout = Some(READ_TIMEOUT);
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Reads a kubeconfig and its context, and the files that it names. Nothing is sent.
///
/// # Errors
///
/// The configuration is missing or cannot be used.
pub async fn check_kubeconfig(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<(), ClientError> {
    config(kubeconfig, context).await.map(drop)
}

async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ClientError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    if let Some(path) = kubeconfig {
        let named = |source| ClientError::Kubeconfig {
            path: path.to_owned(),
            source,
        };
        let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(named);
    }
    if let Some(context) = context {
        return Config::from_kubeconfig(&options)
            .await
            .map_err(|source| ClientError::Context {
                context: context.to_owned(),
                source,
            });
    }
    Ok(Config::infer().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: 'https://192.0.2.1:6443'}}]
users: [{name: a, user: {token: t}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
";

    #[tokio::test]
    async fn a_kubeconfig_makes_a_client_and_its_absence_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let error = client(Some(&path), None).await.err().unwrap();
        assert!(error.to_string().contains("config"), "{error}");
        std::fs::write(&path, KUBECONFIG).unwrap();
        assert!(client(Some(&path), Some("a")).await.is_ok());
        let error = client(Some(&path), Some("b")).await.err().unwrap();
        assert!(matches!(error, ClientError::Kubeconfig { .. }), "{error}");
    }
}

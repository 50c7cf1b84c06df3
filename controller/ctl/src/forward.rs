// SPDX-License-Identifier: Apache-2.0

//! Ports forwarded to the pods of controllers.

use std::fmt;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::ListParams;
use portolan_source::kubernetes;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::args::ConnectArgs;

/// The label of controllers' pods.
const LABEL: &str = "app.kubernetes.io/name=portolan-controller";
/// The namespace without a flag.
const NAMESPACE: &str = "kube-system";
/// The name of the port of the admin server in a pod.
const PORT_NAME: &str = "admin";
/// The port, if the pod names none.
const PORT: u16 = 9444;

/// A running pod of a controller.
#[derive(Clone)]
pub(crate) struct Pod {
    api: Api<v1::Pod>,
    namespace: String,
    name: String,
    port: u16,
}

/// Lists the running pods of controllers; never none.
///
/// # Errors
/// If the API server cannot be asked, or no such pod runs.
pub(crate) async fn pods(args: &ConnectArgs) -> anyhow::Result<Vec<Pod>> {
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let client = kubernetes::client(kubeconfig, context).await?;
    let namespace = args.namespace.as_deref().unwrap_or(NAMESPACE);
    let api: Api<v1::Pod> = Api::namespaced(client, namespace);
    let listed = api.list(&ListParams::default().labels(LABEL)).await;
    let listed = listed.with_context(|| format!("cannot list pods in namespace {namespace}"))?;
    let running = listed.items.iter().filter(|pod| is_running(pod));
    let pods: Vec<_> = running
        .filter_map(|pod| {
            Some(Pod {
                api: api.clone(),
                namespace: namespace.to_owned(),
                name: pod.metadata.name.clone()?,
                port: port(pod),
            })
        })
        .collect();
    if pods.is_empty() {
        bail!("namespace {namespace}: no running pod has the label {LABEL}");
    }
    Ok(pods)
}

fn is_running(pod: &v1::Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The admin port of a pod.
fn port(pod: &v1::Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(PORT_NAME));
    let number = named.and_then(|port| u16::try_from(port.container_port).ok());
    number.unwrap_or(PORT)
}

impl Pod {
    /// Opens a connection to the admin port, through the API server.
    pub(crate) async fn connect(
        &self,
    ) -> anyhow::Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
        let mut forwarder = self.api.portforward(&self.name, &[self.port]).await?;
        forwarder
            .take_stream(self.port)
            .context("the port is not forwarded")
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pod({self}:{})", self.port)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> v1::Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_admin_port_is_found_by_name() {
        let named =
            json!([{"name": "agents", "containerPort": 1}, {"name": "admin", "containerPort": 2}]);
        let with = |ports| pod(json!({"spec": {"containers": [{"name": "a", "ports": ports}]}}));
        assert_eq!(port(&with(named)), 2);
        assert_eq!(port(&with(json!([{"containerPort": 1}]))), PORT);
        assert_eq!(port(&with(json!(null))), PORT);
    }

    #[test]
    fn only_running_pods_are_asked() {
        let running = json!({"status": {"phase": "Running"}});
        assert!(is_running(&pod(running)));
        let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Running"}});
        assert!(!is_running(&pod(ending)));
        assert!(!is_running(&pod(json!({"status": {"phase": "Pending"}}))));
    }
}

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

/// The label of controllers' pods. Their names depend on values of the chart, so that others may have it too.
const LABEL: &str = "app.kubernetes.io/component=controller";
/// The name of the port for agents in a pod, which pods of others do not have.
const AGENTS: &str = "agents";
/// The namespace without a flag.
const NAMESPACE: &str = "kube-system";
/// The name of the port of the admin server in a pod.
const PORT_NAME: &str = "metrics";
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
    let controllers = listed.items.iter().filter(|pod| is_controller(pod));
    let running = controllers.filter(|pod| is_running(pod));
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
        bail!(
            "namespace {namespace}: no running pod has the label {LABEL} and a port named {AGENTS}"
        );
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

fn is_controller(pod: &v1::Pod) -> bool {
    ports(pod).any(|port| port.name.as_deref() == Some(AGENTS))
}

/// The admin port of a pod.
fn port(pod: &v1::Pod) -> u16 {
    let named = ports(pod).find(|port| port.name.as_deref() == Some(PORT_NAME));
    let number = named.and_then(|port| u16::try_from(port.container_port).ok());
    number.unwrap_or(PORT)
}

fn ports(pod: &v1::Pod) -> impl Iterator<Item = &v1::ContainerPort> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.ports.iter().flatten())
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
        let named = json!([{"name": "agents", "containerPort": 1}, {"name": "metrics", "containerPort": 2}]);
        let with = |ports| pod(json!({"spec": {"containers": [{"name": "a", "ports": ports}]}}));
        assert_eq!(port(&with(named)), 2);
        assert_eq!(port(&with(json!([{"containerPort": 1}]))), PORT);
        assert_eq!(port(&with(json!(null))), PORT);
    }

    /// Labels and ports as the chart renders them.
    #[test]
    fn controllers_of_the_chart_are_found() {
        let chart = include_str!("../../../charts/portolan/ci/replacement.golden");
        let objects = chart.split("\n---\n");
        let pods = objects.filter_map(|text| {
            let object = portolan_source::file::read_yaml(text).ok()?;
            let kind = object["kind"].as_str()?;
            let template = object.pointer("/spec/template")?.clone();
            Some((kind.to_owned(), pod(template)))
        });
        let found: Vec<_> = pods.filter(|(_, pod)| is_controller(pod)).collect();
        let [(kind, controller)] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(kind, "Deployment");
        let (name, value) = LABEL.split_once('=').unwrap();
        let labels = controller.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[name], value);
        assert_eq!(port(controller), PORT);
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

// SPDX-License-Identifier: Apache-2.0

//! The task that keeps the ConfigMap up to date, while this controller holds the Lease.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use portolan_source::lease::{LeaseConfig, lead};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::args::PublishArgs;
use super::content::{addresses, update};
use crate::authority::Bundle;
use crate::object_name::ObjectName;

/// Period of looks. The kubelet takes up to about 90 s more to bring a change into pods.
const PERIOD: Duration = Duration::from_secs(10);
/// Time limit of one look.
const PATIENCE: Duration = Duration::from_secs(20);

/// Source of the published authorities.
#[derive(Debug, Clone)]
pub(crate) enum Authority {
    /// None: the key is left alone.
    None,
    /// A file.
    File(PathBuf),
    /// The controller's own authority.
    Managed(watch::Receiver<Bundle>),
}

/// Sources of the published addresses and authority, and the ConfigMap for them.
#[derive(Clone)]
pub(crate) struct Publication {
    client: Client,
    configmap: ObjectName,
    service: ObjectName,
    port: String,
    lease: ObjectName,
    authority: Authority,
}

impl Publication {
    /// The publication of the flags; `None` if there is none.
    pub(crate) fn new(args: &PublishArgs, client: &Client, authority: Authority) -> Option<Self> {
        let (configmap, service) = args.publish.clone().zip(args.publish_service.clone())?;
        let lease = args.publish_lease.clone();
        Some(Self {
            client: client.clone(),
            lease: lease.unwrap_or_else(|| configmap.clone()),
            configmap,
            service,
            port: args.publish_port.clone(),
            authority,
        })
    }

    /// Publishes whenever this process holds the Lease, until the token is cancelled. The identity
    /// names the process in the Lease.
    pub(crate) async fn run(self, identity: String, token: CancellationToken) {
        let lease = LeaseConfig::new(&self.lease.namespace, &self.lease.name, &identity);
        let this = Arc::new(self);
        let client = this.client.clone();
        let writer = move |stop: CancellationToken| {
            let this = Arc::clone(&this);
            async move {
                let _ = stop.run_until_cancelled(this.publish()).await;
            }
        };
        lead(client, lease, token, writer).await;
    }

    async fn publish(&self) {
        let mut last_reason = None;
        loop {
            let look = timeout(PATIENCE, self.look()).await;
            let look = look.unwrap_or_else(|_| bail!("no answer in {PATIENCE:?}"));
            match look {
                Ok(()) => last_reason = None,
                Err(error) => {
                    let reason = format!("{error:#}");
                    if last_reason.as_ref() != Some(&reason) {
                        tracing::warn!(configmap = %self.configmap, reason,
                            "cannot publish for agents; retrying");
                    }
                    last_reason = Some(reason);
                }
            }
            self.wait().await;
        }
    }

    /// Waits for the next look, or for new authorities.
    async fn wait(&self) {
        let Authority::Managed(bundle) = &self.authority else {
            return sleep(PERIOD).await;
        };
        // `publish` has used the value of now.
        let mut bundle = bundle.clone();
        bundle.mark_unchanged();
        let _ = timeout(PERIOD, bundle.changed()).await;
    }

    async fn look(&self) -> anyhow::Result<()> {
        let authorities = self.authorities().await?;
        let slices: Api<EndpointSlice> =
            Api::namespaced(self.client.clone(), &self.service.namespace);
        let selector = format!("kubernetes.io/service-name={}", self.service.name);
        let params = ListParams::default().labels(&selector);
        let found = slices.list(&params).await;
        let found = found.with_context(|| format!("EndpointSlices of {}", self.service))?;
        let addresses = addresses(&found.items, &self.port);

        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.configmap.namespace);
        let mut configmap = api.get(&self.configmap.name).await.context("get")?;
        let data = configmap.data.take().unwrap_or_default();
        let Some(new) = update(&data, authorities.as_deref(), &addresses) else {
            return Ok(());
        };
        configmap.data = Some(new);
        let params = PostParams::default();
        // With the version that was read: refused if somebody wrote since.
        let written = api.replace(&self.configmap.name, &params, &configmap).await;
        written.context("update")?;
        tracing::info!(configmap = %self.configmap, controllers = ?addresses, "published for agents");
        Ok(())
    }

    async fn authorities(&self) -> anyhow::Result<Option<String>> {
        match &self.authority {
            Authority::None => Ok(None),
            Authority::Managed(bundle) => Ok(bundle.borrow().as_deref().map(str::to_owned)),
            Authority::File(path) => {
                let read = path.clone();
                let file = tokio::task::spawn_blocking(move || portolan_tls::read(&read)).await??;
                let text = String::from_utf8(file.content);
                let text = text.with_context(|| path.display().to_string())?;
                portolan_tls::read_pem(&text).with_context(|| path.display().to_string())?;
                Ok(Some(text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::args::Cli;
    use crate::fake_api::FakeApi;

    const CONFIGMAP: &str = "/api/v1/namespaces/kube-system/configmaps/portolan";
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";

    #[tokio::test]
    async fn the_configmap_follows_and_is_written_only_on_change() {
        let api = FakeApi::default();
        let args = [
            "portolan-controller",
            "--publish=kube-system/portolan",
            "--publish-service=kube-system/controllers",
        ];
        let args = Cli::try_parse_from(args).unwrap().run.publish;
        let (bundle, authority) = watch::channel(None);
        let authority = Authority::Managed(authority);
        let publication = Publication::new(&args, &api.client(), authority).unwrap();
        assert_eq!(publication.lease, publication.configmap);

        let slice = |ip: &str| {
            json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {}, "items": [{"metadata": {"name": "a"}, "addressType": "IPv4",
            "ports": [{"name": "agents", "port": 9443}], "endpoints": [{"addresses": [ip]}]}]})
        };
        api.put(SLICES, slice("10.0.0.1"));
        let error = publication.look().await.unwrap_err();
        assert!(format!("{error:#}").starts_with("get: "), "{error:#}");
        api.put(CONFIGMAP, json!({"metadata": {"name": "portolan"}}));
        publication.look().await.unwrap();
        let data = || api.get(CONFIGMAP)["data"].clone();
        assert_eq!(data(), json!({"controllers": "10.0.0.1:9443\n"}));
        bundle.send_replace(Some("PEM\n".into()));
        publication.look().await.unwrap();
        assert_eq!(data()["ca.crt"], "PEM\n");
        api.requests();
        publication.look().await.unwrap();
        let expected = [format!("GET {SLICES} 200"), format!("GET {CONFIGMAP} 200")];
        assert_eq!(api.requests(), expected);
        api.put(SLICES, slice("10.0.0.2"));
        publication.look().await.unwrap();
        assert_eq!(data()["controllers"], "10.0.0.2:9443\n");
    }
}

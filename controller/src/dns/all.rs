// SPDX-License-Identifier: Apache-2.0

//! DNS of one cluster, or of the imports of several: whichever the flags say.

use std::pin::Pin;

use axum::Router;
use portolan_dns::replica::NamesService;
use portolan_runtime::Vital;
use portolan_source::kubernetes::NameOptions;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{ClusterNames, ClusterSetDns, Dns};
use crate::args::Args;

/// A DNS listener that serves until its end.
type Serving = Pin<Box<dyn Future<Output = Result<(), tonic::transport::Error>> + Send>>;

/// DNS of the flags; nothing without a zone.
pub(crate) struct AnyDns {
    of_one: Option<Dns>,
    of_imports: Option<ClusterSetDns>,
}

impl AnyDns {
    /// Binds, and starts everything but the source.
    ///
    /// # Errors
    /// If a flag cannot be used, or an address cannot be bound.
    pub(crate) async fn start(
        args: &Args,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            of_one: Dns::start(args, registry, vital).await?,
            of_imports: ClusterSetDns::start(args, registry, vital).await?,
        })
    }

    /// The sink of the source; `None` on later calls.
    pub(crate) fn names(&mut self) -> Option<NameOptions> {
        self.of_one.as_mut().and_then(Dns::names)
    }

    /// Returns the writer's end of the DNS of imports.
    pub(crate) fn imports(&self) -> Option<ClusterNames> {
        self.of_imports.as_ref().map(ClusterSetDns::names)
    }

    /// The service that streams the names to agents.
    pub(crate) fn replicas(&self, vital: &Vital) -> Option<NamesService> {
        let of_imports = self.of_imports.as_ref().map(ClusterSetDns::replicas);
        of_imports.or_else(|| Some(self.of_one.as_ref()?.replicas(vital)))
    }

    /// Adds the routes of DNS to those of the admin server.
    pub(crate) fn add_routes(&self, all: Router) -> Router {
        let of_one = self.of_one.as_ref().map(Dns::routes);
        let of_imports = self.of_imports.as_ref().map(ClusterSetDns::routes);
        of_one
            .into_iter()
            .chain(of_imports)
            .fold(all, Router::merge)
    }

    /// Serves on the next bound address; `None` after the last one.
    pub(crate) fn next_listener(&mut self, token: &CancellationToken) -> Option<Serving> {
        if let Some(serving) = self
            .of_one
            .as_mut()
            .and_then(|dns| dns.next_listener(token))
        {
            return Some(Box::pin(serving));
        }
        let serving = self.of_imports.as_mut()?.next_listener(token)?;
        Some(Box::pin(serving))
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The one replica that writes MCS objects.

use portolan_runtime::Vital;
use portolan_source::kubernetes;
use portolan_source::lease::{LeaseConfig, lead};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::object_name::ObjectName;
use crate::process_name::process_name;

/// Flags of the election.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Several clusters")]
pub(crate) struct LeaderArgs {
    /// Lease that elects the one replica that writes ServiceImports and conditions of ServiceExports, for `--source
    /// clusters`; in the API server of the pod's ServiceAccount, else of --kubeconfig. It is created if it does not
    /// exist. Without it this process writes: it must be the only one.
    #[arg(long, env = "PORTOLAN_MCS_LEASE", value_name = "NAMESPACE/NAME")]
    pub(crate) mcs_lease: Option<ObjectName>,
}

/// Whether this replica writes now.
#[derive(Debug, Clone)]
pub(crate) struct Leading(watch::Receiver<bool>);

impl Leading {
    /// Takes part in the election of the flags.
    ///
    /// # Errors
    /// If there is no API server for the Lease.
    pub(crate) async fn start(args: &Args, vital: &Vital) -> anyhow::Result<Self> {
        let Some(lease) = &args.clusters.leader.mcs_lease else {
            return Ok(Self::always());
        };
        let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
        let client = kubernetes::own_client(kubeconfig, context).await?;
        let (sender, leading) = watch::channel(false);
        let config = LeaseConfig::new(&lease.namespace, &lease.name, &process_name());
        let writer = move |stop: CancellationToken| {
            let sender = sender.clone();
            async move {
                sender.send_replace(true);
                stop.cancelled().await;
                sender.send_replace(false);
            }
        };
        let election = lead(client, config, vital.ending.clone(), writer);
        vital.spawn("election of the MCS writer", election);
        Ok(Self(leading))
    }

    /// The only replica.
    pub(crate) fn always() -> Self {
        Self(watch::channel(true).1)
    }

    pub(crate) fn is_leading(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for a change; for ever if there is none any more.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
impl Leading {
    /// A replica whose role a test sets.
    pub(crate) fn told(told: watch::Receiver<bool>) -> Self {
        Self(told)
    }
}

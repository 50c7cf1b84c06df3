// SPDX-License-Identifier: Apache-2.0

//! The one replica that writes MCS objects, and decides on what depends on time.

use std::time::Duration;

use portolan_runtime::Vital;
use portolan_source::kubernetes;
use portolan_source::lease::{Board, LeaseConfig, lead};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::object_name::ObjectName;
use crate::process_name::process_name;

/// The longest wait for the Lease at the start: a replica without state of its own serves by what the Lease says.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Flags of the election.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Several clusters")]
pub(crate) struct LeaderArgs {
    /// Lease that elects the one replica that writes ServiceImports and conditions of ServiceExports, and decides on
    /// loss, return and drain of clusters, for `--source clusters`; in the API server of the pod's ServiceAccount, else
    /// of --kubeconfig. It is created if it does not exist. Without it this process writes and decides: it must be the
    /// only one.
    #[arg(long, env = "PORTOLAN_MCS_LEASE", value_name = "NAMESPACE/NAME")]
    pub(crate) mcs_lease: Option<ObjectName>,
}

/// `true` if this replica writes and decides now.
#[derive(Debug, Clone)]
pub(crate) struct Leading {
    told: watch::Receiver<bool>,
    /// The text by which the leading replica informs the others; `None` without an election.
    board: Option<Board>,
}

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
        let board = Board::default();
        let config = LeaseConfig {
            board: board.clone(),
            ..LeaseConfig::new(&lease.namespace, &lease.name, &process_name())
        };
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
        if timeout(FIRST_LOOK, board.looked()).await.is_err() {
            tracing::warn!("--mcs-lease: the Lease cannot be read yet; going on without it");
        }
        Ok(Self {
            told: leading,
            board: Some(board),
        })
    }

    /// The only replica.
    pub(crate) fn always() -> Self {
        Self {
            told: watch::channel(true).1,
            board: None,
        }
    }

    pub(crate) fn is_leading(&self) -> bool {
        *self.told.borrow()
    }

    /// The text by which the leading replica informs the others; `None` without an election.
    pub(crate) fn board(&self) -> Option<&Board> {
        self.board.as_ref()
    }

    /// Waits for a change; for ever if there is none any more.
    pub(crate) async fn changed(&mut self) {
        if self.told.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
impl Leading {
    /// A replica whose role a test sets.
    pub(crate) fn told(told: watch::Receiver<bool>) -> Self {
        Self { told, board: None }
    }

    /// One of several replicas, which share a board.
    pub(crate) fn sharing(told: watch::Receiver<bool>, board: Board) -> Self {
        let board = Some(board);
        Self { told, board }
    }
}

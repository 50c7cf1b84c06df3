// SPDX-License-Identifier: Apache-2.0

//! The table of `export`, and where it comes from.

use std::sync::Arc;

use anyhow::Context as _;
use axum::http::Method;
use portolan_model::NodeTable;
use portolan_plan::host::Host;

use crate::args::{ExportArgs, ExportFrom};
use crate::ask::ask;
use crate::once::table_of_files;
use crate::subscribe::{ClusterPin, Store};

/// A table, and what came with it.
pub(super) struct Loaded {
    pub(super) table: Arc<NodeTable>,
    /// Settings of the host, which files alone have.
    pub(super) host: Arc<Host>,
    pub(super) warnings: Vec<String>,
}

impl From<Arc<NodeTable>> for Loaded {
    fn from(table: Arc<NodeTable>) -> Self {
        Self {
            table,
            host: Arc::default(),
            warnings: Vec::new(),
        }
    }
}

/// Loads the table from where the arguments say.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(super) async fn load(args: &mut ExportArgs) -> anyhow::Result<Loaded> {
    match args.source() {
        ExportFrom::Agent => {
            let address = &args.agent.address;
            let asked = ask(address, Method::GET, "/debug/table", Vec::new()).await;
            let table: Option<NodeTable> =
                asked.context("--from agent; --from disk and --from file need no agent")?;
            let table = table.context("the agent has no table yet")?;
            Ok(Arc::new(table).into())
        }
        ExportFrom::Disk => {
            let run = &args.run;
            let store = Store {
                directory: run.state_dir.clone(),
                cluster: run.cluster.clone(),
                node: run.node_name()?,
                pin: ClusterPin::default(),
            };
            Ok(store.read()?.into())
        }
        ExportFrom::File => {
            let (table, warnings, host) = table_of_files(&mut args.run)?;
            Ok(Loaded {
                table,
                host,
                warnings,
            })
        }
    }
}

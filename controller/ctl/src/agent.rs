// SPDX-License-Identifier: Apache-2.0

//! `portolanctl agent`: dumps and actions of the agent on this node.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::Client;
use crate::reply::Reply;
use crate::table;

/// An agent, and what is asked of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    /// Socket of the agent as unix:///PATH (its --debug-listen), or its admin address as
    /// http://HOST:PORT.
    #[arg(long, default_value = "unix:///run/portolan/agent.sock")]
    pub(crate) address: String,

    /// The question.
    #[command(subcommand)]
    pub(crate) command: AgentCommand,
}

/// Commands for an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub(crate) enum AgentCommand {
    /// Show the last reconciliation, the cluster of the node, and held deletions.
    Status,
    /// Show the table in force.
    Table,
    /// Show the virtual servers, set entries and routes that the table asks for.
    Desired,
    /// Confirm the deletions that the agent holds back.
    Confirm,
}

/// Asks the agent.
pub(crate) async fn run(client: &Client, command: AgentCommand) -> anyhow::Result<Reply> {
    let value = match command {
        AgentCommand::Status => client.get("/debug/status").await?,
        AgentCommand::Table => {
            let value = client.get("/debug/table").await?;
            let text = match value.is_null() {
                true => "the agent has no table yet\n".to_owned(),
                false => table::show(&table::parse(value.clone())?),
            };
            return Ok(Reply::new(value, text));
        }
        AgentCommand::Desired => client.get("/debug/desired").await?,
        AgentCommand::Confirm => {
            let value = client.post("/debug/confirm").await?;
            let text = confirmed(&value);
            return Ok(Reply::new(value, text));
        }
    };
    let text = serde_json::to_string_pretty(&value)? + "\n";
    Ok(Reply::new(value, text))
}

fn confirmed(held: &Value) -> String {
    let (revision, deleted, of) = (&held["revision"], &held["deleted"], &held["records"]);
    format!("revision {revision}: the deletion of {deleted} of {of} records is confirmed\n")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use axum::routing::{get, post};
    use axum::{Json, Router};
    use serde_json::json;
    use tokio::net::UnixListener;

    use super::*;
    use crate::client;

    async fn agent(path: &Path) -> Client {
        let held = json!({"revision": 7, "deleted": 60, "records": 70});
        let router = Router::new()
            .route(
                "/debug/status",
                get(|| async { Json(json!({"revision": 7})) }),
            )
            .route("/debug/table", get(|| async { Json(Value::Null) }))
            .route("/debug/confirm", post(|| async { Json(held) }));
        let listener = UnixListener::bind(path).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let address = format!("unix://{}", path.display());
        client::of_agent(&address, Duration::from_secs(5)).unwrap()
    }

    #[tokio::test]
    async fn agent_is_asked_over_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let client = agent(&dir.path().join("agent.sock")).await;
        for (command, text) in [
            (AgentCommand::Status, "{\n  \"revision\": 7\n}\n"),
            (AgentCommand::Table, "the agent has no table yet\n"),
            (
                AgentCommand::Confirm,
                "revision 7: the deletion of 60 of 70 records is confirmed\n",
            ),
        ] {
            assert_eq!(run(&client, command).await.unwrap().text, text);
        }
        assert!(run(&client, AgentCommand::Desired).await.is_err());
    }
}

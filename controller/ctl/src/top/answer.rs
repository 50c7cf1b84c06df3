// SPDX-License-Identifier: Apache-2.0

//! Answers of an agent and the controllers.

use std::cmp::Reverse;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::{Asked, By};
use crate::answers::{Answers, UNANSWERED};
use crate::nodes;
use crate::reply::Reply;

/// Services by their use, and nodes by lag.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Top {
    /// The Services of the agent's node, the greatest first.
    pub(super) services: Vec<Service>,
    /// The nodes of the controllers, the latest first.
    pub(super) nodes: Vec<Node>,
    /// Sentences about things that are left out or missing.
    pub(super) notes: Vec<String>,
    /// The exit code.
    #[serde(skip)]
    pub(super) code: u8,
}

/// One Service port, as the agent tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Service {
    /// `namespace/service[:port]/PROTOCOL`.
    pub(super) service: String,
    /// Established connections.
    pub(super) active: u64,
    /// Other connections that the kernel remembers.
    pub(super) inactive: u64,
    /// Changes in a second; `None` for a Service that is new.
    pub(super) rates: Option<Rates>,
}

/// Changes in one second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Rates {
    /// New connections.
    pub(super) connections: f64,
    /// Bytes from clients.
    pub(super) bytes_in: f64,
    /// Bytes to clients.
    pub(super) bytes_out: f64,
}

/// One node, as the controllers tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    /// Its name.
    pub(super) node: String,
    /// Set if its agent is connected.
    pub(super) connected: bool,
    /// Revision that it has programmed.
    pub(super) programmed: Option<u64>,
    /// Revisions that it is behind.
    pub(super) lag: Option<u64>,
    /// Time for which it has been behind, in milliseconds.
    pub(super) behind_ms: Option<u64>,
    /// Records that could not be programmed.
    pub(super) errors_total: u32,
}

#[derive(Debug, Deserialize)]
struct Services {
    services: Vec<Service>,
    omitted: usize,
}

impl Asked {
    /// Asks all. What one does not answer is a note.
    ///
    /// # Errors
    /// If nobody answers.
    pub(super) async fn ask(&self, by: By) -> anyhow::Result<Top> {
        let (services, nodes) = tokio::join!(self.services(by), self.nodes());
        let mut top = Top::default();
        let is_nothing = services.is_err() && nodes.is_err();
        match services {
            Ok(Services { services, omitted }) => {
                top.services = services;
                top.leave_out(omitted, "Services");
            }
            Err(error) => top.notes.push(format!("no Services: {error:#}")),
        }
        match nodes {
            Ok((nodes, omitted, errors)) => {
                top.nodes = nodes;
                top.leave_out(omitted, "nodes");
                if !errors.is_empty() {
                    top.code = UNANSWERED;
                }
                let errors = errors.into_iter();
                top.notes
                    .extend(errors.map(|error| format!("nodes are missing: {error}")));
            }
            Err(error) => {
                // A node has an agent, and often no controller.
                if self.names_controllers {
                    top.code = UNANSWERED;
                }
                top.notes.push(format!("no nodes: {error:#}"));
            }
        }
        if is_nothing {
            bail!("{}", top.notes.join("; "));
        }
        Ok(top)
    }

    async fn services(&self, by: By) -> anyhow::Result<Services> {
        let path = format!("/debug/services?by={}&limit={}", by.name(), self.limit);
        let answer = self.agent.get(&path).await?;
        serde_json::from_value(answer).context("the agent's answer is of another version")
    }

    /// The nodes, how many more there are, and the errors of controllers that do not answer.
    async fn nodes(&self) -> anyhow::Result<(Vec<Node>, usize, Vec<String>)> {
        let answers = Answers::ask(&self.controllers, "/debug/nodes").await?;
        let reply = nodes::show(answers.values(), false, false)?;
        let Reply { value, notes, .. } = answers.complete(reply);
        let mut nodes: Vec<Node> =
            serde_json::from_value(value).context("the controller's answer")?;
        nodes.sort_by_key(|node| (node.connected, Reverse(node.behind_ms), Reverse(node.lag)));
        let omitted = nodes.len().saturating_sub(self.limit.into());
        nodes.truncate(self.limit.into());
        Ok((nodes, omitted, notes))
    }
}

impl Top {
    fn leave_out(&mut self, omitted: usize, what: &str) {
        if omitted > 0 {
            self.notes.push(format!("{omitted} more {what}: --limit"));
        }
    }
}

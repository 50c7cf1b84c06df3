// SPDX-License-Identifier: Apache-2.0

//! Admission of agents.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use portolan_auth::{Identity, Refusal, RefusalReason};
use portolan_listener::{Admission, Peer};
use portolan_model::NodeKey;
use portolan_proto::v1;
use portolan_tablelog::Scope;
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};

use super::hello::{Hello, accept};
use super::{Context, Messages, NODE_PATIENCE, node_refusal};

/// An admitted agent.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hello: Hello,
    pub(super) identity: Identity,
    pub(super) address: Option<SocketAddr>,
    /// The stream's place on its connection; `None` if `portolan_listener` did not accept the
    /// connection.
    pub(super) admission: Option<Admission>,
    pub(super) messages: Messages,
}

/// Admits an agent, or refuses it. A refusal is sent to the agent, counted, and logged at a limited
/// rate.
pub(super) async fn admit(
    context: &Context,
    request: Request<Messages>,
) -> Result<Admitted, Status> {
    let connection = request.extensions().get::<Peer>().cloned();
    let address = connection.as_ref().map(Peer::address);
    let address = address.or_else(|| request.remote_addr());
    match check(context, request, connection.as_ref()).await {
        Ok((hello, identity, messages)) => Ok(Admitted {
            hello,
            identity,
            address,
            admission: connection.as_ref().map(Peer::admit),
            messages,
        }),
        Err(Refusal { reason, status }) => {
            if let Some(peer) = connection.as_ref().filter(|_| reason.is_credential()) {
                peer.refused();
            }
            let ip = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
            context.registry.refuse(ip, reason, status.message());
            Err(status)
        }
    }
}

type Checked = (Hello, Identity, Messages);

/// Authenticates before the first message is read: nothing is read from peers without a credential.
async fn check(
    context: &Context,
    request: Request<Messages>,
    connection: Option<&Peer>,
) -> Result<Checked, Refusal> {
    let identity = context.authenticate(connection, request.metadata())?;
    let mut messages = request.into_inner();
    let message = first_message(context, &mut messages).await?;
    let hello = accept(message, &context.config)
        .map_err(|status| Refusal::new(RefusalReason::Hello, status))?;
    match &hello.scope {
        Scope::Node(node) => identity.authorize_node(node)?,
        Scope::AllNodes(cluster) => identity.authorize_relay(cluster, &hello.name)?,
    }
    check_cluster(context, hello.scope.cluster(), &hello.cluster_id)?;
    check_node(context, &hello.entry()).await?;
    Ok((hello, identity, messages))
}

/// Refuses an agent that names another cluster. Passes if either side does not know its cluster.
pub(crate) fn check_cluster(
    context: &Context,
    cluster: &Arc<str>,
    theirs: &str,
) -> Result<(), Refusal> {
    let feed = context.tables.feed(cluster);
    let Some(ours) = feed.cluster_id().filter(|_| !theirs.is_empty()) else {
        return Ok(());
    };
    if **ours == *theirs {
        return Ok(());
    }
    Err(Refusal::other_cluster(ours, theirs))
}

/// Refuses an agent whose node is deleted or unknown. No node counts as unknown until the source has
/// reported all its nodes.
pub(crate) async fn check_node(context: &Context, node: &NodeKey) -> Result<(), Refusal> {
    if !context.looks_at_nodes() {
        return Ok(());
    }
    tokio::select! {
        standing = context.registry.standing_within(node, NODE_PATIENCE) => {
            node_refusal(standing).map_or(Ok(()), Err)
        }
        () = context.shutdown.cancelled() => Err(shutting_down()),
    }
}

fn shutting_down() -> Refusal {
    Refusal::new(
        RefusalReason::Shutdown,
        Status::unavailable("shutting down"),
    )
}

async fn first_message(
    context: &Context,
    messages: &mut Streaming<v1::AgentMessage>,
) -> Result<v1::AgentMessage, Refusal> {
    let refused = |status| Refusal::new(RefusalReason::Hello, status);
    let message = timeout(context.config.hello_timeout, messages.message());
    tokio::select! {
        () = context.shutdown.cancelled() => Err(shutting_down()),
        message = message => message
            .map_err(|_| refused(Status::deadline_exceeded("no Hello in time")))?
            .map_err(refused)?
            .ok_or_else(|| refused(Status::invalid_argument("the stream ended before Hello"))),
    }
}

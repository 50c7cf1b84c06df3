// SPDX-License-Identifier: Apache-2.0

//! The recorded scenario: an agent and a relay, and four controllers one after the other.

use std::net::SocketAddr;

use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use portolan_proto::v1::tables_client::TablesClient;
use portolan_serve::NodeStatus;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::tables::{World, first, fourth, second, third};
use crate::subscribe::tests::real::{Server, any_port};
use crate::subscribe::tests::support::patiently;

/// The agent of node `a`, recorded or replayed.
pub(super) trait Agent {
    /// Starts to use the controller at an address. Returns the address for a relay.
    async fn controller_at(&mut self, address: SocketAddr) -> SocketAddr;

    /// Receives a table as that revision, and has programmed it if it is not to be held.
    async fn receive(&mut self, epoch: u64, revision: u64, held: bool);

    /// Programs the table that it holds.
    async fn confirmed(&mut self, epoch: u64, revision: u64);

    /// The first message of a relay.
    fn relay_hello(&self) -> v1::Hello;
}

pub(super) async fn play(agent: &mut impl Agent) {
    let worlds = first();
    let mut server = Server::empty(any_port()).await;
    let epoch = server.tables.epoch();
    publish(&mut server, &World::default(), &worlds[0]);
    let address = agent.controller_at(server.address).await;
    agent.receive(epoch, 1, false).await;
    let mut relay = Relay::open(address, agent.relay_hello()).await;
    relay.until(1).await;
    for (i, pair) in worlds.windows(2).enumerate() {
        let revision = i as u64 + 2;
        publish(&mut server, &pair[0], &pair[1]);
        agent.receive(epoch, revision, false).await;
        relay.until(revision).await;
        acked(&server, revision, true).await;
    }
    drop(relay);
    server.stop().await;
    alone(agent, &[second()], false).await;
    alone(agent, &third(), false).await;
    alone(agent, &[fourth()], true).await;
}

/// Runs a controller that only the agent connects to.
async fn alone(agent: &mut impl Agent, worlds: &[World], held: bool) {
    let mut server = Server::empty(any_port()).await;
    let epoch = server.tables.epoch();
    let mut before = World::default();
    for (i, world) in worlds.iter().enumerate() {
        let revision = i as u64 + 1;
        publish(&mut server, &before, world);
        if i == 0 {
            agent.controller_at(server.address).await;
        }
        agent.receive(epoch, revision, held).await;
        let status = acked(&server, revision, !held).await;
        assert_eq!(status.held.is_some(), held, "{status:?}");
        before = world.clone();
    }
    if held {
        let revision = server.registry.confirm(&super::tables::node("a"));
        agent.confirmed(epoch, revision.unwrap()).await;
        acked(&server, revision.unwrap(), true).await;
    }
    server.stop().await;
}

fn publish(server: &mut Server, from: &World, to: &World) {
    server.publisher.publish(&from.delta(to));
    server.publisher.set_synced(&"".into());
}

/// Waits until the controller has the acknowledgement of a revision.
async fn acked(server: &Server, revision: u64, programmed: bool) -> NodeStatus {
    let wanted = |status: &NodeStatus| {
        status.received == Some(revision)
            && (!programmed || (status.programmed == Some(revision) && status.held.is_none()))
    };
    patiently(async {
        loop {
            let mut all = server.registry.snapshot().into_iter();
            match all.find(|status| status.node == "a" && wanted(status)) {
                Some(status) => return status,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

/// A client of the controller at an address.
pub(super) fn client(address: SocketAddr) -> TablesClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    TablesClient::new(endpoint.connect_lazy())
}

/// A relay that only listens.
struct Relay {
    frames: Streaming<v1::Frame>,
    _messages: mpsc::Sender<v1::AgentMessage>,
}

impl Relay {
    async fn open(address: SocketAddr, hello: v1::Hello) -> Self {
        let mut client = client(address);
        let (messages, receiver) = mpsc::channel(1);
        let hello = v1::agent_message::Message::Hello(hello);
        let hello = v1::AgentMessage {
            message: Some(hello),
        };
        messages.send(hello).await.unwrap();
        let frames = client.sync(ReceiverStream::new(receiver)).await.unwrap();
        Self {
            frames: frames.into_inner(),
            _messages: messages,
        }
    }

    async fn until(&mut self, revision: u64) {
        loop {
            let frame = patiently(self.frames.message()).await.unwrap().unwrap();
            if let Some(Frame::Commit(commit)) = frame.frame
                && commit.revision == revision
            {
                return;
            }
        }
    }
}

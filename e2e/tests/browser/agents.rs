// SPDX-License-Identifier: Apache-2.0

//! Agents without kernels: each has a stream, and acknowledges what it is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use portolan_agent::subscribe::{Staging, Taken};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame as Kind;
use portolan_proto::v1::tables_client::TablesClient;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Streaming};

/// Agents that connect at the same time.
const AT_ONCE: usize = 64;
/// Length of a stream's queue of messages.
const MESSAGES: usize = 4;

/// Progress of all agents together.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of acknowledgements.
    pub(crate) acknowledged: AtomicU64,
    /// Time of the last, in milliseconds of Unix time.
    pub(crate) last_ms: AtomicU64,
}

struct Stream {
    messages: mpsc::Sender<v1::AgentMessage>,
    frames: Streaming<v1::Frame>,
}

impl Stream {
    async fn open(controller: SocketAddr, hello: v1::Hello) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{controller}"))?;
        let mut client = TablesClient::new(endpoint.connect().await?);
        let (messages, receiver) = mpsc::channel(MESSAGES);
        let message = Some(Message::Hello(hello));
        messages.send(v1::AgentMessage { message }).await?;
        let response = client
            .sync(Request::new(ReceiverStream::new(receiver)))
            .await?;
        let frames = response.into_inner();
        Ok(Self { messages, frames })
    }

    /// Acknowledges everything until the stream ends.
    async fn follow(mut self, progress: Arc<Progress>) -> Result<()> {
        while let Some(frame) = self.frames.message().await? {
            let Some(Kind::Commit(commit)) = frame.frame else {
                continue;
            };
            self.acknowledge(commit.revision).await?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let now = u64::try_from(now.as_millis())?;
            progress.last_ms.fetch_max(now, Ordering::Relaxed);
            progress.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn acknowledge(&self, revision: u64) -> Result<()> {
        let received = v1::Received {
            revision,
            ..v1::Received::default()
        };
        let programmed = v1::Programmed {
            revision,
            duration_us: 1_000,
            ..v1::Programmed::default()
        };
        for message in [Message::Received(received), Message::Programmed(programmed)] {
            let message = Some(message);
            self.messages.send(v1::AgentMessage { message }).await?;
        }
        Ok(())
    }
}

fn hello(node: &str) -> v1::Hello {
    v1::Hello {
        version: 1,
        node: node.to_owned(),
        agent_version: "0.1.0".to_owned(),
        ..v1::Hello::default()
    }
}

/// A table as an agent has it, from the controller. Agents that say that they have it are sent nothing.
async fn table(controller: SocketAddr) -> Result<Staging> {
    let mut staging = Staging::new("", "node-1");
    let mut stream = Stream::open(controller, staging.begin(hello("node-0000"))).await?;
    while let Some(frame) = stream.frames.message().await? {
        if let Ok(Taken::Committed(_)) = staging.take_frame(frame) {
            return Ok(staging);
        }
    }
    anyhow::bail!("the stream ended before a table")
}

/// Starts agents of `node-0000` and so on, and waits until each has acknowledged its first table.
pub(crate) async fn start(
    controller: SocketAddr,
    count: usize,
    deadline: Duration,
) -> Result<(Arc<Progress>, JoinSet<Result<()>>)> {
    let mut staging = table(controller).await?;
    let hello = staging.begin(hello("node-0000"));
    let progress = Arc::new(Progress::default());
    let (mut streams, turns) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for number in 0..count {
        let hello = v1::Hello {
            node: format!("node-{number:04}"),
            ..hello.clone()
        };
        let (progress, turns) = (Arc::clone(&progress), Arc::clone(&turns));
        streams.spawn(async move {
            let turn = turns.acquire().await?;
            let stream = Stream::open(controller, hello).await?;
            drop(turn);
            stream.follow(progress).await
        });
    }
    let all = u64::try_from(count)?;
    let ready = async {
        while progress.acknowledged.load(Ordering::Relaxed) < all {
            let ended = tokio::time::timeout(Duration::from_millis(50), streams.join_next()).await;
            if let Ok(Some(ended)) = ended {
                ended??;
                ensure!(false, "a stream has ended");
            }
        }
        Ok(())
    };
    tokio::time::timeout(deadline, ready)
        .await
        .context("agents are late")??;
    Ok((progress, streams))
}

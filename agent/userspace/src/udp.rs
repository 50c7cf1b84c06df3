// SPDX-License-Identifier: Apache-2.0

//! UDP: each client has a socket of its own towards an endpoint, until both were silent for a minute, or another
//! client needs its place.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recvfrom};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::limits::FlowPlace;
use crate::metrics::{Counted, Direction, Kind};
use crate::service::Lease;
use crate::shared::{Client, Shared};
use crate::way::{Choice, Way};

/// Silence after which a flow is forgotten.
const IDLE: Duration = Duration::from_secs(60);

/// The largest datagram.
const LARGEST: usize = 65_535;

thread_local! {
    /// The buffer that datagrams are received in. Each is copied from here, so that a silent socket needs no memory.
    static RECEIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; LARGEST].into());
}

/// Datagrams of one client that wait for their flow; more are lost, as on any network.
pub(crate) const QUEUE: usize = 64;

/// Times that an endpoint is looked for, for one datagram.
const TRIES: usize = 4;

/// The flows of one listener. A flow ends by itself; the others learn of it when they send to it.
type Flows = HashMap<SocketAddr, mpsc::Sender<Box<[u8]>>>;

/// Passes the datagrams of a way on for ever.
pub(crate) async fn serve(socket: UdpSocket, way: Arc<Way>, shared: Shared) {
    let (socket, mut flows) = (Arc::new(socket), Flows::new());
    let mut tasks = JoinSet::new();
    loop {
        let received = tokio::select! {
            received = receive(&socket, &[]) => received,
            Some(ended) = tasks.join_next() => {
                if let Ok(client) = ended {
                    // It may have a new flow already.
                    let is_over = flows.get(&client).is_some_and(mpsc::Sender::is_closed);
                    if is_over {
                        flows.remove(&client);
                    }
                }
                continue;
            }
        };
        // An error belongs to a datagram that was sent before.
        let Ok((mut datagram, peer)) = received else {
            continue;
        };
        if let Some(flow) = flows.get(&peer) {
            match flow.try_send(datagram) {
                Err(mpsc::error::TrySendError::Closed(back)) => datagram = back,
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => continue,
            }
        }
        if let Some(flow) = open(&socket, peer, Box::default(), &way, &shared).await {
            let (sender, receiver) = mpsc::channel(QUEUE);
            // There is room for the first one.
            let _ = sender.try_send(datagram);
            flows.insert(peer, sender);
            tasks.spawn(async move {
                flow.run(receiver).await;
                peer
            });
        }
    }
}

/// Receives a datagram, behind a head, and the address of its sender.
pub(crate) async fn receive(
    socket: &UdpSocket,
    head: &[u8],
) -> io::Result<(Box<[u8]>, SocketAddr)> {
    let receive = || {
        RECEIVED.with_borrow_mut(|buffer| {
            let (length, _, from) = recvfrom(socket, &mut buffer[..], RecvFlags::empty())?;
            let from = from.ok_or(io::ErrorKind::InvalidData)?;
            let datagram = [head, &buffer[..length]].concat();
            Ok((datagram.into(), from.try_into()?))
        })
    };
    socket.async_io(Interest::READABLE, receive).await
}

/// Datagrams between a client and its endpoint.
pub(crate) struct Flow {
    /// Where the client sends to.
    listener: Arc<UdpSocket>,
    peer: SocketAddr,
    /// Bytes in front of each answer.
    head: Box<[u8]>,
    client: Client,
    endpoint: SocketAddr,
    outside: UdpSocket,
    lease: Lease,
    way: Arc<Way>,
    shared: Shared,
    _counted: Counted,
    place: FlowPlace,
}

/// Opens the flow of a client, if it may have one and there is an endpoint.
pub(crate) async fn open(
    listener: &Arc<UdpSocket>,
    peer: SocketAddr,
    head: Box<[u8]>,
    way: &Arc<Way>,
    shared: &Shared,
) -> Option<Flow> {
    let local = listener.local_addr().ok()?;
    let client = Client::of(peer, local);
    if !way.permits(&client.addresses()) {
        return None;
    }
    let place = shared.limits.enter_flow(peer.ip(), local.ip()).ok()?;
    let mut tried = Vec::new();
    for _ in 0..TRIES {
        let Choice::To(endpoint, lease) = way.choose(client.identity, &tried) else {
            return None;
        };
        match connected(endpoint).await {
            Ok(outside) => {
                return Some(Flow {
                    listener: Arc::clone(listener),
                    peer,
                    head,
                    client,
                    endpoint,
                    outside,
                    lease,
                    way: Arc::clone(way),
                    shared: shared.clone(),
                    _counted: shared.metrics.count(Kind::UDP),
                    place,
                });
            }
            Err(error) => {
                tracing::debug!(%endpoint, %error, "endpoint cannot be reached");
                shared.metrics.dial_failures.inc();
                way.failed(client.identity, endpoint);
                tried.push(endpoint);
            }
        }
    }
    None
}

/// A socket for one endpoint.
async fn connected(endpoint: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: SocketAddr = match endpoint {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(endpoint).await?;
    Ok(socket)
}

impl Flow {
    /// Runs until both sides are silent, another flow needs the place, the endpoint leaves, or it refuses.
    pub(crate) async fn run(mut self, mut datagrams: mpsc::Receiver<Box<[u8]>>) {
        let sent = self.shared.metrics.bytes(Direction::to_endpoint);
        let answered = self.shared.metrics.bytes(Direction::to_client);
        let mut until = Instant::now() + IDLE;
        loop {
            let outcome = tokio::select! {
                () = sleep_until(until) => return,
                () = self.lease.ended() => return,
                () = self.place.displaced() => return,
                datagram = datagrams.recv() => {
                    let Some(datagram) = datagram else { return };
                    sent.inc_by(u64::try_from(datagram.len()).unwrap_or_default());
                    self.outside.send(&datagram).await.map(drop)
                }
                received = receive(&self.outside, &self.head) => match received {
                    Ok((answer, _)) => {
                        let length = answer.len() - self.head.len();
                        answered.inc_by(u64::try_from(length).unwrap_or_default());
                        self.way.reached(self.endpoint);
                        // A client that is gone does not matter to the endpoint.
                        let _ = self.listener.send_to(&answer, self.peer).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            };
            if let Err(error) = outcome {
                // The host of the endpoint has answered that nobody listens.
                tracing::debug!(endpoint = %self.endpoint, %error, "endpoint refuses");
                self.shared.metrics.dial_failures.inc();
                self.way.failed(self.client.identity, self.endpoint);
                return;
            }
            until = Instant::now() + IDLE;
            self.place.used();
        }
    }
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: Apache-2.0

//! UDP ASSOCIATE: datagrams of one client to any Services, for as long as its connection stands.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Asked;
use super::request::{self, Reply};
use crate::limits::Place;
use crate::udp::{self, QUEUE};

/// Targets of one client at once.
const TARGETS: usize = 256;

/// The flows of one client: by its address and the head that names the target.
type Flows = HashMap<(SocketAddr, Box<[u8]>), mpsc::Sender<Box<[u8]>>>;

/// Serves a client until its connection ends.
pub(super) async fn associate(
    asked: &Asked,
    mut stream: TcpStream,
    local: SocketAddr,
    _place: Place,
) -> io::Result<()> {
    let socket = Arc::new(Asked::beside(local).await?);
    let peer = stream.peer_addr()?.ip();
    stream
        .write_all(&Reply::Done.bytes(socket.local_addr()?))
        .await?;
    let mut ignored = [0; 256];
    let ended = async { while let Ok(1..) = stream.read(&mut ignored).await {} };
    tokio::select! {
        () = ended => {}
        () = pass_on(asked, &socket, peer) => {}
    }
    Ok(())
}

/// Passes datagrams of a client on for ever.
async fn pass_on(asked: &Asked, socket: &Arc<UdpSocket>, client: IpAddr) {
    let (mut flows, mut tasks) = (Flows::new(), JoinSet::new());
    loop {
        let received = tokio::select! {
            received = udp::receive(socket, &[]) => received,
            Some(_) = tasks.join_next() => {
                flows.retain(|_, flow| !flow.is_closed());
                continue;
            }
        };
        let Ok((bytes, from)) = received else {
            continue;
        };
        // Only the client of the connection.
        if from.ip().to_canonical() != client.to_canonical() {
            continue;
        }
        let Some((target, head)) = request::datagram(&bytes).await else {
            continue;
        };
        let (key, content) = ((from, Box::from(&bytes[..head])), Box::from(&bytes[head..]));
        if let Some(flow) = flows.get(&key).filter(|flow| !flow.is_closed()) {
            // A full queue loses datagrams, as any network.
            let _ = flow.try_send(content);
            continue;
        }
        if flows.len() >= TARGETS {
            continue;
        }
        let Some(way) = asked.find(&target, Protocol::Udp) else {
            continue;
        };
        let head = key.1.clone();
        if let Some(flow) = udp::open(socket, from, head, &way, &asked.0.shared).await {
            let (sender, receiver) = mpsc::channel(QUEUE);
            // There is room for the first one.
            let _ = sender.try_send(content);
            flows.insert(key, sender);
            tasks.spawn(flow.run(receiver));
        }
    }
}

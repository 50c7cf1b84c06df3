// SPDX-License-Identifier: Apache-2.0

//! Resolution of aliases that leave the zones, by other name servers. CoreDNS's grpc plugin passes
//! a reply on unchanged, and most clients do not follow aliases themselves.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::wire::MAX_MESSAGE;
use crate::zone::Answer;

/// The longest accepted reply over UDP (DNS flag day 2020), in bytes.
const UDP_PAYLOAD: u16 = 1232;

/// Questions that are under way at most. Each has a socket and a buffer for as long as the servers may take.
const UNDER_WAY: usize = 256;

/// Recursive name servers. Clones share the limit of questions.
#[derive(Debug, Clone)]
pub struct Upstream {
    servers: Arc<[SocketAddr]>,
    timeout: Duration,
    room: Arc<Semaphore>,
}

/// The reason for a missing answer from upstream.
#[derive(Debug, thiserror::Error)]
enum UpstreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("cannot encode the query or read the reply: {0}")]
    Codec(String),
    #[error("the reply is to another query")]
    Mismatch,
    #[error("no reply in time")]
    Timeout,
    #[error("answered {0}")]
    Code(ResponseCode),
}

impl Upstream {
    /// Servers, asked in this order, each for `timeout` at most. CoreDNS waits 5 seconds for the
    /// reply, so all of them together should take less.
    #[must_use]
    pub fn new(servers: &[SocketAddr], timeout: Duration) -> Self {
        Self {
            servers: servers.into(),
            timeout,
            room: Arc::new(Semaphore::new(UNDER_WAY)),
        }
    }

    /// Completes an answer whose alias leaves the zones. As in CoreDNS the alias is an answer even
    /// if its target cannot be resolved or does not exist, or if too many questions are under way.
    pub(crate) async fn complete(&self, mut answer: Answer, kind: RecordType) -> Answer {
        let Some(name) = answer.elsewhere.take() else {
            return answer;
        };
        let Ok(_room) = self.room.try_acquire() else {
            tracing::debug!(%name, %kind, "too many questions to upstream");
            return answer;
        };
        if let Some(reply) = self.lookup(&name, kind).await {
            answer.answers.extend(reply.answers);
        }
        answer
    }

    /// The first useful reply; NXDOMAIN is one.
    async fn lookup(&self, name: &Name, kind: RecordType) -> Option<Message> {
        for server in self.servers.iter() {
            let asked = tokio::time::timeout(self.timeout, ask(*server, name, kind)).await;
            match asked.unwrap_or(Err(UpstreamError::Timeout)) {
                Ok(reply) => return Some(reply),
                Err(error) => tracing::debug!(%server, %name, %kind, %error, "asked upstream"),
            }
        }
        None
    }
}

async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> Result<Message, UpstreamError> {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    query.set_edns(edns);
    let packet = query
        .to_vec()
        .map_err(|error| UpstreamError::Codec(error.to_string()))?;
    let mut reply = matching(&query, &over_udp(server, &packet).await?)?;
    if reply.truncation {
        reply = matching(&query, &over_tcp(server, &packet).await?)?;
    }
    match reply.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(reply),
        code => Err(UpstreamError::Code(code)),
    }
}

fn matching(query: &Message, packet: &[u8]) -> Result<Message, UpstreamError> {
    let reply =
        Message::from_vec(packet).map_err(|error| UpstreamError::Codec(error.to_string()))?;
    let same = reply.id == query.id
        && reply.message_type == MessageType::Response
        && reply.op_code == OpCode::Query
        && reply.queries == query.queries;
    same.then_some(reply).ok_or(UpstreamError::Mismatch)
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>, UpstreamError> {
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A port of its own for each query, connected to the server: replies cannot be guessed.
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut reply = vec![0; MAX_MESSAGE];
    let length = socket.recv(&mut reply).await?;
    reply.truncate(length);
    Ok(reply)
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>, UpstreamError> {
    let length = u16::try_from(packet.len()).map_err(|_| UpstreamError::Mismatch)?;
    let mut stream = TcpStream::connect(server).await?;
    stream
        .write_all(&[&length.to_be_bytes(), packet].concat())
        .await?;
    let length = stream.read_u16().await?;
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use crate::testing::{config, zone_of};
    use crate::{Kind, NamesChange, Service, ServiceKey, Zone};

    use super::*;

    const MANY: usize = 300;

    fn zone() -> Zone {
        let external = NamesChange::Service(Service {
            key: ServiceKey::new("testns", "ext"),
            kind: Kind::ExternalName {
                target: "www.example.org".to_owned(),
            },
            ports: Vec::new(),
            publish_not_ready: false,
        });
        zone_of(config(), [external])
    }

    /// Begins a question; an answer if it is there at once.
    fn begin<F: Future>(mut question: Pin<Box<F>>) -> Result<Pin<Box<F>>, F::Output> {
        let mut context = Context::from_waker(Waker::noop());
        match question.as_mut().poll(&mut context) {
            Poll::Pending => Ok(question),
            Poll::Ready(answer) => Err(answer),
        }
    }

    #[tokio::test]
    async fn so_many_questions_are_under_way_at_most() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let servers = [silent.local_addr().unwrap()];
        let upstream = Upstream::new(&servers, Duration::from_secs(3600));
        let (zone, name) = (zone(), Name::from_ascii("ext.testns.svc.cluster.local."));
        let name = name.unwrap();
        let ask = || {
            let answer = zone.answer(&name, RecordType::A);
            Box::pin(upstream.complete(answer, RecordType::A))
        };
        let (mut under_way, mut answered) = (Vec::new(), Vec::new());
        for _ in 0..MANY {
            match begin(ask()) {
                Ok(question) => under_way.push(question),
                Err(answer) => answered.push(answer),
            }
        }
        assert_eq!(
            (under_way.len(), answered.len()),
            (UNDER_WAY, MANY - UNDER_WAY)
        );
        // The alias, as when no server helps.
        assert!(answered.iter().all(|answer| answer.answers.len() == 1));
        under_way.pop();
        assert!(begin(ask()).is_ok());
    }
}

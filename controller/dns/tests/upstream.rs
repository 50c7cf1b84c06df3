// SPDX-License-Identifier: Apache-2.0

//! ExternalName Services that lead outside, with name servers that answer, answer badly, or do not.

use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use portolan_dns::{
    Kind, Name, NamesChange, RecordType, Server, Service, ServiceKey, SharedZone, Upstream, Zone,
    ZoneConfig,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NAME: &str = "ext.default.svc.cluster.local.";

fn zone() -> Result<Arc<SharedZone>> {
    let mut zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    zone.apply(NamesChange::Service(Service {
        key: ServiceKey::new("default", "ext"),
        kind: Kind::ExternalName {
            target: "www.example.org".to_owned(),
        },
        ports: Vec::new(),
        publish_not_ready: false,
    }));
    zone.apply(NamesChange::Synced);
    Ok(Arc::new(SharedZone::new(zone)))
}

/// A name server that makes its replies with `reply`, over UDP; over TCP it always answers.
async fn name_server(
    reply: impl Fn(Message) -> Option<Message> + Send + 'static,
) -> Result<SocketAddr> {
    let (udp, tcp) = loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await?;
        // Another test may have this port for TCP.
        match TcpListener::bind(udp.local_addr()?).await {
            Ok(tcp) => break (udp, tcp),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.into()),
        }
    };
    let address = udp.local_addr()?;
    tokio::spawn(async move {
        let mut packet = vec![0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut packet).await {
            let query = Message::from_vec(&packet[..length]).ok();
            let bytes = query.and_then(&reply).and_then(|reply| reply.to_vec().ok());
            if let Some(bytes) = bytes {
                let _ = udp.send_to(&bytes, from).await;
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let Ok(length) = stream.read_u16().await else {
                continue;
            };
            let mut packet = vec![0; length.into()];
            let _ = stream.read_exact(&mut packet).await;
            let query = Message::from_vec(&packet).ok();
            if let Some(Ok(bytes)) = query.map(|query| found(query).to_vec()) {
                let length = u16::try_from(bytes.len()).unwrap_or_default();
                let _ = stream.write_u16(length).await;
                let _ = stream.write_all(&bytes).await;
            }
        }
    });
    Ok(address)
}

fn found(query: Message) -> Message {
    let mut reply = query.into_response();
    reply.metadata.op_code = OpCode::Query;
    let name = reply.queries[0].name().clone();
    let address = std::net::Ipv4Addr::new(192, 0, 2, 80);
    reply.add_answer(Record::from_rdata(name, 60, RData::A(A(address))));
    reply
}

async fn ask(servers: &[SocketAddr]) -> Result<Message> {
    let upstream = Upstream::new(servers, Duration::from_secs(1));
    let server = Server::new(zone()?).with_upstream(upstream);
    let mut query = Message::new(9, MessageType::Query, OpCode::Query);
    query.add_query(Query::query(Name::from_ascii(NAME)?, RecordType::A));
    let reply = server.resolve(&query.to_vec()?).await.ok_or("no reply")?;
    Ok(Message::from_vec(&reply)?)
}

fn is_complete(reply: &Message) {
    assert_eq!(reply.response_code, ResponseCode::NoError);
    let lines: Vec<_> = reply.answers.iter().map(ToString::to_string).collect();
    let alias = format!("{NAME} 5 IN CNAME www.example.org.");
    assert_eq!(
        lines,
        [alias, "www.example.org. 60 IN A 192.0.2.80".to_owned()]
    );
}

#[tokio::test]
async fn aliases_are_followed_outside() -> Result<()> {
    let good = name_server(|query| Some(found(query))).await?;
    is_complete(&ask(&[good]).await?);
    Ok(())
}

#[tokio::test]
async fn the_next_server_is_asked_if_one_does_not_help() -> Result<()> {
    let good = name_server(|query| Some(found(query))).await?;
    let silent = name_server(|_| None).await?;
    let refusing = name_server(|query| {
        let mut reply = query.into_response();
        reply.metadata.response_code = ResponseCode::Refused;
        Some(reply)
    })
    .await?;
    let forged = name_server(|query| {
        let mut reply = found(query);
        reply.metadata.id ^= 1;
        Some(reply)
    })
    .await?;
    is_complete(&ask(&[silent, refusing, forged, good]).await?);
    for bad in [silent, refusing, forged] {
        // As in CoreDNS the alias is all then.
        let reply = ask(&[bad]).await?;
        assert_eq!(reply.response_code, ResponseCode::NoError);
        assert_eq!(reply.answers.len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn long_replies_come_over_tcp() -> Result<()> {
    let long = name_server(|query| {
        let mut reply = query.into_response();
        reply.metadata.truncation = true;
        Some(reply)
    })
    .await?;
    is_complete(&ask(&[long]).await?);
    Ok(())
}

#[tokio::test]
async fn an_alias_is_an_answer_even_if_it_leads_to_nothing_outside() -> Result<()> {
    let missing = name_server(|query| {
        let mut reply = query.into_response();
        reply.metadata.response_code = ResponseCode::NXDomain;
        Some(reply)
    })
    .await?;
    let reply = ask(&[missing]).await?;
    assert_eq!(reply.response_code, ResponseCode::NoError);
    assert_eq!((reply.answers.len(), reply.authorities.len()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn without_anybody_to_ask_the_alias_is_all() -> Result<()> {
    let server = Server::new(zone()?);
    let mut query = Message::new(9, MessageType::Query, OpCode::Query);
    query.add_query(Query::query(Name::from_ascii(NAME)?, RecordType::A));
    let reply = server.resolve(&query.to_vec()?).await;
    assert_eq!(reply, server.answer(&query.to_vec()?));
    let reply = Message::from_vec(&reply.ok_or("no reply")?)?;
    assert_eq!(
        (reply.response_code, reply.answers.len()),
        (ResponseCode::NoError, 1)
    );
    Ok(())
}

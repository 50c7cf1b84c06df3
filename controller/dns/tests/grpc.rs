// SPDX-License-Identifier: Apache-2.0

//! The gRPC service as CoreDNS's grpc plugin uses it, over TCP and over a Unix socket.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::DNSClass;
use portolan_dns::grpc::pb::DnsPacket;
use portolan_dns::grpc::pb::dns_service_client::DnsServiceClient;
use portolan_dns::grpc::{serve_tcp, serve_unix};
use portolan_dns::{
    Kind, Name, NamesChange, RecordType, Server, Service, ServiceKey, SharedZone, Zone, ZoneConfig,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn service(name: &str, ip: &str) -> Result<NamesChange> {
    Ok(NamesChange::Service(Service {
        key: ServiceKey::new("default", name),
        kind: Kind::ClusterIp {
            ips: vec![ip.parse()?],
        },
        ports: Vec::new(),
        publish_not_ready: false,
    }))
}

fn query(name: &str) -> Result<DnsPacket> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name)?, RecordType::A));
    Ok(DnsPacket {
        msg: message.to_vec()?,
    })
}

async fn ask(client: &mut DnsServiceClient<Channel>, name: &str) -> Result<Message> {
    let reply = client.query(query(name)?).await?.into_inner();
    Ok(Message::from_vec(&reply.msg)?)
}

/// Connects to a server and makes all exchanges.
async fn exercise_at(endpoint: String, zone: &SharedZone) -> Result<()> {
    let channel = Endpoint::from_shared(endpoint)?.connect().await?;
    exercise(&mut DnsServiceClient::new(channel), zone).await
}

/// All exchanges of a client and a server, over any transport.
async fn exercise(client: &mut DnsServiceClient<Channel>, zone: &SharedZone) -> Result<()> {
    let early = client.query(query("a.default.svc.cluster.local.")?).await;
    assert_eq!(
        early.map_err(|status| status.code()).err(),
        Some(Code::Unavailable)
    );

    zone.apply([service("a", "10.0.0.1")?, NamesChange::Synced]);
    let found = ask(client, "a.default.svc.cluster.local.").await?;
    assert_eq!((found.id, found.answers.len()), (7, 1));
    let missing = ask(client, "b.default.svc.cluster.local.").await?;
    assert_eq!(missing.response_code, ResponseCode::NXDomain);

    zone.apply([service("b", "10.0.0.2")?]);
    let found = ask(client, "b.default.svc.cluster.local.").await?;
    assert_eq!(found.answers[0].data.to_string(), "10.0.0.2");

    refused(client).await?;
    malformed(client).await
}

async fn code_of(client: &mut DnsServiceClient<Channel>, msg: Vec<u8>) -> Result<ResponseCode> {
    let id = msg[..2].to_vec();
    let reply = client.query(DnsPacket { msg }).await?.into_inner();
    assert_eq!(reply.msg[..2], id);
    Ok(Message::from_vec(&reply.msg)?.response_code)
}

/// Queries that are well-formed, and not for us.
async fn refused(client: &mut DnsServiceClient<Channel>) -> Result<()> {
    let name = "a.default.svc.cluster.local.";
    let query = |name: &str, kind| -> Result<Message> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(name)?, kind));
        Ok(message)
    };
    let mut chaos = query(name, RecordType::TXT)?;
    chaos.queries[0].set_query_class(DNSClass::CH);
    for message in [
        chaos,
        query("example.org.", RecordType::A)?,
        query(".", RecordType::NS)?,
        query("cluster.local.", RecordType::AXFR)?,
        query("cluster.local.", RecordType::IXFR)?,
    ] {
        let code = code_of(client, message.to_vec()?).await?;
        assert_eq!(code, ResponseCode::Refused, "{message}");
    }
    let mut update = query("cluster.local.", RecordType::SOA)?;
    update.metadata.op_code = OpCode::Update;
    let code = code_of(client, update.to_vec()?).await?;
    assert_eq!(code, ResponseCode::NotImp);
    Ok(())
}

/// Messages that are not queries, of any length.
async fn malformed(client: &mut DnsServiceClient<Channel>) -> Result<()> {
    let good = query("a.default.svc.cluster.local.")?.msg;
    let padded = |length: usize| [&good[..], &vec![0xff; length - good.len()]].concat();
    let mut pointer = good[..12].to_vec();
    // A name that points to itself.
    pointer.extend([0xc0, 12, 0, 1, 0, 1]);
    let mut counted = good.clone();
    counted[7] = 1;
    for bad in [
        good[..good.len() - 1].to_vec(),
        pointer,
        counted,
        vec![0; 13],
        vec![0; 65_535],
        padded(65_536),
        padded(100_000),
    ] {
        let length = bad.len();
        let code = code_of(client, bad).await?;
        assert_eq!(code, ResponseCode::FormErr, "{length} bytes");
    }
    let mut reply = good.clone();
    reply[2] |= 0x80;
    for (msg, expected) in [
        (Vec::new(), Code::InvalidArgument),
        (vec![0], Code::InvalidArgument),
        (reply, Code::InvalidArgument),
        (vec![0; 200_000], Code::OutOfRange),
    ] {
        let length = msg.len();
        let said = client.query(DnsPacket { msg }).await;
        let code = said.map_err(|status| status.code()).err();
        assert_eq!(code, Some(expected), "{length} bytes");
    }
    // None of it has hurt the connection.
    let found = ask(client, "a.default.svc.cluster.local.").await?;
    assert_eq!(found.answers.len(), 1);
    Ok(())
}

fn empty() -> Result<(Arc<SharedZone>, Server)> {
    let zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    let zone = Arc::new(SharedZone::new(zone));
    Ok((Arc::clone(&zone), Server::new(zone)))
}

#[tokio::test]
async fn over_tcp() -> Result<()> {
    let (zone, server) = empty()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve_tcp(server, listener, async {
        let _ = stopped.await;
    }));
    exercise_at(format!("http://{address}"), &zone).await?;
    drop(stop);
    task.await??;
    Ok(())
}

#[tokio::test]
async fn over_a_unix_socket() -> Result<()> {
    let (zone, server) = empty()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("dns.sock");
    let listener = UnixListener::bind(&path)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve_unix(server, listener, async {
        let _ = stopped.await;
    }));
    exercise_at(format!("unix://{}", path.display()), &zone).await?;
    drop(stop);
    task.await??;
    Ok(())
}

/// Idle connections are closed in favour of new ones.
#[tokio::test]
async fn idle_connections_do_not_block_new_ones() -> Result<()> {
    const IDLE: usize = 500;
    let (zone, server) = empty()?;
    zone.apply([service("a", "10.0.0.1")?, NamesChange::Synced]);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(serve_tcp(server, listener, std::future::pending()));
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(address).await?);
    }
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = DnsServiceClient::new(channel);
    let found = ask(&mut client, "a.default.svc.cluster.local.").await?;
    assert_eq!(found.answers.len(), 1);
    for stream in &mut idle[..=IDLE - 256] {
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let _closed_or_reset = timeout(Duration::from_secs(60), ended).await?;
    }
    task.abort();
    Ok(())
}

/// Answers are made while changes are: none is ever torn, and none waits for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_while_the_zone_changes() -> Result<()> {
    let (zone, server) = empty()?;
    zone.apply([service("a", "10.0.0.0")?, NamesChange::Synced]);
    let writer = {
        let zone = Arc::clone(&zone);
        tokio::task::spawn_blocking(move || {
            for i in 0..=255 {
                if let Ok(change) = service("a", &format!("10.0.0.{i}")) {
                    zone.apply([change]);
                }
            }
        })
    };
    let packet = query("a.default.svc.cluster.local.")?.msg;
    loop {
        let finished = writer.is_finished();
        let reply = server.answer(&packet).ok_or("no reply")?;
        let reply = Message::from_vec(&reply)?;
        assert_eq!(reply.answers.len(), 1);
        if finished {
            assert_eq!(reply.answers[0].data.to_string(), "10.0.0.255");
            break;
        }
    }
    writer.await?;
    Ok(())
}

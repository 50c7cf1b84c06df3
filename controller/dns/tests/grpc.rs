//! The gRPC service as CoreDNS's grpc plugin uses it, over TCP and over a Unix socket.

use std::error::Error;
use std::sync::Arc;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use portolan_dns::grpc::pb::DnsPacket;
use portolan_dns::grpc::pb::dns_service_client::DnsServiceClient;
use portolan_dns::grpc::{serve_tcp, serve_unix};
use portolan_dns::{
    Change, Kind, Name, RecordType, Server, Service, ServiceKey, SharedZone, Zone, ZoneConfig,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn service(name: &str, ip: &str) -> Result<Change> {
    Ok(Change::Service(Service {
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

/// Everything that a client sees of a server, whatever the transport.
async fn exercise(client: &mut DnsServiceClient<Channel>, zone: &SharedZone) -> Result<()> {
    let early = client.query(query("a.default.svc.cluster.local.")?).await;
    assert_eq!(
        early.map_err(|status| status.code()).err(),
        Some(Code::Unavailable)
    );

    zone.apply([service("a", "10.0.0.1")?, Change::Synced]);
    let found = ask(client, "a.default.svc.cluster.local.").await?;
    assert_eq!((found.id, found.answers.len()), (7, 1));
    let missing = ask(client, "b.default.svc.cluster.local.").await?;
    assert_eq!(missing.response_code, ResponseCode::NXDomain);

    zone.apply([service("b", "10.0.0.2")?]);
    let found = ask(client, "b.default.svc.cluster.local.").await?;
    assert_eq!(found.answers[0].data.to_string(), "10.0.0.2");

    let garbage = client.query(DnsPacket { msg: vec![0] }).await;
    assert_eq!(
        garbage.map_err(|status| status.code()).err(),
        Some(Code::InvalidArgument)
    );
    let malformed = client
        .query(DnsPacket { msg: vec![0; 13] })
        .await?
        .into_inner();
    assert_eq!(
        Message::from_vec(&malformed.msg)?.response_code,
        ResponseCode::FormErr
    );
    let huge = client
        .query(DnsPacket {
            msg: vec![0; 70_000],
        })
        .await;
    assert_eq!(
        huge.map_err(|status| status.code()).err(),
        Some(Code::OutOfRange)
    );
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
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = DnsServiceClient::new(channel);
    exercise(&mut client, &zone).await?;
    drop((client, stop));
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
    let channel = Endpoint::from_shared(format!("unix://{}", path.display()))?
        .connect()
        .await?;
    let mut client = DnsServiceClient::new(channel);
    exercise(&mut client, &zone).await?;
    drop((client, stop));
    task.await??;
    Ok(())
}

/// Answers are made while changes are: none is ever torn, and none waits for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_while_the_zone_changes() -> Result<()> {
    let (zone, server) = empty()?;
    zone.apply([service("a", "10.0.0.0")?, Change::Synced]);
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

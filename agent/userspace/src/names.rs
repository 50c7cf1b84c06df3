// SPDX-License-Identifier: Apache-2.0

//! Names of Services, from the same table: answers to a command, as a cluster's DNS gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use portolan_dns::{ConfigError, Kind, NamesChange, Port, Server, Service, ServiceKey};
use portolan_dns::{SharedZone, Zone, ZoneConfig};
use portolan_model::{FrontendAddress, FrontendKind, NodeTable};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::listen::{Listen, Transport};

/// Address of the name server inside of the namespaces.
pub(crate) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), 53);

/// The largest query.
const LARGEST: usize = 4096;

/// TCP connections of queries at once.
const CONNECTIONS: usize = 64;

/// Time for one query over TCP.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sockets of the name server.
pub(crate) const SOCKETS: [Listen; 2] = [
    Listen {
        transport: Transport::Udp,
        at: SERVER,
    },
    Listen {
        transport: Transport::Tcp,
        at: SERVER,
    },
];

/// The text of a /etc/resolv.conf that finds Services by their short names, as those in a pod of the namespace do.
#[must_use]
pub fn resolv_conf(zone: &str, namespace: &str) -> String {
    let server = SERVER.ip();
    format!(
        "nameserver {server}\nsearch {namespace}.svc.{zone} svc.{zone} {zone}\noptions ndots:5\n"
    )
}

/// The names of a table's Services.
#[derive(Debug)]
pub(crate) struct Names {
    zone: Arc<SharedZone>,
    services: BTreeMap<ServiceKey, Service>,
}

impl Names {
    /// Names in a zone such as `cluster.local`.
    pub(crate) fn new(zone: &str) -> Result<Self, ConfigError> {
        let zone = Zone::new(ZoneConfig::new(zone)?, 1)?;
        Ok(Self {
            zone: Arc::new(SharedZone::new(zone)),
            services: BTreeMap::new(),
        })
    }

    /// Returns the server that answers queries.
    pub(crate) fn server(&self) -> Server {
        Server::new(Arc::clone(&self.zone))
    }

    /// Follows a table.
    pub(crate) fn follow(&mut self, table: &NodeTable) {
        let now = services(table);
        let gone = self.services.keys().filter(|key| !now.contains_key(*key));
        let gone = gone.cloned().map(NamesChange::ServiceRemoved);
        let changed = now
            .iter()
            .filter(|(key, s)| self.services.get(*key) != Some(*s));
        let changed = changed.map(|(_, service)| NamesChange::Service(service.clone()));
        let changes: Vec<_> = gone.chain(changed).chain([NamesChange::Synced]).collect();
        for problem in self.zone.apply(changes).problems {
            tracing::debug!(%problem, "a name is left out");
        }
        self.services = now;
    }
}

/// The Services of a table that have cluster IPs.
fn services(table: &NodeTable) -> BTreeMap<ServiceKey, Service> {
    let mut found: BTreeMap<ServiceKey, (BTreeSet<IpAddr>, Vec<Port>)> = BTreeMap::new();
    for record in table.records.values() {
        let key = &record.key;
        let (ips, ports) = found
            .entry(ServiceKey::new(&*key.namespace, &*key.service))
            .or_default();
        for frontend in &record.frontends {
            let FrontendAddress::Vip(ip) = frontend.address else {
                continue;
            };
            if frontend.kind == FrontendKind::ClusterIp {
                ips.insert(ip);
                let port = Port {
                    name: key.port.to_string(),
                    protocol: key.protocol,
                    number: Some(frontend.port),
                };
                if !ports.contains(&port) {
                    ports.push(port);
                }
            }
        }
    }
    let service = |(key, (ips, ports)): (ServiceKey, (BTreeSet<IpAddr>, Vec<Port>))| {
        let service = Service {
            key: key.clone(),
            kind: Kind::ClusterIp {
                ips: ips.into_iter().collect(),
            },
            ports,
            publish_not_ready: false,
        };
        (key, service)
    };
    found.into_iter().map(service).collect()
}

/// Answers over UDP for ever.
pub(crate) async fn serve_udp(socket: UdpSocket, server: Server) {
    let mut query = vec![0; LARGEST];
    loop {
        // An error belongs to an answer that was sent before.
        let Ok((length, client)) = socket.recv_from(&mut query).await else {
            continue;
        };
        if let Some(answer) = server.answer(&query[..length]) {
            let _ = socket.send_to(&answer, client).await;
        }
    }
}

/// Answers over TCP for ever.
pub(crate) async fn serve_tcp(listener: TcpListener, server: Server) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let server = server.clone();
        tokio::spawn(async move {
            // The end of the connection is the answer to anything else.
            let _ = queries(stream, &server).await;
            drop(place);
        });
    }
}

async fn queries(mut stream: TcpStream, server: &Server) -> std::io::Result<()> {
    loop {
        let length = timeout(PATIENCE, stream.read_u16()).await??;
        let mut query = vec![0; usize::from(length)];
        timeout(PATIENCE, stream.read_exact(&mut query)).await??;
        let Some(answer) = server.answer(&query) else {
            return Ok(());
        };
        let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
        let whole = [&length.to_be_bytes()[..], &answer].concat();
        timeout(PATIENCE, stream.write_all(&whole)).await??;
    }
}

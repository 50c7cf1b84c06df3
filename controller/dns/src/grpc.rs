// SPDX-License-Identifier: Apache-2.0

//! The gRPC service that CoreDNS's grpc plugin asks:
//!
//! ```text
//! cluster.local in-addr.arpa ip6.arpa {
//!     cache {
//!         serve_stale
//!     }
//!     grpc . unix:///run/portolan/dns.sock 10.0.0.9:5300 {
//!         policy sequential
//!     }
//! }
//! ```
//!
//! All servers together have 5 seconds, so the list should be short and the nearest one first. With
//! `fallthrough` CoreDNS cannot go on to a zone file in the same block: `file` comes before `grpc`.
//! Only CoreDNS's cache survives an outage.

use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tonic::{Request, Response, Status};

use crate::incoming::{Incoming, Listen};
use crate::server::Server;
use crate::wire::MAX_MESSAGE;

/// The generated messages, client and server.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes,
    reason = "generated code"
)]
pub mod pb {
    tonic::include_proto!("coredns.dns");
}

use pb::DnsPacket;
use pb::dns_service_server::{DnsService, DnsServiceServer};

/// The longest request, in bytes. A request that is slightly too long for a DNS message gets a DNS
/// reply with an error; a longer one ends with gRPC's OUT_OF_RANGE.
const MAX_REQUEST: usize = 2 * MAX_MESSAGE;

/// The keepalive interval of a silent connection, which is closed if it does not answer in time.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The service `coredns.dns.DnsService`.
#[derive(Debug, Clone)]
pub struct DnsGrpc {
    server: Server,
}

impl DnsGrpc {
    /// The service for a tonic server. For listeners of its own there are [`serve_tcp`] and
    /// [`serve_unix`].
    #[must_use]
    pub fn service(server: Server) -> DnsServiceServer<Self> {
        DnsServiceServer::new(Self { server }).max_decoding_message_size(MAX_REQUEST)
    }
}

#[tonic::async_trait]
impl DnsService for DnsGrpc {
    /// `UNAVAILABLE` until synced: CoreDNS then asks the next server that it has, and caches
    /// nothing. If none is left, its client gets SERVFAIL, as from here.
    async fn query(&self, request: Request<DnsPacket>) -> Result<Response<DnsPacket>, Status> {
        if !self.server.is_ready() {
            return Err(Status::unavailable(
                "the cluster's objects are not known yet",
            ));
        }
        match self.server.resolve(&request.into_inner().msg).await {
            Some(msg) => Ok(Response::new(DnsPacket { msg })),
            None => Err(Status::invalid_argument("not a DNS query")),
        }
    }
}

/// Serves on a TCP listener until `shutdown`, then finishes the requests in progress. At most 256
/// connections are open, 32 of one source.
///
/// # Errors
///
/// If the listener fails.
pub async fn serve_tcp(
    server: Server,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve(server, listener, shutdown).await
}

/// Serves on a Unix socket until `shutdown`, then finishes the requests in progress. At most 256
/// connections are open.
///
/// # Errors
///
/// If the listener fails.
pub async fn serve_unix(
    server: Server,
    listener: UnixListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve(server, listener, shutdown).await
}

async fn serve<L: Listen + Send>(
    server: Server,
    listener: L,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    L::Io: Send + 'static,
{
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(DnsGrpc::service(server))
        .serve_with_incoming_shutdown(Incoming::new(listener), shutdown)
        .await
}

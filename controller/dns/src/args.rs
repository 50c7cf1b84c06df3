// SPDX-License-Identifier: Apache-2.0

//! Command-line flags of programs that answer DNS queries.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_runtime::{SocketAccess, SocketGroup, SocketMode};
use prometheus_client::registry::Registry;

use crate::{Bind, Bound, LagCollector, Metrics, Server, SharedZone, Upstream};

/// The timeout of one upstream server. CoreDNS waits 5 s for the whole answer.
const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(1500);

/// Flags of the DNS server, of the controller and the agent.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DnsServerArgs {
    /// An address for CoreDNS's grpc plugin: ADDRESS:PORT or unix:///PATH; may be repeated. An
    /// agent gets the names from its controller, which needs --dns-zone, and keeps them in
    /// --state-dir.
    #[arg(
        id = "dns_bind",
        long = "dns-bind-address",
        env = "PORTOLAN_DNS_BIND_ADDRESS",
        value_delimiter = ','
    )]
    bind: Vec<Bind>,

    /// The permissions of a Unix socket of --dns-bind-address, in octal. Write permission is needed
    /// to connect.
    #[arg(
        id = "dns_socket_mode",
        long = "dns-socket-mode",
        env = "PORTOLAN_DNS_SOCKET_MODE",
        default_value = "0600"
    )]
    socket_mode: SocketMode,

    /// The group of that socket, by name or number. Default: the process's.
    #[arg(
        id = "dns_socket_group",
        long = "dns-socket-group",
        env = "PORTOLAN_DNS_SOCKET_GROUP"
    )]
    socket_group: Option<SocketGroup>,

    /// A name server that resolves targets of ExternalName Services outside of the zones, as
    /// ADDRESS:PORT; may be repeated. Without it, the answer is the CNAME record alone, as for more than 256 questions
    /// at once.
    #[arg(
        id = "dns_upstream",
        long = "dns-upstream",
        env = "PORTOLAN_DNS_UPSTREAM",
        value_delimiter = ','
    )]
    upstream: Vec<SocketAddr>,
}

impl DnsServerArgs {
    /// Returns `true` if there is an address to serve at.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.bind.is_empty()
    }

    /// A server of a zone, with its metrics.
    #[must_use]
    pub fn server(&self, zone: &Arc<SharedZone>, registry: &mut Registry) -> Server {
        registry.register_collector(Box::new(LagCollector(Arc::clone(zone))));
        let server = Server::new(Arc::clone(zone)).with_metrics(Metrics::register(registry));
        if self.upstream.is_empty() {
            return server;
        }
        server.with_upstream(Upstream::new(&self.upstream, UPSTREAM_TIMEOUT))
    }

    /// Returns the permissions and the group of Unix sockets.
    #[must_use]
    pub fn socket_access(&self) -> SocketAccess {
        SocketAccess {
            mode: self.socket_mode,
            group: self.socket_group.clone(),
        }
    }

    /// Binds all addresses.
    ///
    /// # Errors
    /// If an address cannot be bound; the message names it.
    pub async fn bind(&self) -> io::Result<Vec<Bound>> {
        let access = self.socket_access();
        let mut bound = Vec::new();
        for bind in &self.bind {
            bound.push(bind.bind(&access).await?);
        }
        Ok(bound)
    }
}

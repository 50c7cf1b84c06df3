// SPDX-License-Identifier: Apache-2.0

//! One machine of the rig as its programs see it: a name, a namespace, an address of each family.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;

use super::client::{Answer, Connection, RequestError};
use super::echo::EchoServer;
use super::namespace::Namespace;

/// A transport protocol that servers and clients of the rig speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, where the kernel has it; see [`super::has_sctp`].
    Sctp,
}

impl Protocol {
    /// The two that every kernel has.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

/// A pod, a node or an outside client.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    namespace: Namespace,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Host {
    pub(super) fn new(name: String, namespace: Namespace, v4: Ipv4Addr, v6: Ipv6Addr) -> Self {
        Self {
            name,
            namespace,
            v4,
            v6,
        }
    }

    /// A pod that others made, entered by one of its processes. It is called as the pod is.
    pub fn of_process(name: &str, pid: u32, v4: Ipv4Addr) -> Result<Self> {
        let namespace = Namespace::of_process(pid)?;
        Ok(Self::new(name.into(), namespace, v4, Ipv6Addr::UNSPECIFIED))
    }

    /// The name that its echo servers answer.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its network namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its IPv4 address.
    #[must_use]
    pub fn v4(&self) -> Ipv4Addr {
        self.v4
    }

    /// Its IPv6 address.
    #[must_use]
    pub fn v6(&self) -> Ipv6Addr {
        self.v6
    }

    /// Its address of a family.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// Its address of a family, with a port.
    #[must_use]
    pub fn socket(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(family), port)
    }

    /// Runs a program here and returns its output, or an error if it fails.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        self.namespace.exec(command)
    }

    /// All virtual servers, real servers and set entries of its kernel, as `ipvsadm` and `ipset` save them.
    pub fn kernel_state(&self) -> Result<BTreeSet<String>> {
        let servers = self.exec(&["ipvsadm", "-Sn"])?;
        let sets = self.exec(&["ipset", "save"])?;
        let entries = sets.lines().filter(|line| line.starts_with("add "));
        Ok(servers.lines().chain(entries).map(str::to_owned).collect())
    }

    /// Adds a route, such as one to a service range by way of a node.
    pub fn add_route(&self, destination: &str, via: IpAddr) -> Result<()> {
        let command = format!("route replace {destination} via {via}");
        self.namespace.ip(&[command])
    }

    /// Starts an echo server on both families.
    pub fn serve(&self, protocol: Protocol, port: u16) -> Result<EchoServer> {
        EchoServer::start(self, protocol, port)
    }

    /// Asks an echo server once, over a new connection.
    pub fn request(
        &self,
        protocol: Protocol,
        target: SocketAddr,
        timeout: Duration,
    ) -> Result<Answer, RequestError> {
        self.run_request(|| super::client::request(protocol, target, timeout))
    }

    /// Opens a connection to an echo server, to ask it many times from one source port.
    pub fn connect(
        &self,
        protocol: Protocol,
        target: SocketAddr,
        timeout: Duration,
    ) -> Result<Connection, RequestError> {
        self.run_request(|| Connection::open(protocol, target, timeout))
    }

    fn run_request<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, RequestError> + Send,
    ) -> Result<T, RequestError> {
        self.namespace
            .run(work)
            .unwrap_or_else(|error| Err(RequestError::Other(format!("{error:#}"))))
    }
}

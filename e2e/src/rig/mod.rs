// SPDX-License-Identifier: Apache-2.0

//! A small cluster out of network namespaces: nodes and outside clients on a LAN, pods behind nodes.
//!
//! ```text
//!   client .200   client2 .201          192.168.77.0/24, fd00:77::/64
//!      |             |
//!   ===+=============+=======+==========+===  LAN: a bridge in a namespace of its own
//!                            |          |
//!                    node 0 .11       node 1 .12
//!                      /    \             \       routed: the gateway address on every veth,
//!              10.244.1.2  10.244.1.3   10.244.2.2   a host route to each pod
//! ```
//!
//! Nodes know each other's pods by routes; outside clients know none, so a packet that leaves for one
//! without masquerade gets no answer. Everything is removed when the [`Rig`] is dropped.

mod client;
mod echo;
pub mod evidence;
mod host;
mod lan;
mod load;
mod namespace;
mod node;
mod process;
mod sctp;

use std::sync::Arc;

use anyhow::Result;

pub use self::client::{Answer, Connection, RequestError};
pub use self::echo::EchoServer;
pub use self::host::{Family, Host, Protocol};
pub use self::load::{Failure, Load, LoadConfig, LoadReport, Slowest};
pub use self::namespace::Namespace;
pub use self::node::{Node, Pod};
pub use self::process::Process;
pub use self::sctp::has_sctp;

use self::namespace::NamespaceSet;

/// The number of machines of a rig.
#[derive(Clone, Copy, Debug)]
pub struct RigConfig {
    /// Cluster nodes: 192.168.77.11, .12 and so on.
    pub nodes: u8,
    /// Outside clients: 192.168.77.200, .201 and so on.
    pub clients: u8,
}

impl RigConfig {
    /// Two nodes, an outside client, and the machine of the control plane.
    pub const CLUSTER: Self = Self {
        nodes: 2,
        clients: 2,
    };
}

impl Default for RigConfig {
    fn default() -> Self {
        Self {
            nodes: 2,
            clients: 1,
        }
    }
}

/// The cluster. Machines are reached by number, from 0.
#[derive(Debug)]
pub struct Rig {
    lan: Namespace,
    nodes: Vec<Node>,
    clients: Vec<Host>,
}

impl Rig {
    /// Builds the LAN, the nodes and the clients; pods come by [`Node::add_pod`].
    pub fn new(config: RigConfig) -> Result<Self> {
        Self::of_clusters(config, config.nodes)
    }

    /// The same for several clusters of so many nodes each, that have the same networks of pods: nodes know the routes
    /// to pods of their own cluster alone.
    pub fn of_clusters(config: RigConfig, nodes_each: u8) -> Result<Self> {
        let set = Arc::new(NamespaceSet::new());
        let (lan, machines) = lan::build(&set, config)?;
        let (nodes, clients) = machines.split_at(config.nodes.into());
        let nodes = (0..config.nodes)
            .zip(nodes)
            .map(|(number, host)| {
                let first = number - number % nodes_each;
                let cluster = first..(first + nodes_each).min(config.nodes);
                Node::new(host.clone(), number, cluster, Arc::clone(&set))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            lan,
            nodes,
            clients: clients.to_vec(),
        })
    }

    /// A node by number.
    ///
    /// # Panics
    /// If the rig has no such node.
    #[must_use]
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Sets the largest packet of the links between nodes and the LAN, in bytes. Those of pods stay larger.
    pub fn set_mtu(&self, bytes: u16) -> Result<()> {
        self.nodes
            .iter()
            .try_for_each(|node| lan::set_mtu(&self.lan, node, bytes))
    }

    /// Silently drops all packets between two machines of the LAN, or no longer. Their packets to
    /// other machines pass.
    pub fn cut(&self, ends: [&Host; 2], cut: bool) -> Result<()> {
        ends.into_iter()
            .try_for_each(|end| lan::isolate(&self.lan, end, cut))
    }

    /// Unplugs a machine of the LAN, or plugs it in again: its interface stays up and has no carrier.
    pub fn unplug(&self, host: &Host, unplugged: bool) -> Result<()> {
        lan::unplug(&self.lan, host, unplugged)
    }

    /// The first outside client.
    ///
    /// # Panics
    /// If the rig was built without clients.
    #[must_use]
    pub fn client(&self) -> &Host {
        &self.clients[0]
    }

    /// All outside clients.
    #[must_use]
    pub fn clients(&self) -> &[Host] {
        &self.clients
    }
}

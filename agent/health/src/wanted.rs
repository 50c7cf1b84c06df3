// SPDX-License-Identifier: Apache-2.0

//! Load balancers to be checked.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::check::{Check, HealthPolicy};

use crate::Administrative;

/// The backends of one load balancer, their checks, and the rules about all of them together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Name for programs and logs: `default/web`.
    pub name: Arc<str>,
    /// Frontend for programs and logs: `TCP/192.0.2.10:80`.
    pub frontend: Arc<str>,
    /// Rules about all backends together.
    pub policy: HealthPolicy,
    /// Whether there is a server for the time without quorum.
    pub has_sorry_server: bool,
    /// The backends by their addresses.
    pub backends: BTreeMap<SocketAddr, Backend>,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Configured weight; 0 takes no new connections.
    pub weight: u16,
    /// Checks that must all pass. A backend without checks is always up.
    pub checks: Arc<[Assigned]>,
    /// State that the configuration asks for.
    pub administrative: Administrative,
    /// Whether the kernel forwards to it already, with a weight above 0. Then it keeps its weight
    /// until a probe fails. Read when the backend is new and has no saved state.
    pub serves_already: bool,
}

/// A check of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Assigned {
    /// The check.
    pub check: Arc<Check>,
    /// The way through a virtual server that has this backend alone; set with `Via::Service`.
    pub way: Option<Way>,
}

impl Assigned {
    /// A check by a connection to the backend itself.
    pub fn direct(check: impl Into<Arc<Check>>) -> Self {
        Self {
            check: check.into(),
            way: None,
        }
    }
}

/// The way through a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// Address and port of the frontend.
    pub address: SocketAddr,
    /// Firewall mark that leads to the virtual server; never 0.
    pub mark: u32,
    /// Source of packets for a check that names none; `None` for the kernel's choice.
    pub source: Option<IpAddr>,
}

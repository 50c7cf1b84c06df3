// SPDX-License-Identifier: Apache-2.0

//! The load balancers of this host as they are now: what `portolan-agent status` shows.
//!
//! The running agent answers `GET /debug/balancers` with an [`Overview`] as JSON; the command asks for it and
//! renders it. Its size is bounded by [`MAX_ENTRIES`].

mod build;
mod command;
mod meter;
mod serve;
mod services;
mod table;
mod watch;

use serde::{Deserialize, Serialize};

pub use command::run;
pub(crate) use serve::{Inputs, Overviews};
pub(crate) use services::Services;
pub(crate) use table::plain;

/// Backends and virtual servers of one answer together, at most. An entry takes some 500 bytes.
const MAX_ENTRIES: usize = 10_000;

/// The load balancers of a host at one time. Field names are those of the JSON form.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Time of the answer (RFC 3339, UTC).
    pub at: String,
    /// Revision of the table that the kernel has; `None` before the first.
    pub revision: Option<u64>,
    /// Errors of programming that belong to no load balancer.
    pub errors: Vec<String>,
    /// Reason why there are no numbers of connections; `None` if there are.
    pub unread: Option<String>,
    /// Whether the checks have no result yet that decides about the quorum of any load balancer, though they run.
    #[serde(default)]
    pub awaits_checks: bool,
    /// The load balancers, each frontend by itself, in the order of their names.
    pub balancers: Vec<Balancer>,
    /// Commands of operators about backends, in the order of the backends' names.
    pub commands: Vec<Command>,
    /// Number of load balancers that are left out because the answer would be too long. They can be asked for by name.
    pub omitted: usize,
}

/// A state that an operator has given backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// `NAMESPACE/NAME/ADDRESS[:PORT]`; without a port, all backends of the address.
    pub backend: String,
    /// `enabled`, `drain` or `disabled`.
    pub state: String,
    /// When it ends (RFC 3339, UTC); `None` for never.
    pub until: Option<String>,
    /// Whether there is such a backend. Without one, the command waits for it.
    pub is_used: bool,
}

/// One frontend of a load balancer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Balancer {
    /// `NAMESPACE/NAME` of the object.
    pub name: String,
    /// Name of the frontend.
    pub frontend: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Scheduler, by the kernel's name.
    pub scheduler: String,
    /// Whether enough weight is healthy; `None` as long as backends without a result decide.
    pub quorum: Option<bool>,
    /// Whether the sorry server serves; `None` without one. `false` if it serves one of two families alone, because the
    /// other one has quorum.
    pub sorry_server_active: Option<bool>,
    /// Errors of its programming.
    pub errors: Vec<String>,
    /// Its virtual servers, one for each address.
    pub virtual_servers: Vec<VirtualServer>,
    /// Its backends. Those that no frontend is in front of are left out.
    pub backends: Vec<Backend>,
}

/// A virtual server. Sums are those of its real servers, the sorry server included.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualServer {
    /// `ADDRESS:PORT`, `ADDRESS:RANGES` or `FWM MARK FAMILY`.
    pub address: String,
    /// `NAT`, `DR`, `IPIP`, `GUE`, `GRE`, or `mixed`.
    pub method: String,
    /// Number of backends that are up.
    pub up: usize,
    /// Number of backends.
    pub backends: usize,
    /// Sum of the weights that the backends' health gives them; `None` before anything was judged.
    pub weight: Option<u64>,
    /// Use of its real servers; `None` if the kernel was not read, or does not have it.
    pub usage: Option<Usage>,
}

/// A backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// `ADDRESS:PORT`.
    pub address: String,
    /// `NAT`, `DR`, `IPIP`, `GUE` or `GRE`.
    pub method: String,
    /// `probing`, `up`, `ramping` or `down`: what its checks say.
    pub state: String,
    /// When that began (RFC 3339, UTC).
    pub since: Option<String>,
    /// Seconds since then.
    pub since_seconds: Option<u64>,
    /// Reason why it went down; at most 256 characters.
    pub reason: Option<String>,
    /// `enabled`, `drain` or `disabled`: what operators and the backend itself ask for.
    pub administrative: String,
    /// Whether that is by command of an operator.
    pub by_command: bool,
    /// Whether it fails, but keeps its weight because too few others are healthy.
    pub kept: bool,
    /// Configured weight.
    pub configured_weight: u32,
    /// Weight that its health gives it, 0 for no new connections; `None` if it is no real server, or was not
    /// judged yet.
    pub weight: Option<u32>,
    /// Use of its real servers; `None` if the kernel was not read, or has none.
    pub usage: Option<Usage>,
}

/// Use of real servers, as the kernel counted it at most 5 s ago.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Established connections.
    pub active: u64,
    /// Other connections that the kernel remembers.
    pub inactive: u64,
    /// Rates between the last two readings; `None` with one reading alone.
    pub rates: Option<Rates>,
}

/// Use in one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// New connections.
    pub connections: f64,
    /// Bytes from clients.
    pub bytes_in: f64,
    /// Bytes to clients; 0 with methods whose answers pass the director by.
    pub bytes_out: f64,
}

impl Overview {
    /// Reason why the host is not healthy; empty if it is. It is when its table is programmed and each load balancer
    /// has quorum or a serving sorry server. One whose backends have no result is none beside others that have some: it
    /// is new, and the host would not serve the others any better elsewhere. Nor is it while checks are suspended: a
    /// standby that is never healthy could never become active.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.revision.is_none() {
            faults.push("no table has been programmed yet".to_owned());
        }
        faults.extend(self.errors.iter().cloned());
        for balancer in &self.balancers {
            let name = format!("{}:{}", balancer.name, balancer.frontend);
            let errors = balancer.errors.iter();
            faults.extend(errors.map(|error| format!("{name}: {error}")));
            match balancer.quorum {
                _ if balancer.sorry_server_active == Some(true) => {}
                Some(false) => faults.push(format!("{name}: no quorum")),
                None if self.awaits_checks => faults.push(format!("{name}: not checked yet")),
                Some(true) | None => {}
            }
        }
        if self.omitted > 0 {
            faults.push(format!("{} load balancers are not shown", self.omitted));
        }
        faults
    }
}

impl Usage {
    /// Adds the use of another real server.
    fn add(&mut self, other: &Self) {
        self.active += other.active;
        self.inactive += other.inactive;
        self.rates = match (self.rates, other.rates) {
            (Some(a), Some(b)) => Some(Rates {
                connections: a.connections + b.connections,
                bytes_in: a.bytes_in + b.bytes_in,
                bytes_out: a.bytes_out + b.bytes_out,
            }),
            (rates, None) | (None, rates) => rates,
        };
    }
}

#[cfg(test)]
mod tests;

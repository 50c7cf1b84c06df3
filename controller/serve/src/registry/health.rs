// SPDX-License-Identifier: Apache-2.0

//! Health of load balancers' backends, as the agent of one node has reported it on its last stream.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use portolan_proto::limits::problem_text;
use portolan_proto::v1;
use portolan_proto::v1::backend_health as wire;
use serde::Serialize;

use super::status::record_name;

/// Backends that are kept of one node. More are counted, but not listed.
const MAX_BACKENDS: usize = 100_000;
/// Load balancers that are kept of one node. More are ignored.
const MAX_BALANCERS: usize = 20_000;

/// Report of one node on the backends of its load balancers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeHealth {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The node.
    pub node: String,
    /// Whether its agent has a stream now. If not, the report is of the last one.
    pub connected: bool,
    /// Start of the last stream, in milliseconds of Unix time.
    pub connected_at_ms: u64,
    /// Its load balancers, in the order of their names.
    pub balancers: Vec<BalancerHealth>,
}

/// One load balancer's frontend on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BalancerHealth {
    /// `NAMESPACE/NAME` of the object.
    pub name: String,
    /// Name of the frontend; empty for the only one.
    pub frontend: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Whether enough weight is healthy; `None` while it is unknown.
    pub quorum: Option<bool>,
    /// Whether the sorry server serves.
    pub sorry: bool,
    /// Number of backends that are up or ramping.
    pub up: u32,
    /// Number of backends.
    pub total: u32,
    /// The backends, by address; fewer than `total` if there are very many.
    pub backends: Vec<BackendState>,
}

/// One backend as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendState {
    /// `ADDRESS:PORT`.
    pub address: SocketAddr,
    /// `probing`, `up`, `ramping`, `down`, or `unknown` of a newer agent.
    pub state: &'static str,
    /// `enabled`, `drain`, `disabled`, or `unknown` of a newer agent.
    pub administrative: &'static str,
    /// Weight that its health gives it.
    pub weight: u32,
    /// When it came up or went down, in seconds of Unix time.
    pub since: u64,
    /// Reason why it is down; empty if it is not.
    pub reason: String,
}

/// The reports of one stream, put together.
#[derive(Debug, Default)]
pub(super) struct Reported {
    balancers: BTreeMap<String, BalancerHealth>,
    backends: usize,
}

impl Reported {
    pub(super) fn is_empty(&self) -> bool {
        self.balancers.is_empty()
    }

    /// Number of load balancers and backends.
    pub(super) fn size(&self) -> usize {
        self.balancers.len() + self.backends
    }

    /// Takes a report that arrived at `now`, in seconds of Unix time.
    pub(super) fn take(&mut self, report: v1::Health, now: u64) {
        if report.replace {
            *self = Self::default();
        }
        for key in report.delete {
            self.remove(&record_name(&key));
        }
        for record in report.put {
            let Some(key) = record.key.clone() else {
                continue;
            };
            let name = record_name(&key);
            self.remove(&name);
            if self.balancers.len() < MAX_BALANCERS {
                let room = MAX_BACKENDS.saturating_sub(self.backends);
                let balancer = balancer(&key, record, room, now);
                self.backends += balancer.backends.len();
                self.balancers.insert(name, balancer);
            }
        }
    }

    pub(super) fn balancers(&self) -> Vec<BalancerHealth> {
        self.balancers.values().cloned().collect()
    }

    fn remove(&mut self, name: &str) {
        if let Some(old) = self.balancers.remove(name) {
            self.backends = self.backends.saturating_sub(old.backends.len());
        }
    }
}

fn balancer(
    key: &v1::RecordKey,
    record: v1::RecordHealth,
    room: usize,
    now: u64,
) -> BalancerHealth {
    let backends = record.backends.into_iter().take(room);
    let mut backends: Vec<_> = backends.filter_map(|each| backend(each, now)).collect();
    backends.sort_by_key(|backend| backend.address);
    BalancerHealth {
        name: problem_text(format!("{}/{}", key.namespace, key.service)),
        frontend: problem_text(key.port.clone()),
        protocol: super::status::protocol_name(key.protocol),
        quorum: record.quorum,
        sorry: record.sorry,
        up: record.up,
        total: record.total,
        backends,
    }
}

/// A backend without a usable address is left out.
fn backend(from: v1::BackendHealth, now: u64) -> Option<BackendState> {
    let (state, administrative) = (state(&from), administrative(&from));
    let ip: IpAddr = match from.address? {
        wire::Address::V4(ip) => IpAddr::V4(ip.into()),
        wire::Address::V6(octets) => <[u8; 16]>::try_from(octets).ok()?.into(),
    };
    Some(BackendState {
        address: SocketAddr::new(ip, u16::try_from(from.port).ok()?),
        state,
        administrative,
        weight: from.weight,
        since: now.saturating_sub(from.age_seconds),
        reason: problem_text(from.reason),
    })
}

fn state(backend: &v1::BackendHealth) -> &'static str {
    match backend.state() {
        wire::State::Probing => "probing",
        wire::State::Up => "up",
        wire::State::Ramping => "ramping",
        wire::State::Down => "down",
        wire::State::Unspecified => "unknown",
    }
}

fn administrative(backend: &v1::BackendHealth) -> &'static str {
    match backend.administrative() {
        wire::Administrative::Enabled => "enabled",
        wire::Administrative::Drain => "drain",
        wire::Administrative::Disabled => "disabled",
        wire::Administrative::Unspecified => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(service: &str) -> v1::RecordKey {
        v1::RecordKey {
            namespace: "default".to_owned(),
            service: service.to_owned(),
            port: String::new(),
            protocol: v1::Protocol::Tcp.into(),
        }
    }

    fn record(service: &str, backends: u32) -> v1::RecordHealth {
        let backend = |index: u32| v1::BackendHealth {
            address: Some(wire::Address::V4(0x0a00_0000 + index)),
            port: 80,
            state: wire::State::Down.into(),
            administrative: wire::Administrative::Enabled.into(),
            weight: 0,
            age_seconds: 10,
            reason: "no answer".to_owned(),
        };
        v1::RecordHealth {
            key: Some(key(service)),
            quorum: Some(false),
            sorry: false,
            up: 0,
            total: backends,
            // In no order.
            backends: (0..backends).rev().map(backend).collect(),
        }
    }

    fn names(reported: &Reported) -> Vec<String> {
        let all = reported.balancers().into_iter();
        all.map(|balancer| balancer.name).collect()
    }

    #[test]
    fn reports_add_up() {
        let mut reported = Reported::default();
        let put = |put: Vec<v1::RecordHealth>, replace| v1::Health {
            put,
            replace,
            delete: vec![],
        };
        reported.take(put(vec![record("a", 2), record("b", 1)], true), 1_000);
        assert_eq!(names(&reported), ["default/a", "default/b"]);
        let a = &reported.balancers()[0];
        assert_eq!((a.quorum, a.up, a.total), (Some(false), 0, 2));
        let backend = &a.backends[0];
        assert_eq!(backend.address, ([10, 0, 0, 0], 80).into());
        assert_eq!((backend.state, backend.since), ("down", 990));
        let changed = v1::Health {
            put: vec![record("a", 1)],
            delete: vec![key("b")],
            replace: false,
        };
        reported.take(changed, 1_000);
        assert_eq!(names(&reported), ["default/a"]);
        assert_eq!(reported.backends, 1);
        reported.take(put(vec![record("c", 1)], true), 1_000);
        assert_eq!(names(&reported), ["default/c"]);
    }

    #[test]
    fn a_hostile_agent_fills_no_memory_and_bad_values_are_left_out() {
        let mut reported = Reported::default();
        let many = |range: std::ops::Range<u32>| v1::Health {
            put: range.map(|i| record(&format!("{i:06}"), 6)).collect(),
            ..v1::Health::default()
        };
        reported.take(many(0..20_100), 1_000);
        assert_eq!(reported.balancers.len(), MAX_BALANCERS);
        assert_eq!(reported.backends, MAX_BACKENDS);
        // The same ones again need no more room.
        reported.take(many(0..20_100), 1_000);
        assert_eq!(reported.backends, MAX_BACKENDS);
        let mut bad = record("bad", 3);
        bad.backends[0].address = None;
        bad.backends[1].address = Some(wire::Address::V6(vec![1; 15]));
        bad.backends[2].port = 70_000;
        let health = v1::Health {
            put: vec![bad, v1::RecordHealth::default()],
            replace: true,
            delete: vec![],
        };
        reported.take(health, 1_000);
        assert_eq!(reported.balancers().len(), 1);
        assert!(reported.balancers()[0].backends.is_empty());
        let mut newer = record("newer", 1);
        newer.backends[0].state = 77;
        let health = v1::Health {
            put: vec![newer],
            ..v1::Health::default()
        };
        reported.take(health, 1_000);
        assert_eq!(reported.balancers()[1].backends[0].state, "unknown");
    }
}

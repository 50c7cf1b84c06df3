// SPDX-License-Identifier: Apache-2.0

//! Metrics of the sockets.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the sockets. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Open TCP connections and UDP flows.
    pub(crate) open: Family<ProtocolLabel, Gauge>,
    /// All of them so far.
    pub(crate) opened: Family<ProtocolLabel, Counter>,
    /// Bytes that were passed on.
    pub(crate) bytes: Family<DirectionLabel, Counter>,
    /// Endpoints that could not be reached.
    pub(crate) dial_failures: Counter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ProtocolLabel {
    pub(crate) protocol: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(clippy::upper_case_acronyms, reason = "names of label values")]
pub(crate) enum Kind {
    TCP,
    UDP,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabel {
    pub(crate) direction: Direction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "names of label values")]
pub(crate) enum Direction {
    to_endpoint,
    to_client,
}

impl Metrics {
    /// Adds them to the agent's registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("proxy");
        registry.register(
            "connections_open",
            "Open TCP connections and UDP flows through the userspace dataplane",
            self.open.clone(),
        );
        registry.register(
            "connections",
            "TCP connections and UDP flows through the userspace dataplane",
            self.opened.clone(),
        );
        registry.register(
            "bytes",
            "Bytes that the userspace dataplane passed on",
            self.bytes.clone(),
        );
        registry.register(
            "dial_failures",
            "Endpoints that the userspace dataplane could not reach, each attempt",
            self.dial_failures.clone(),
        );
        for protocol in [Kind::TCP, Kind::UDP] {
            drop(self.open.get_or_create(&ProtocolLabel { protocol }));
            drop(self.opened.get_or_create(&ProtocolLabel { protocol }));
        }
        for direction in [Direction::to_endpoint, Direction::to_client] {
            drop(self.bytes.get_or_create(&DirectionLabel { direction }));
        }
    }

    /// Counts a connection until the value is dropped.
    pub(crate) fn count(&self, protocol: Kind) -> Counted {
        let label = ProtocolLabel { protocol };
        self.opened.get_or_create(&label).inc();
        let open = self.open.get_or_create_owned(&label);
        open.inc();
        Counted(open)
    }

    /// The counter of one direction.
    pub(crate) fn bytes(&self, direction: Direction) -> Counter {
        self.bytes
            .get_or_create_owned(&DirectionLabel { direction })
    }
}

#[cfg(test)]
impl Metrics {
    /// Open TCP connections.
    pub(crate) fn open_tcp(&self) -> i64 {
        let protocol = Kind::TCP;
        self.open.get_or_create(&ProtocolLabel { protocol }).get()
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

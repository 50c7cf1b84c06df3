// SPDX-License-Identifier: Apache-2.0

//! Metrics of use by Service port, for `--service-metrics`, as IPVS counts it.
//!
//! The kernel is read when metrics are scraped, and at no other time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_dataplane::{DataplaneError, Totals, read_totals};
use portolan_model::RecordKey;
use portolan_model::ipvs::VirtualServerKey;
use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::registry::Registry;

use crate::status::Status;

/// Shortest time between two readings of the kernel: more scrapes get the same numbers.
const PAUSE: Duration = Duration::from_secs(5);

/// Counters of the kernel by virtual server.
type ReadTotals = BTreeMap<VirtualServerKey, Totals>;
type Read = dyn Fn() -> Result<ReadTotals, DataplaneError> + Send + Sync;

/// Counts the use of Service ports when metrics are scraped.
pub struct ServiceCollector {
    status: Status,
    read: Box<Read>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    read_at: Option<Instant>,
    is_broken: bool,
    sums: Sums,
}

/// Use of Service ports since the agent first saw them.
///
/// Counters of the kernel begin anew with each virtual server, and several virtual servers make up a port. The sums
/// only grow.
#[derive(Debug)]
struct Sums {
    /// Most ports.
    limit: usize,
    of: BTreeMap<RecordKey, Totals>,
    /// Counters of the last reading, of virtual servers of these ports.
    last: ReadTotals,
    /// Ports beyond the limit.
    omitted: usize,
}

impl Sums {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            of: BTreeMap::new(),
            last: BTreeMap::new(),
            omitted: 0,
        }
    }

    /// Adds what was counted since the last reading. Ports that were there keep their place; free places go to others by
    /// name.
    fn update(&mut self, records: &BTreeMap<VirtualServerKey, RecordKey>, read: &ReadTotals) {
        let mut ports: Vec<&RecordKey> = records.values().collect();
        ports.sort_unstable();
        ports.dedup();
        self.of.retain(|port, _| ports.binary_search(&port).is_ok());
        for port in &ports {
            if self.of.len() >= self.limit {
                break;
            }
            if !self.of.contains_key(*port) {
                self.of.insert((*port).clone(), Totals::default());
            }
        }
        self.omitted = ports.len() - self.of.len();
        let mut last = ReadTotals::new();
        for (key, port) in records {
            let Some(sum) = self.of.get_mut(port) else {
                continue;
            };
            let before = self.last.get(key).copied().unwrap_or_default();
            // A dump is no snapshot: what it lacks may be there.
            let now = read.get(key).unwrap_or(&before);
            // A virtual server that was deleted and added again counts from 0.
            let is_same = now.connections >= before.connections
                && now.bytes_in >= before.bytes_in
                && now.bytes_out >= before.bytes_out;
            let before = if is_same { before } else { Totals::default() };
            sum.connections += now.connections - before.connections;
            sum.bytes_in += now.bytes_in - before.bytes_in;
            sum.bytes_out += now.bytes_out - before.bytes_out;
            last.insert(*key, *now);
        }
        self.last = last;
    }
}

impl fmt::Debug for ServiceCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceCollector").finish_non_exhaustive()
    }
}

impl ServiceCollector {
    /// As the kernel of this process counts.
    fn new(status: Status, limit: u32) -> Self {
        Self::with(status, limit, read_totals)
    }

    /// Adds metrics of at most `limit` ports to a registry; none if it is 0.
    pub fn register(status: &Status, limit: u32, registry: &mut Registry) {
        if limit > 0 {
            registry.register_collector(Box::new(Self::new(status.clone(), limit)));
        }
    }

    fn with(
        status: Status,
        limit: u32,
        read: impl Fn() -> Result<ReadTotals, DataplaneError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            status,
            read: Box::new(read),
            state: Mutex::new(State {
                read_at: None,
                is_broken: false,
                sums: Sums::new(limit as usize),
            }),
        }
    }

    /// One port with counts, and no kernel.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let this = Self::with(Status::default(), 1, || Ok(ReadTotals::new()));
        let port = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "http".into(),
            protocol: portolan_model::Protocol::Tcp,
        };
        let sums = [(port, Totals::default())].into();
        this.state.lock().unwrap().sums.of = sums;
        this
    }

    fn update(&self, state: &mut State) {
        if state.read_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let Some(records) = self.status.virtual_servers() else {
            // Other dataplanes count nothing by Service. One that has taken the place of IPVS leaves none of before.
            if state.read_at.is_some() {
                state.sums = Sums::new(state.sums.limit);
            }
            return;
        };
        state.read_at = Some(Instant::now());
        match (self.read)() {
            Ok(read) => {
                state.sums.update(&records, &read);
                state.is_broken = false;
            }
            Err(error) if !state.is_broken => {
                tracing::warn!(%error, "the counters of Services cannot be read");
                state.is_broken = true;
            }
            Err(_) => {}
        }
    }
}

/// The port of a Service.
#[derive(Debug, EncodeLabelSet)]
struct PortLabels {
    cluster: Arc<str>,
    namespace: Arc<str>,
    service: Arc<str>,
    port: Arc<str>,
    protocol: &'static str,
}

#[derive(Debug, EncodeLabelSet)]
struct DirectionLabels {
    #[prometheus(flatten)]
    port: PortLabels,
    direction: &'static str,
}

fn labels(key: &RecordKey) -> PortLabels {
    PortLabels {
        cluster: Arc::clone(&key.cluster),
        namespace: Arc::clone(&key.namespace),
        service: Arc::clone(&key.service),
        port: Arc::clone(&key.port),
        protocol: key.protocol.as_str(),
    }
}

impl Collector for ServiceCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.update(&mut state);
        let sums = &state.sums;
        let mut scrape = Scrape::new(encoder);
        scrape.counters(
            "service_connections",
            "Connections to a Service port by way of this node, as IPVS counts them; with --service-metrics",
            sums.of.iter().map(|(key, sum)| (labels(key), sum.connections)),
        )?;
        let bytes = |(key, sum): (&RecordKey, &Totals)| {
            [("in", sum.bytes_in), ("out", sum.bytes_out)].map(|(direction, bytes)| {
                let port = labels(key);
                (DirectionLabels { port, direction }, bytes)
            })
        };
        scrape.counters(
            "service_bytes",
            "Bytes from and to clients of a Service port by way of this node; with --service-metrics",
            sums.of.iter().flat_map(bytes),
        )?;
        scrape.gauge(
            "service_metrics_omitted",
            "Service ports of this node beyond --service-metrics, which have no metrics of use",
            i64::try_from(sums.omitted).unwrap_or(i64::MAX),
        )
    }
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: Apache-2.0

//! Costs of a whole table: memory at a controller or relay, and the time until agents without one have it.

/// Measured costs of a table. All are of one endpoint or one agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableCosts {
    /// Resident memory of a controller without a table, in bytes.
    pub empty_bytes: f64,
    /// Resident memory for each endpoint, in bytes.
    pub endpoint_bytes: f64,
    /// Resident memory for each stream, in bytes.
    pub stream_bytes: f64,
    /// A snapshot on the wire for each endpoint, in bytes.
    pub wire_bytes: f64,
    /// Processor time to send one agent the snapshot of one endpoint, in nanoseconds.
    pub send_ns: f64,
}

/// Cost of a table at one controller or relay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    /// Resident memory, in bytes.
    pub resident_bytes: f64,
    /// Size of one snapshot on the wire, in bytes.
    pub snapshot_bytes: f64,
    /// Time until all agents without a table have one, in seconds: of the processor, or of the network if that is
    /// slower.
    pub all_new_seconds: f64,
}

/// The table of this many endpoints, at a process with this many streams, processors for streams, and a network of this
/// many bits per second.
#[must_use]
pub fn table(
    costs: TableCosts,
    endpoints: f64,
    streams: f64,
    processors: f64,
    bits_per_second: f64,
) -> Table {
    let snapshot_bytes = endpoints * costs.wire_bytes;
    let processor = streams * endpoints * costs.send_ns / 1e9 / processors;
    let network = streams * snapshot_bytes * 8.0 / bits_per_second;
    Table {
        resident_bytes: costs.empty_bytes
            + endpoints * costs.endpoint_bytes
            + streams * costs.stream_bytes,
        snapshot_bytes,
        all_new_seconds: processor.max(network),
    }
}

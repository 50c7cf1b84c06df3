// SPDX-License-Identifier: Apache-2.0

//! A small simulation of one change on its way through tiers of relays, and of what a table takes at each of them.
//!
//! It is deterministic, and knows no network but a fixed time for each hop. Its costs are measured by
//! `make bench-relay`, which also compares its results with measured ones; `docs/scale.md` carries them to sizes that
//! no single machine has.

mod spread;
mod table;

pub use spread::{Arrival, Costs, Machines, Shape, spread};
pub use table::{Table, TableCosts, table};

#[cfg(test)]
mod tests;

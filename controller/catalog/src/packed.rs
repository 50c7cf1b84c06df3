// SPDX-License-Identifier: Apache-2.0

//! Packed objects. 100,000 endpoints are most of the catalog's memory, and most of their fields are
//! equal.

mod few;
mod node;
mod service;
mod slice;

pub(crate) use few::Few;
pub(crate) use node::PackedNode;
pub(crate) use service::PackedService;
pub(crate) use slice::{Pack, PackedSlice, cut};

#[cfg(test)]
mod tests;
